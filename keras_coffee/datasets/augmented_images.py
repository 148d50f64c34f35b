"""Images that are rotated and shifted a little, differently in each epoch."""

import operator
from typing import Any

import keras
import numpy as np

from keras_coffee._checks import one_of
from keras_coffee.datasets.arguments import integer, not_negative
from keras_coffee.datasets.generators import generator_of
from keras_coffee.datasets.roto_translation import INTERPOLATIONS, roto_translate

# Streams of random numbers.
_ORDER, _MOTION = range(2)


class AugmentedImages(keras.utils.PyDataset):
    """Batches of images, each rotated and shifted at random, differently in each epoch.

    Each image is rotated about its center by an angle from ±`rotation`, and shifted horizontally by
    ±`translation` × width and vertically by ±`translation` × height, all uniform and independent;
    then interpolated, with zeros outside. torchvision's `RandomAffine` takes the nearest pixel by
    default and rounds shifts to whole pixels, so that the paper's 0.01 × 28 pixels shift nothing:
    `translation=0, interpolation="nearest"` does the same.

    The images are shuffled in each epoch, unless `shuffle=False`. A batch depends only on the
    arguments, `epoch` and its index, and is the same on every backend. `fit` and `evaluate` advance
    `epoch`, so each pass sees new images; set `dataset.epoch` to repeat a pass, or to continue
    after an interruption. For batches in the same order everywhere, and each image once in a pass,
    call `fit` with `shuffle=False`, without `steps_per_epoch`, and leave `workers` at 1: otherwise
    Keras shuffles batches, or uses some that were queued in the epoch before. `rotation=0,
    translation=0` leaves the images unchanged.

    It is written in NumPy because Keras' layers for this, `RandomRotation` and
    `RandomTranslation`, take several times as long as a training step on JAX and PyTorch on a CPU;
    `benchmarks/augmentation.py` measures it.

    Args:
        images: Array of real numbers `(number, height, width)`. Not copied.
        labels: Array, one label for each image along its first axis. Not copied.
        batch_size: Integer, images in a batch; the last one has what is left. Defaults to 512.
        rotation: Float, largest angle in degrees. Defaults to 5.
        translation: Float, largest shift as a fraction of width and height. Defaults to 0.01.
        seed: Non-negative integer. Defaults to 0.
        interpolation: `"bilinear"` or `"nearest"`. Defaults to `"bilinear"`.
        shuffle: If False, images come in the order given, as `model.predict` needs them for a
            comparison with the labels. Defaults to True.
        **kwargs: `workers`, `use_multiprocessing`, `max_queue_size` of `keras.utils.PyDataset`.

    Attributes:
        epoch: Integer, passes so far.

    Output shape:
        `dataset[index]` is a pair: the images, float32 `(batch_size, height, width)` in the range
        of those given, and their labels.

    Raises:
        TypeError: If `batch_size` or `seed` is not an integer, `rotation` or `translation` not a
            number, or `images` has no real numbers.
        ValueError: If one of them is out of range, `images` is empty or has another number of
            axes than three, or there are more or fewer labels than images.

    Example:
    >>> images, labels = np.full((6, 28, 28), 255, "uint8"), np.arange(6)
    >>> dataset = AugmentedImages(images, labels, batch_size=4)
    >>> len(dataset), dataset[0][0].shape, dataset[1][0].shape
    (2, (4, 28, 28), (2, 28, 28))

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", appendix "MNIST
        Architecture and Results".
    """

    def __init__(
        self,
        images: Any,
        labels: Any,
        batch_size: int = 512,
        rotation: float = 5.0,
        translation: float = 0.01,
        seed: int = 0,
        interpolation: str = "bilinear",
        shuffle: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.images, self.labels = _check_data(images, labels)
        self.batch_size = integer("batch_size", batch_size, 1)
        self.rotation = not_negative("rotation", rotation)
        self.translation = not_negative("translation", translation)
        self.seed = integer("seed", seed, 0)
        self.interpolation = one_of("interpolation", interpolation, INTERPOLATIONS)
        self.shuffle = shuffle
        self.epoch = 0
        self._shuffled = self._shuffle(0)

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(
                f"An epoch of these AugmentedImages has batches 0 to {len(self) - 1}; "
                f"received index {index}."
            )
        epoch = self.epoch
        start = index * self.batch_size
        chosen = self._order(epoch)[start : start + self.batch_size]
        if not (self.rotation or self.translation):
            return self.images[chosen].astype(np.float32), self.labels[chosen]
        generator = generator_of(self.seed, _MOTION, epoch, index)
        turn, right, down = generator.uniform(-1, 1, size=(3, len(chosen)))
        _, height, width = self.images.shape
        angles = np.deg2rad(self.rotation) * turn
        right *= self.translation * width
        down *= self.translation * height
        moved = roto_translate(self.images[chosen], angles, right, down, self.interpolation)
        return moved, self.labels[chosen]

    def on_epoch_end(self) -> None:
        # Keras calls this once before the first epoch as well, so that `fit` starts at epoch 1.
        self.epoch += 1

    def _order(self, epoch: int) -> np.ndarray:
        # Read and replaced as one, because several workers may ask at the same time.
        shuffled = self._shuffled
        if shuffled[0] != epoch:
            self._shuffled = shuffled = self._shuffle(epoch)
        return shuffled[1]

    def _shuffle(self, epoch: int) -> tuple[int, np.ndarray]:
        count = len(self.images)
        order = (
            generator_of(self.seed, _ORDER, epoch).permutation(count)
            if self.shuffle
            else range(count)
        )
        return epoch, np.asarray(order)


def _check_data(images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype.kind not in "buif":
        raise TypeError(
            f"images must be an array of real numbers, received dtype {images.dtype}. Convert it "
            "first."
        )
    if images.ndim != 3 or images.size == 0:
        raise ValueError(
            "images must have the shape (number, height, width), none of them 0, received "
            f"{images.shape}. Leave an axis of channels out, and add it in the model, with "
            "keras.layers.Reshape."
        )
    if labels.shape[:1] != images.shape[:1]:
        raise ValueError(
            f"There must be one label for each image, received {len(images)} images and labels of "
            f"shape {labels.shape}. Bring labels to the shape ({len(images)}, ...)."
        )
    return images, labels
