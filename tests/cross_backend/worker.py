"""Runs one task under the backend of KERAS_BACKEND, for test_parity.py.

python worker.py weights FILE            writes starting weights
python worker.py train WEIGHTS DIRECTORY   20 steps from given weights; saves losses and models
python worker.py predict DIRECTORY         predictions of every model in the directory
"""

import sys
from pathlib import Path

import keras
import numpy as np

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.datasets import InductionHead
from keras_coffee.layers import SoftminLogits, SymbolEmbedding

BACKEND = keras.config.backend()
STEPS = 20


def build(layer):
    embedding = SymbolEmbedding(9, 16, unit_symbol=0)
    return keras.Sequential(
        [keras.Input((None,), dtype="int32"), embedding, layer, SoftminLogits(embedding, last=1)]
    )


def build_masked_and_stateful():
    """Padding, both directions, and a state that is carried from batch to batch and saved."""
    return keras.Sequential(
        [
            keras.Input(batch_shape=(64, None), dtype="int32"),
            # Adam on TensorFlow counts each occurrence of a symbol as a gradient of its own.
            keras.layers.Embedding(9, 8, mask_zero=True, trainable=False),
            keras.layers.Bidirectional(S6Layer(4), merge_mode="ave"),
            keras.layers.Bidirectional(LinearizedS6Layer(4, stateful=True), merge_mode="ave"),
            CoffeeLayer(4, stateful=True, return_sequences=False),
            keras.layers.Dense(9),
        ]
    )


MODELS = {
    "coffee": lambda: build(CoffeeLayer(8)),
    "s6": lambda: build(S6Layer(8)),
    "linearized-s6": lambda: build(LinearizedS6Layer(8)),
    "masked-and-stateful": build_masked_and_stateful,
}
DATA = InductionHead(batch_size=64, steps_per_epoch=STEPS)


def starting_weights():
    """The same for all backends, whose random numbers differ.

    The layers' own are small enough for outputs of order one: the logits are differences of them.
    """
    generator = np.random.default_rng(0)
    weights = {}
    for name, make in MODELS.items():
        for i, weight in enumerate(make().weights):
            scale = 1 if weight.name == "embeddings" else 0.3
            values = generator.normal(size=weight.shape, scale=scale)
            starts_at_zero = weight.name in ("transition", "state")
            weights[f"{name}/{i}"] = 0 * values if starts_at_zero else values
    return weights


def batch(name, step):
    symbols, targets = DATA[step]
    if name == "masked-and-stateful":
        # 0 is padding.
        symbols = symbols * (np.random.default_rng(step).random(symbols.shape) < 0.7)
    return symbols, targets


def train(weights, directory):
    losses = {}
    for name, make in MODELS.items():
        model = make()
        model.set_weights([weights[f"{name}/{i}"] for i in range(len(model.weights))])
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(True))
        losses[name] = [model.train_on_batch(*batch(name, step)) for step in range(STEPS)]
        model.save(directory / f"{name}-{BACKEND}.keras")
        model.save_weights(directory / f"{name}-{BACKEND}.weights.h5")
        np.save(directory / f"{name}-{BACKEND}.npy", predictions(name, model))
    np.savez(directory / f"losses-{BACKEND}.npz", **losses)


def predictions(name, model):
    return model.predict(batch(name, 0)[0], batch_size=64, verbose=0)


def predict(directory):
    for name, make in MODELS.items():
        filled = make()
        for saved in ("jax", "tensorflow", "torch"):
            path = directory / f"{name}-{saved}.keras"
            # The optimizer of a model compiled under torch cannot be loaded elsewhere.
            model = keras.models.load_model(path, compile=False)
            np.save(f"{path}-on-{BACKEND}.npy", predictions(name, model))
            path = directory / f"{name}-{saved}.weights.h5"
            filled.load_weights(path)
            np.save(f"{path}-on-{BACKEND}.npy", predictions(name, filled))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["weights", path]:
            np.savez(path, **starting_weights())
        case ["train", path, directory]:
            train(np.load(path), Path(directory))
        case ["predict", directory]:
            predict(Path(directory))
