import ctypes
import gc
import os
import shutil
import sys
from pathlib import Path

import hypothesis
import pytest

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

# A process keeps each program that it compiled. Past so many bytes those of earlier files go.
_KEPT_BYTES = 1.4e9


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Keeps a backend's tests within the memory of a laptop."""
    yield
    if not Path("/proc/self/statm").exists() or _resident_bytes() < _KEPT_BYTES:
        return
    keras.utils.clear_session()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
