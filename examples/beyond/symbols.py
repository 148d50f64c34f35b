"""What the tasks of tracking.py and recall.py share: sequences of symbols, a target at each step.

A batch is `(symbols, targets, weights)`, each `(batch_size, steps)`: int32 symbols, where 0 is
padding; int32 targets; and float32 weights, 1 where a target counts. Elsewhere weight and target
are 0. Learn with

    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=["accuracy"],
    )

because the default reduction divides by all positions, also those that do not count.
"""

import operator
from typing import Any

import keras
import numpy as np

from keras_coffee.datasets.arguments import integer
from keras_coffee.datasets.generators import generator_of

SPLITS = ("train", "validation", "test")

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


class SymbolTask(keras.utils.PyDataset):
    """Batches that depend on the arguments, `epoch` and their index alone, on every backend.

    `fit` and `evaluate` advance `epoch`, so that each pass sees new sequences. Splits are
    independent streams. A subclass sets `vocabulary` and `classes` and draws a batch in `_draw`.

    Args:
        batch_size: Integer, sequences in a batch. Defaults to 256.
        steps_per_epoch: Integer, batches in an epoch. Defaults to 100.
        seed: Non-negative integer. Defaults to 0.
        split: `"train"`, `"validation"` or `"test"`. Defaults to `"train"`.
        **kwargs: Those of `keras.utils.PyDataset`.

    Attributes:
        vocabulary: Integer, symbols are 0 (padding) to `vocabulary - 1`.
        classes: Integer, targets are 0 to `classes - 1`.
        epoch: Integer, passes so far.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number or `split` is out of range.
        IndexError: If there is no such batch in an epoch.
    """

    vocabulary: int
    classes: int

    def __init__(
        self,
        *,
        batch_size: int = 256,
        steps_per_epoch: int = 100,
        seed: int = 0,
        split: str = "train",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch_size = integer("batch_size", batch_size, 1)
        self.steps_per_epoch = integer("steps_per_epoch", steps_per_epoch, 1)
        self.seed = integer("seed", seed, 0)
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, received {split!r}.")
        self.split = split
        self.epoch = 0

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __getitem__(self, index: int) -> Batch:
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"An epoch has batches 0 to {len(self) - 1}, received {index}.")
        key = (SPLITS.index(self.split), self.epoch, index)
        symbols, targets, weights = self._draw(generator_of(self.seed, *key))
        targets = np.where(weights, targets, 0)
        return symbols.astype("int32"), targets.astype("int32"), weights.astype("float32")

    def on_epoch_end(self) -> None:
        self.epoch += 1

    def _draw(self, generator: np.random.Generator) -> Batch:
        raise NotImplementedError


def probability(name: str, value: Any) -> float:
    """The value as a float, if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, received {value!r}.")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, received {value}.")
    return float(value)
