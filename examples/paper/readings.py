"""Other readings of the paper's text, for rows that did not reach the paper at first."""

import dataclasses

import keras
import numpy as np
from induction_heads import InductionHeads
from keras import layers
from mnist import FourDirectionMnist

from keras_coffee import CoffeeLayer
from keras_coffee.callbacks import LowerLearningRate
from keras_coffee.datasets import AugmentedImages


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreeTransition(InductionHeads):
    """λ is not kept in [-2, 0]."""

    def recurrence(self):
        return CoffeeLayer(self.n, start="paper", transition_constraint=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearestPixel(FourDirectionMnist):
    """Images as torchvision's `RandomAffine` turns them by default; it would not move them."""

    translation: float = 0.0
    interpolation = "nearest"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherReading(FourDirectionMnist):
    """Table 7 with one of these read otherwise.

    Args:
        corner: Row and column of the image at which the 25 of the crop begin.
        crop_first: Crops before images are turned and moved, not after it.
        moved_once: Turns and moves each image once, not in each epoch anew.
        normalized: Pixels of mean 0 and variance 1, as PyTorch's example for MNIST has them.
        torch_dense: Dense layers start as PyTorch's do: kernels and biases from ±1/√inputs.
        running_loss: Lowers the rate within an epoch, by the mean loss of its steps so far.
        epsilon: Adam's.
    """

    corner: int = 1
    crop_first: bool = False
    moved_once: bool = False
    normalized: bool = False
    torch_dense: bool = False
    running_loss: bool = False
    epsilon: float = 1e-7

    def load_data(self, seed):
        train, *others = super().load_data(seed)
        if self.moved_once:
            train = moved(train)
        if self.crop_first:
            for data in (train, *others):
                data.images = data.images[:, 1:26, 1:26]
        return train, *others

    def pixels(self):
        side, start = (25, 0) if self.crop_first else (28, self.corner)
        end = side - 25 - start
        mean, deviation = (0.1307, 0.3081) if self.normalized else (0.0, 1.0)
        return [
            keras.Input((side, side)),
            layers.Rescaling(1 / 255 / deviation, -mean / deviation),
            layers.Reshape((side, side, 1)),
            layers.Cropping2D(((start, end), (start, end))),
            layers.Reshape((25, 25)),
        ]

    def dense(self, units, activation=None):
        if not self.torch_dense:
            return super().dense(units, activation)
        uniform = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        bound = (100 if units == 25 else 25) ** -0.5
        bias = keras.initializers.RandomUniform(-bound, bound)
        return layers.Dense(units, activation, kernel_initializer=uniform, bias_initializer=bias)

    def compile(self, model):
        super().compile(model)
        model.optimizer.epsilon = self.epsilon

    def callbacks(self):
        if not self.running_loss:
            return super().callbacks()
        return [LowerWithinEpoch(self.lower_learning_rate, below=self.lower_below_loss)]


def moved(data):
    """The images as one pass shows them, for all passes."""
    images, labels = zip(*(data[k] for k in range(len(data))), strict=True)
    images, labels = np.concatenate(images), np.concatenate(labels)
    settings = {"batch_size": data.batch_size, "seed": data.seed}
    return AugmentedImages(images, labels, rotation=0.0, translation=0.0, **settings)


class LowerWithinEpoch(LowerLearningRate):
    """Looks at the mean loss of the epoch so far."""

    def on_train_batch_end(self, batch, logs=None):
        self.on_epoch_end(batch, logs)
