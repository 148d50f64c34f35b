"""Images as sequences of pixels."""

from typing import Any

import numpy as np

from keras_coffee.datasets import AugmentedImages
from keras_coffee.datasets.arguments import integer
from keras_coffee.datasets.generators import generator_of


class PermutedImages(AugmentedImages):
    """Permuted sequential MNIST: an image pixel by pixel, in an order that is drawn once.

        train, validation, test = (PermutedImages(*part) for part in load_mnist())

    Batches are `(pixels, labels)`, float32 `(batch, height * width, 1)` from 0 to 1 and int32
    `(batch,)`. The order of the pixels depends on `order` alone and is the same for all images of
    all parts; the order of the images depends on `seed` and is another one in each epoch.

    Args:
        images: Array `(number, height, width)` from 0 to 255.
        labels: Integers `(number,)`.
        batch_size: Integer. Defaults to 128.
        order: Non-negative integer, the seed of the permutation. Defaults to 0.
        **kwargs: `seed`, `shuffle` and others of `AugmentedImages`.

    Source: Le, Jaitly and Hinton, "A Simple Way to Initialize Recurrent Networks of Rectified
    Linear Units", 2015, arXiv:1504.00941.
    """

    def __init__(
        self, images: Any, labels: Any, batch_size: int = 128, order: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(images, labels, batch_size, rotation=0.0, translation=0.0, **kwargs)
        pixels = self.images.shape[1] * self.images.shape[2]
        self.order = generator_of(integer("order", order, 0)).permutation(pixels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = super().__getitem__(index)
        pixels = images.reshape(len(images), -1, 1)[:, self.order]
        return pixels / np.float32(255), labels
