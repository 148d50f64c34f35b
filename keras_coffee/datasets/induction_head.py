"""The induction-head task."""

import operator
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_coffee._checks import one_of
from keras_coffee.datasets.arguments import integer
from keras_coffee.datasets.generators import generator_of
from keras_coffee.datasets.pattern_sampler import PatternSampler

_SPLITS = ("train", "validation", "test")
_SETTINGS = (
    *("length", "trigger_length", "target_length", "noise_length", "vocabulary_size", "batch_size"),
    *("steps_per_epoch", "seed", "split", "workers", "use_multiprocessing", "max_queue_size"),
)


@keras.saving.register_keras_serializable(package="keras_coffee")
class InductionHead(keras.utils.PyDataset):
    """Sequences that end with a trigger and ask for what followed it the first time.

    Every sequence reads

        noise ‖ trigger ‖ target ‖ noise ‖ trigger

    The trigger is the same in all sequences and splits, and occurs in each sequence exactly twice,
    occurrences across the joins included. All sequences with this property are equally likely, as
    if positions and symbols were drawn uniformly and sequences with a third occurrence rejected;
    but nothing is rejected, so the time is proportional to the length.

    A batch depends only on the arguments, `epoch` and its index, and is the same on every backend.
    `fit` and `evaluate` advance `epoch`, so each pass sees new sequences, those over the validation
    and test splits too; set `dataset.epoch` to repeat a pass, or to continue after an interruption.
    For batches in the same order everywhere, call `fit` with `shuffle=False`, without
    `steps_per_epoch`, and leave `workers` at 1: otherwise Keras shuffles them, or uses some that
    were queued in the epoch before.

    Args:
        length: Integer, symbols in a sequence, not counting the padding. Defaults to 16.
        trigger_length: Integer, symbols in the trigger. Defaults to the length of `trigger`, or 1.
        target_length: Integer, symbols to be reproduced. Defaults to 1.
        noise_length: Integer, noise symbols between first trigger and target. Defaults to 0.
        vocabulary_size: Integer, at least 2. Symbols are 1 to `vocabulary_size`. Defaults to 7.
        trigger: Sequence of symbols. By default drawn from `seed`.
        batch_size: Integer, sequences in a batch. Defaults to 512.
        steps_per_epoch: Integer, batches in an epoch. Defaults to 10,000.
        seed: Non-negative integer. Defaults to 0.
        split: `"train"`, `"validation"` or `"test"`: independent streams of the same task.
            Defaults to `"train"`.
        **kwargs: `workers`, `use_multiprocessing`, `max_queue_size` of `keras.utils.PyDataset`.

    Attributes:
        trigger: Tuple of integers.
        epoch: Integer, passes so far.

    Output shape:
        `dataset[index]` is a pair of int32 arrays: the symbols, padded with zeros at the end for
        the answer, `(batch_size, length + target_length - 1)`, and the targets, `(batch_size,
        target_length)`.

    Raises:
        TypeError: If a number is not an integer or `trigger` is not a sequence.
        ValueError: If a number, a symbol or `split` is out of range, `trigger_length` is not the
            length of `trigger`, or `length` leaves fewer than `max(1, noise_length)` for noise.

    Example:
    >>> dataset = InductionHead(length=8, trigger=[3, 5], target_length=2, batch_size=4)
    >>> symbols, targets = dataset[0]
    >>> symbols.shape, targets.shape
    ((4, 9), (4, 2))

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", appendix "Induction Head
        Task"; for `noise_length`, Table 3.
    """

    def __init__(
        self,
        length: int = 16,
        trigger_length: int | None = None,
        target_length: int = 1,
        noise_length: int = 0,
        *,
        vocabulary_size: int = 7,
        trigger: Sequence[int] | None = None,
        batch_size: int = 512,
        steps_per_epoch: int = 10_000,
        seed: int = 0,
        split: str = "train",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.length = integer("length", length, 1)
        self.target_length = integer("target_length", target_length, 1)
        self.noise_length = integer("noise_length", noise_length, 0)
        self.vocabulary_size = integer("vocabulary_size", vocabulary_size, 2)
        self.batch_size = integer("batch_size", batch_size, 1)
        self.steps_per_epoch = integer("steps_per_epoch", steps_per_epoch, 1)
        self.seed = integer("seed", seed, 0)
        self.split = one_of("split", split, _SPLITS)
        self.epoch = 0
        if trigger is None:
            trigger = self._draw_trigger(1 if trigger_length is None else trigger_length)
        self.trigger = _check_trigger(trigger, trigger_length, self.vocabulary_size)
        self._check_lengths()
        self._prepare()

    @property
    def trigger_length(self) -> int:
        return len(self.trigger)

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        index = operator.index(index)
        if not 0 <= index < self.steps_per_epoch:
            raise IndexError(
                f"An epoch of this InductionHead has batches 0 to {self.steps_per_epoch - 1}; "
                f"received index {index}. Raise steps_per_epoch for more."
            )
        generator = generator_of(self.seed, _SPLITS.index(self.split), self.epoch, index)
        starts, free = self._draw(generator)
        symbols = self._place(starts, free)
        first = starts[:, None] + self.trigger_length + self.noise_length
        targets = np.take_along_axis(symbols, first + np.arange(self.target_length), axis=1)
        return symbols, targets

    def on_epoch_end(self) -> None:
        # Keras calls this once before the first epoch as well, so that `fit` starts at epoch 1.
        self.epoch += 1

    def get_config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS} | {"trigger": list(self.trigger)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)

    def _draw_trigger(self, trigger_length: int) -> list[int]:
        size = integer("trigger_length", trigger_length, 1)
        # A key that no batch has: their keys start with the number of a split.
        generator = generator_of(self.seed, len(_SPLITS))
        return generator.integers(1, self.vocabulary_size + 1, size=size).tolist()

    def _check_lengths(self) -> None:
        fixed = 2 * self.trigger_length + self.target_length
        noise = max(1, self.noise_length)
        if self.length - fixed < noise:
            raise ValueError(
                "InductionHead needs length - 2 * trigger_length - target_length >= "
                f"max(1, noise_length), but {self.length} - 2 * {self.trigger_length} - "
                f"{self.target_length} = {self.length - fixed} is less than {noise}. Use a length "
                f"of at least {fixed + noise}, or a shorter trigger, target or noise."
            )

    def _prepare(self) -> None:
        self._free_length = self.length - 2 * self.trigger_length
        self._positions = self._free_length - self.noise_length - self.target_length + 1
        self._letters = np.unique(self.trigger)
        others = np.setdiff1d(np.arange(1, self.vocabulary_size + 1), self._letters)
        # If every symbol is in the trigger, the sampler never asks for another.
        self._others = others.astype(np.int32) if others.size else np.zeros(1, np.int32)
        self._sampler = None
        if self.trigger_length > 1:
            pattern = np.searchsorted(self._letters, self.trigger)
            self._sampler = PatternSampler(pattern, others.size, self._free_length, self._positions)

    def _draw(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        shape = (self.batch_size, self._free_length)
        free = self._others[generator.integers(self._others.size, size=shape)]
        if self._sampler is None:
            # Symbols other than a one-symbol trigger are free, so all positions weigh the same.
            return generator.integers(self._positions, size=self.batch_size), free
        starts, classes = self._sampler.draw(generator, self.batch_size)
        for number, letter in enumerate(self._letters):
            free[classes == number] = letter
        return starts, free

    def _place(self, starts: np.ndarray, free: np.ndarray) -> np.ndarray:
        size, end = self.trigger_length, self.length - self.trigger_length
        symbols = np.zeros((self.batch_size, self.length + self.target_length - 1), np.int32)
        symbols[:, size:end] = free
        before = np.arange(self._free_length) < starts[:, None]
        np.copyto(symbols[:, : self._free_length], free, where=before)
        np.put_along_axis(symbols, starts[:, None] + np.arange(size), np.array(self.trigger), 1)
        symbols[:, end : self.length] = self.trigger
        return symbols


def _check_trigger(trigger: Any, trigger_length: Any, vocabulary_size: int) -> tuple[int, ...]:
    if isinstance(trigger, str) or not np.iterable(trigger):
        raise TypeError(f"trigger must be a list of symbols such as [1], received {trigger!r}.")
    symbols = tuple(integer("A symbol of trigger", symbol, 1) for symbol in trigger)
    if max(symbols, default=1) > vocabulary_size:
        raise ValueError(
            f"Symbols of trigger must be 1 to vocabulary_size={vocabulary_size}, received "
            f"{list(symbols)}. Use smaller symbols or a larger vocabulary_size."
        )
    size = len(symbols) if trigger_length is None else trigger_length
    if integer("trigger_length", size, 1) != len(symbols):
        raise ValueError(
            f"trigger_length is {trigger_length}, but trigger {list(symbols)} has {len(symbols)} "
            "symbols. Leave trigger_length out when trigger is given."
        )
    return symbols
