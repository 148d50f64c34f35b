"""Whether this run may take long: `--hypothesis-profile=nightly`, as in `make test-nightly`."""

import hypothesis
import keras

IS_NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"
# PyTorch compiles nothing, and runs by day what JAX and TensorFlow leave for the night.
IS_THOROUGH = IS_NIGHTLY or keras.config.backend() == "torch"
