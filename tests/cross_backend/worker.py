"""Runs one task under the backend of KERAS_BACKEND, for test_parity.py.

python worker.py weights FILE            writes starting weights
python worker.py train WEIGHTS DIRECTORY   20 steps from given weights; saves losses and model
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


MODELS = {
    "coffee": lambda: build(CoffeeLayer(8)),
    "s6": lambda: build(S6Layer(8)),
    "linearized-s6": lambda: build(LinearizedS6Layer(8)),
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
            weights[f"{name}/{i}"] = 0 * values if weight.name == "transition" else values
    return weights


def train(weights, directory):
    losses = {}
    for name, make in MODELS.items():
        model = make()
        model.set_weights([weights[f"{name}/{i}"] for i in range(len(model.weights))])
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(True))
        losses[name] = [model.train_on_batch(*DATA[step]) for step in range(STEPS)]
        model.save(directory / f"{name}-{BACKEND}.keras")
        np.save(directory / f"{name}-{BACKEND}.npy", model.predict(DATA[0][0], verbose=0))
    np.savez(directory / f"losses-{BACKEND}.npz", **losses)


def predict(directory):
    for path in sorted(directory.glob("*.keras")):
        # The optimizer of a model compiled under torch cannot be loaded elsewhere.
        model = keras.models.load_model(path, compile=False)
        predictions = model.predict(DATA[0][0], verbose=0)
        np.save(directory / f"{path.stem}-on-{BACKEND}.npy", predictions)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["weights", path]:
            np.savez(path, **starting_weights())
        case ["train", path, directory]:
            train(np.load(path), Path(directory))
        case ["predict", directory]:
            predict(Path(directory))
