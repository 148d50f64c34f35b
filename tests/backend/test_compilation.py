"""A second batch of the same shape compiles nothing."""

import os
import subprocess
import sys

import keras
import pytest

TRAIN = """
import pathlib, sys, keras, numpy as np, keras_coffee
layers = [keras.Input((9, 3)), keras_coffee.CoffeeLayer(4, recompute=True)]
model = keras.Sequential([*layers, keras_coffee.S6Layer(2)])
model.compile("adam", "mse", jit_compile=True)
batch = np.ones((2, 9, 3), "float32")
for _ in range(4):
    model.train_on_batch(batch, batch)
    # XLA writes each program down before it runs it.
    print(len(list(pathlib.Path(sys.argv[1]).glob("*before_optimizations.txt"))))
"""


@pytest.mark.skipif(keras.config.backend() == "torch", reason="eager: nothing is compiled")
def test_steps_after_the_second_compile_nothing(tmp_path):
    # On TensorFlow a compiled training step once took the weights for constants, and compiled
    # again whenever they changed: right values, a hundred times too slow.
    result = subprocess.run(
        [sys.executable, "-c", TRAIN, str(tmp_path)],
        env={**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"},
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    _, few, _, more = map(int, result.stdout.split())
    assert few == more > 0
