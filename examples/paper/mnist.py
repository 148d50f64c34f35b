"""The models of the paper on MNIST: four directions, and the pixels one after another."""

import dataclasses
import functools

import keras
import numpy as np
from keras import layers
from training import Experiment

from keras_coffee import CoffeeLayer, S6Layer
from keras_coffee.callbacks import LowerLearningRate
from keras_coffee.datasets import AugmentedImages, load_mnist
from keras_coffee.layers import FourDirections

LAYERS = {
    "coffee": functools.partial(CoffeeLayer, start="paper"),
    "coffee-output-filter": functools.partial(CoffeeLayer, output_filter=True, start="paper"),
    "s6": functools.partial(S6Layer, start="paper"),
    # Not in the paper. As many units as n says.
    "gru": layers.GRU,
    "s6-mamba": S6Layer.mamba,
    "coffee-series": CoffeeLayer,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mnist(Experiment):
    """Training on turned and moved images, at a learning rate that is lowered once."""

    learning_rate: float = 0.01
    lower_learning_rate: float = 0.005
    lower_below_loss: float = 0.45
    rotation: float = 5.0
    translation: float = 0.01
    epochs: int = 100
    batch_size: int = 512
    images: str = "mnist"
    interpolation = "bilinear"

    def smoke(self):
        return dataclasses.replace(self, epochs=2, batch_size=8, images="noise")

    def load_data(self, seed):
        splits = load_mnist(seed=seed) if self.images == "mnist" else noise()
        train, validation, test = splits
        settings = {"rotation": self.rotation, "translation": self.translation}
        settings |= {"interpolation": self.interpolation, "seed": seed}
        unchanged = {"rotation": 0.0, "translation": 0.0, "batch_size": 1000}
        return (
            AugmentedImages(*train, batch_size=self.batch_size, **settings),
            AugmentedImages(*validation, **unchanged),
            AugmentedImages(*test, **unchanged),
        )

    def callbacks(self):
        return [LowerLearningRate(self.lower_learning_rate, below=self.lower_below_loss)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FourDirectionMnist(Mnist):
    """Rows and columns, forwards and backwards, each through a layer of its own."""

    layer: str = "coffee"
    n: int = 2

    def build_model(self):
        return keras.Sequential(
            [
                *self.pixels(),
                FourDirections(LAYERS[self.layer](self.n)),
                self.dense(25, "gelu"),
                self.dense(10),
            ]
        )

    def pixels(self):
        """Layers that make 25 rows of 25 numbers of an image."""
        return [
            keras.Input((28, 28)),
            layers.Rescaling(1 / 255),
            layers.Reshape((28, 28, 1)),
            layers.CenterCrop(25, 25),
            layers.Reshape((25, 25)),
        ]

    def dense(self, units, activation=None):
        return layers.Dense(units, activation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequentialMnist(Mnist):
    """All 784 pixels as one sequence through one layer; or no such layer at all."""

    layer: str | None = "coffee"
    n: int = 8
    lower_below_loss: float = 0.15

    def build_model(self):
        recurrence = [] if self.layer is None else [LAYERS[self.layer](self.n)]
        return keras.Sequential(
            [
                keras.Input((28, 28)),
                layers.Rescaling(1 / 255),
                layers.Reshape((784, 1)),
                *recurrence,
                layers.Activation("gelu"),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )


def noise():
    """Images of no digit, for a look at whether everything runs."""
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(16, 28, 28), dtype=np.uint8)
    return ((images, np.arange(16) % 10),) * 3
