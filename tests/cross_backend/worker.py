"""Runs tasks under the backend of KERAS_BACKEND, for test_parity.py.

python worker.py DIRECTORY train     20 steps from the directory's weights; saves losses and models
python worker.py DIRECTORY predict   predictions of every model in the directory

One process can do both, one after the other.
"""

import sys
from pathlib import Path

import keras
import numpy as np

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.datasets import InductionHead
from keras_coffee.layers import LRU, MinGRU, SoftminLogits, SymbolEmbedding

BACKEND = keras.config.backend()
STEPS = 20


def build(*layers):
    embedding = SymbolEmbedding(9, 16, unit_symbol=0)
    head = SoftminLogits(embedding, last=1)
    return keras.Sequential([keras.Input((None,), dtype="int32"), embedding, *layers, head])


def build_masked_and_stateful():
    """Padding, both directions, and a state that is carried from batch to batch and saved."""
    return keras.Sequential(
        [
            keras.Input(batch_shape=(64, None), dtype="int32"),
            # Adam on TensorFlow counts each occurrence of a symbol as a gradient of its own.
            keras.layers.Embedding(9, 8, mask_zero=True, trainable=False),
            keras.layers.Bidirectional(S6Layer(4), merge_mode="ave"),
            keras.layers.Bidirectional(LinearizedS6Layer(4, stateful=True), merge_mode="ave"),
            MinGRU(6, go_backwards=True),
            # A carried state of complex numbers.
            LRU(5, n=3, stateful=True),
            CoffeeLayer(4, stateful=True, return_sequences=False),
            keras.layers.Dense(9),
        ]
    )


MODELS = {
    "coffee": lambda: build(CoffeeLayer(8)),
    "both-s6": lambda: build(LinearizedS6Layer(8), S6Layer(8)),
    "masked-and-stateful": build_masked_and_stateful,
}
DATA = InductionHead(batch_size=64, steps_per_epoch=STEPS)


def write_starting_weights(directory):
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
    np.savez(directory / "weights.npz", **weights)


def batch(name, step):
    symbols, targets = DATA[step]
    if name == "masked-and-stateful":
        # 0 is padding.
        symbols = symbols * (np.random.default_rng(step).random(symbols.shape) < 0.7)
    return symbols, targets


def train(directory):
    weights, losses = np.load(directory / "weights.npz"), {}
    for name, make in MODELS.items():
        model = make()
        model.set_weights([weights[f"{name}/{i}"] for i in range(len(model.weights))])
        # On TensorFlow one model is enough for XLA, which takes seconds for each.
        jit_compile = "auto" if name == "coffee" or BACKEND != "tensorflow" else False
        loss = keras.losses.SparseCategoricalCrossentropy(True)
        model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=jit_compile)
        losses[name] = [model.train_on_batch(*batch(name, step)) for step in range(STEPS)]
        model.save(directory / f"{name}-{BACKEND}.keras")
        model.save_weights(directory / f"{name}-{BACKEND}.weights.h5")
        np.save(directory / f"{name}-{BACKEND}.npy", outputs(name, model))
    np.savez(directory / f"losses-{BACKEND}.npz", **losses)


def predict(directory):
    for name, make in MODELS.items():
        filled = make()
        for saved in ("jax", "tensorflow", "torch"):
            path = directory / f"{name}-{saved}.keras"
            # The optimizer of a model compiled under torch cannot be loaded elsewhere.
            model = keras.models.load_model(path, compile=False)
            np.save(f"{path}-on-{BACKEND}.npy", outputs(name, model))
            path = directory / f"{name}-{saved}.weights.h5"
            filled.load_weights(path)
            np.save(f"{path}-on-{BACKEND}.npy", outputs(name, filled))


def outputs(name, model):
    # Called, since `predict` would compile each of these models anew.
    return keras.ops.convert_to_numpy(model(batch(name, 0)[0]))


if __name__ == "__main__":
    directory, *actions = sys.argv[1:]
    for action in actions:
        {"train": train, "predict": predict}[action](Path(directory))
