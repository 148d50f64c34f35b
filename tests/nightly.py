"""Whether this run may take long: `--hypothesis-profile=nightly`, as in `make test-nightly`."""

import itertools

import hypothesis
import keras
import pytest

IS_NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"
# PyTorch compiles nothing, and runs by day what JAX and TensorFlow leave for the night.
IS_THOROUGH = IS_NIGHTLY or keras.config.backend() == "torch"
once = pytest.mark.skipif(not IS_THOROUGH, reason="the same under every backend: on PyTorch")
by_night = pytest.mark.skipif(not IS_THOROUGH, reason="by day on PyTorch, by night elsewhere")


def product(*choices):
    """All combinations, for `parametrize`; by day every other one.

    Of three choices or more, each value of one still meets each value of every other.
    """
    cases = itertools.product(*map(enumerate, choices))
    numbered = (tuple(zip(*case, strict=True)) for case in cases)
    return [values for numbers, values in numbered if IS_NIGHTLY or sum(numbers) % 2 == 0]
