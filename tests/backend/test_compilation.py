"""A second batch of the same shape compiles nothing."""

import os
import subprocess
import sys

import keras
import pytest

TRAIN = """
import sys, keras, numpy as np, keras_coffee
layers = [keras.Input((9, 3)), keras_coffee.CoffeeLayer(4, recompute=True)]
model = keras.Sequential([*layers, keras_coffee.S6Layer(2)])
model.compile("adam", "mse", jit_compile=True)
batch = np.ones((2, 9, 3), "float32")
for _ in range(int(sys.argv[1])):
    model.train_on_batch(batch, batch)
"""


def compiled_modules(directory, steps):
    directory.mkdir()
    subprocess.run(
        [sys.executable, "-c", TRAIN, str(steps)],
        env={**os.environ, "XLA_FLAGS": f"--xla_dump_to={directory} --xla_dump_hlo_as_text"},
        check=True,
        capture_output=True,
        timeout=600,
    )
    return len(list(directory.glob("*before_optimizations.txt")))


@pytest.mark.skipif(keras.config.backend() == "torch", reason="eager: nothing is compiled")
def test_steps_after_the_second_compile_nothing(tmp_path):
    # On TensorFlow a compiled training step once took the weights for constants, and compiled
    # again whenever they changed: right values, a hundred times too slow.
    few, more = (compiled_modules(tmp_path / str(steps), steps) for steps in (2, 4))
    assert few == more > 0
