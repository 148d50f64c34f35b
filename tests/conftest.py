import gc
import os
import shutil

import hypothesis

if shutil.which("nvidia-smi") is None:
    # Read when Triton is imported, which PyTorch may do: its kernels run in an interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Importing, tracing and compiling make many objects and few cycles. By Python's default the
# collector looks for these so often that it takes a tenth of the time.
gc.set_threshold(50_000, 20, 20)

import keras  # noqa: E402

# Failures print what reproduces them; nothing is kept from run to run.
hypothesis.settings.register_profile(
    "quick",
    # JAX and TensorFlow compile for each example.
    max_examples=50 if keras.config.backend() == "torch" else 25,
    deadline=None,
    print_blob=True,
    database=None,
)
hypothesis.settings.register_profile(
    "nightly", hypothesis.settings.get_profile("quick"), max_examples=500
)
hypothesis.settings.load_profile("quick")

if keras.config.backend() == "torch":
    import torch

    # Threads that wait for a busy core make small operations ten to a hundred times slower.
    torch.set_num_threads(1)
