import ctypes
import functools
import gc
import os
import random
import shutil
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

if shutil.which("nvidia-smi") is None:
    # Read when Triton is imported, which PyTorch may do: its kernels run in an interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# On JAX most of the time goes to XLA, half of that to LLVM, which optimizes programs that then run
# once on a few numbers. The processes that tests start inherit it. Set to nothing, as in
# `make test-nightly` and `make dist-check`, programs are those that users run.
if os.environ.get("KERAS_BACKEND") == "jax":
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    # What another test, part or run of the suite compiled is read from there, also programs that
    # compile quickly.
    _PROGRAMS = Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_PROGRAMS))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

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

if keras.config.backend() == "tensorflow" and "XLA_FLAGS" not in os.environ:
    import tensorflow as tf

    # TensorFlow's optimizer of graphs takes a third of the time of these tests, which run a graph
    # once. It is on for users, and in the runs that set XLA_FLAGS to nothing.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

if keras.config.backend() == "torch":
    import torch

    # Threads that wait for a busy core make small operations ten to a hundred times slower.
    torch.set_num_threads(1)

# A process keeps each program that it compiled. Past so many bytes JAX forgets those of earlier
# files; TensorFlow can't, so its tests need several processes: `--part`.
_KEPT_BYTES = 1.4e9


def pytest_addoption(parser):
    parser.addoption(
        "--part", metavar="K/N", help="every N-th file of the tests except peers, from the K-th on"
    )


def pytest_ignore_collect(collection_path, config):
    part = config.getoption("--part")
    if part is None or not collection_path.match("test_*.py"):
        return None
    part, parts = map(int, part.split("/"))
    return collection_path not in _files()[part - 1 :: parts] or None


@functools.cache
def _files() -> list[Path]:
    # Peers need packages that load one framework after another: `make test-peers`.
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    return [file for file in files if file.parent.name != "peers"]


@pytest.fixture(autouse=True)
def _same_draws():
    """No test fails by bad luck: Keras takes the seeds of initializers from Python's `random`."""
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Keeps the tests within the memory of a laptop."""
    yield
    if keras.config.backend() != "jax" or not Path("/proc/self/statm").exists():
        return
    if _resident_bytes() > _KEPT_BYTES:
        keras.utils.clear_session()
        sys.modules["jax"].clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
