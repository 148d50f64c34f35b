"""Models for the files in tests/data, and what wrote these files.

    python tests/saved_models.py DIRECTORY

saves each model of `MODELS` as `<name>.keras` and `<name>.weights.h5`, and its outputs. Those in
tests/data are older than the base class `RecurrentLayer`. They must load for good, so they are
never written anew.
"""

import sys
from pathlib import Path

import keras
import numpy as np

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.layers import FourDirections, SoftminLogits, SymbolEmbedding
from keras_coffee.solvers import Elk

BATCH, LENGTH, DIM = 2, 6, 3


def sequences(*layers):
    return keras.Sequential([keras.Input(batch_shape=(BATCH, None, DIM)), *layers])


def symbols():
    embedding = SymbolEmbedding(5, DIM, unit_symbol=0)
    logits = SoftminLogits(embedding, last=1, distance="euclidean")
    return keras.Sequential(
        [keras.Input((None,), dtype="int32"), embedding, CoffeeLayer(2), logits]
    )


def images():
    directions = FourDirections(CoffeeLayer(2))
    return keras.Sequential([keras.Input((LENGTH, DIM)), directions, keras.layers.Dense(2)])


def stateful():
    layers = [CoffeeLayer(2, stateful=True), S6Layer(2, stateful=True)]
    return sequences(keras.layers.Masking(), *layers, LinearizedS6Layer(2, stateful=True))


def options():
    """Every argument of the layers that has another default, a few in each of them."""
    return sequences(
        CoffeeLayer(2, go_backwards=True, zero_output_for_mask=True, recompute=True),
        CoffeeLayer(2, solver="newton", transition_constraint=None, gate_regularizer="l2"),
        CoffeeLayer(2, solver=Elk(window=4), readout_initializer="ones", dtype="float32"),
        S6Layer(2, solver="associative", name="named"),
        LinearizedS6Layer(2, return_sequences=False, trainable=False),
    )


MODELS = {
    "coffee": lambda: sequences(CoffeeLayer(2)),
    "coffee-all": lambda: sequences(CoffeeLayer(2, output_filter=True, use_input_matrix=True)),
    "coffee-filter": lambda: sequences(CoffeeLayer(2, output_filter=True)),
    "coffee-input-matrix": lambda: sequences(CoffeeLayer(2, use_input_matrix=True)),
    "coffee-linear": lambda: sequences(CoffeeLayer(2, feedback="linear", stateful=True)),
    "coffee-none": lambda: sequences(CoffeeLayer(2, feedback=None)),
    "images": images,
    "linearized-s6": lambda: sequences(LinearizedS6Layer(2)),
    "options": options,
    "s6": lambda: sequences(S6Layer(2)),
    "stateful": stateful,
    "symbols": symbols,
}


def inputs(name):
    generator = np.random.default_rng(0)
    if name == "symbols":
        return generator.integers(5, size=(BATCH, LENGTH)).astype("int32")
    values = generator.normal(size=(BATCH, LENGTH, DIM)).astype("float32")
    if name == "stateful":
        values[0, 2:4] = 0  # masked
    return values


def write(directory):
    outputs = {}
    for name, make in MODELS.items():
        model, generator = make(), np.random.default_rng(1)
        for weight in model.weights:
            # Linear feedback grows without bound from large weights.
            scale = 0.5 if name == "coffee-linear" else 1.0
            values = generator.normal(size=weight.shape, scale=scale)
            weight.assign(-abs(values) / 2 if weight.name == "transition" else values)
        model.save(directory / f"{name}.keras")
        model.save_weights(directory / f"{name}.weights.h5")
        outputs[name] = keras.ops.convert_to_numpy(model(inputs(name)))
    np.savez(directory / "outputs.npz", **outputs)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
