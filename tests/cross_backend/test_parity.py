"""The same training and the same files on the three backends.

JAX runs in this process, each of the others in one of its own.
"""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import programs
import pytest

BACKENDS = ("jax", "tensorflow", "torch")
# The last one has MinGRU and LRU too.
MODELS = ("coffee", "both-s6", "masked-and-stateful")
WORKER = Path(__file__).with_name("worker.py")

pytestmark = [
    pytest.mark.skipif(
        keras.config.backend() != "jax", reason="starts the other backends itself, once, under JAX"
    ),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in BACKENDS), reason="needs all backends"
    ),
]


def work(backend, directory, *actions):
    root = WORKER.parents[2]
    # Threads that wait for a core that another suite keeps busy would slow PyTorch down.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment |= {"KERAS_BACKEND": backend, "PYTHONPATH": str(root)}
    result = subprocess.run(
        [sys.executable, str(WORKER), str(directory), *actions],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory, on_jax = tmp_path_factory.mktemp("parity"), programs.load(WORKER)
    on_jax.write_starting_weights(directory)
    # While this process is small: two of them share the memory.
    work("torch", directory, "train")
    work("tensorflow", directory, "train")
    on_jax.train(directory)
    on_jax.predict(directory)
    work("torch", directory, "predict")
    work("tensorflow", directory, "predict")
    return directory


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pair", list(itertools.combinations(BACKENDS, 2)), ids="-".join)
def test_losses_of_the_first_steps_agree(directory, pair, model):
    first, second = (np.load(directory / f"losses-{backend}.npz")[model] for backend in pair)
    assert len(first) == 20
    assert first[-1] != first[0]
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("file", ["keras", "weights.h5"])
@pytest.mark.parametrize("pair", list(itertools.product(BACKENDS, repeat=2)), ids="-to-".join)
def test_a_saved_model_gives_the_same_outputs(directory, pair, file, model):
    saved, loaded = pair
    expected = np.load(directory / f"{model}-{saved}.npy")
    actual = np.load(directory / f"{model}-{saved}.{file}-on-{loaded}.npy")
    # A logit is a difference of squared distances, which may be many times larger than itself.
    scale = max(1, abs(expected).max())
    np.testing.assert_allclose(actual / scale, expected / scale, rtol=1e-5, atol=1e-5)
