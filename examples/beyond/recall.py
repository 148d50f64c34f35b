"""Tasks of symbols that need a memory: induction heads, copying and recall.

Batches are described in symbols.py. Targets are symbols, so `classes` is `vocabulary`.
"""

from typing import Any

import numpy as np
from symbols import Batch, SymbolTask, probability

from keras_coffee.datasets.arguments import integer


class InductionHeads(SymbolTask):
    """What followed the last symbol the first time? Asked at the last symbol, the trigger.

    A sequence reads noise ‖ trigger ‖ target ‖ noise ‖ trigger, as in
    `keras_coffee.datasets.InductionHead`; here each sequence has a trigger of its own, so that none
    can be learned by heart. It occurs exactly twice. All triggers, all positions of the first one
    and, elsewhere, all other symbols are equally likely.

    Args:
        length: Integer, at least 3. Defaults to 256. The source tests with 64 to 1,048,576.
        symbols: Integer, at least 2, kinds of symbols. Defaults to 16.
        **kwargs: Those of `SymbolTask`; the source's batches are of 8.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    arXiv:2312.00752, where the trigger is the same in all sequences.
    """

    def __init__(self, length: int = 256, symbols: int = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = integer("length", length, 3)
        self.symbols = integer("symbols", symbols, 2)
        self.vocabulary = self.classes = self.symbols + 1

    def _draw(self, generator: np.random.Generator) -> Batch:
        rows = np.arange(self.batch_size)
        trigger = generator.integers(1, self.vocabulary, size=self.batch_size)
        symbols = generator.integers(1, self.symbols, size=(self.batch_size, self.length))
        symbols += symbols >= trigger[:, None]  # every symbol except the trigger
        first = generator.integers(self.length - 2, size=self.batch_size)
        symbols[rows, first] = symbols[:, -1] = trigger
        target = symbols[rows, first + 1]
        weights = np.zeros(symbols.shape, bool)
        weights[:, -1] = True
        return symbols, weights * target[:, None], weights


class SelectiveCopying(SymbolTask):
    """Which symbols were not blank? Asked, in their order, at the blanks after the copy symbol.

    Symbols to be copied are 1 to `symbols - 2`, equally likely; `symbols - 1` is blank, `symbols`
    says that it is time to copy. Each of the first blanks is put before one of the symbols to be
    copied, which is drawn uniformly. So the last of them comes just before the copy symbol.

    Args:
        length: Integer, at least `2 * copied + 1`. Defaults to 256, the answer included.
        copied: Integer, at least 1, symbols to be copied. Defaults to 16.
        symbols: Integer, at least 3, kinds of symbols. Defaults to 16.
        **kwargs: Those of `SymbolTask`; the source's batches are of 128.

    Source: github.com/athms/mad-lab, `configs/tasks/selective-copying.yml` and
    `mad/data/instances.py`, whose symbols are one less; Poli et al., "Mechanistic Design and
    Scaling of Hybrid Architectures", 2024, arXiv:2403.17844.
    """

    def __init__(
        self, length: int = 256, copied: int = 16, symbols: int = 16, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.copied = integer("copied", copied, 1)
        self.length = integer("length", length, 2 * self.copied + 1)
        self.symbols = integer("symbols", symbols, 3)
        self.vocabulary = self.classes = self.symbols + 1

    def _draw(self, generator: np.random.Generator) -> Batch:
        blanks = self.length - 2 * self.copied - 1
        content = generator.integers(1, self.symbols - 1, size=(self.batch_size, self.copied))
        before = generator.integers(self.copied, size=(self.batch_size, 1, blanks))
        numbers = np.arange(self.copied)
        positions = numbers + (before <= numbers[:, None]).sum(axis=2)
        symbols = np.full((self.batch_size, self.length), self.symbols - 1)
        np.put_along_axis(symbols, positions, content, axis=1)
        symbols[:, -self.copied - 1] = self.symbols
        targets = np.zeros_like(symbols)
        targets[:, -self.copied :] = content
        return symbols, targets, targets > 0


class InContextRecall(SymbolTask):
    """What comes after this key in this sequence? Asked at every key that was seen before.

    A sequence consists of pairs of key and value. Keys are 1 to `symbols // 2`, values are the
    others up to `symbols`. In each sequence a key has one value, and all maps from keys to values
    are equally likely. With probability `noise` a pair is replaced by two noise symbols, from
    `symbols + 1` to `symbols + noise_symbols`. One pair is never replaced, nor is the last one,
    whose key is drawn from those seen before.

    Targets are the next symbols. In the split `"train"` all of them count, as in the source. In the
    others only the values of keys that were seen before count.

    Args:
        length: Even integer, at least 4. Defaults to 128. The last symbol is a target only, so that
            batches have `length - 1` steps.
        symbols: Integer, at least 2, kinds of keys and values. Defaults to 16.
        noise_symbols: Integer, kinds of noise. Defaults to 0.
        noise: Number from 0 to 1, the share of noise. Defaults to 0. The source's noisy recall has
            0.2, and 16 kinds.
        **kwargs: Those of `SymbolTask`; the source's batches are of 128.

    Source: github.com/athms/mad-lab, `configs/tasks/in-context-recall.yml`,
    `noisy-in-context-recall.yml` and `mad/data/instances.py`, whose symbols are one less.
    """

    def __init__(
        self,
        length: int = 128,
        symbols: int = 16,
        noise_symbols: int = 0,
        noise: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.length = integer("length", length, 4)
        self.symbols = integer("symbols", symbols, 2)
        self.noise_symbols = integer("noise_symbols", noise_symbols, 0)
        self.noise = probability("noise", noise)
        if self.length % 2:
            raise ValueError(f"length must be even, received {self.length}.")
        if self.noise and not self.noise_symbols:
            raise ValueError(f"noise={self.noise} needs noise_symbols of at least 1, received 0.")
        self.vocabulary = self.classes = self.symbols + self.noise_symbols + 1

    def _draw(self, generator: np.random.Generator) -> Batch:
        rows, shape = np.arange(self.batch_size), (self.batch_size, self.length // 2)
        kinds = self.symbols // 2
        keys = generator.integers(1, kinds + 1, size=shape)
        noisy = generator.random(shape) < self.noise
        noisy[rows, generator.integers(shape[1] - 1, size=self.batch_size)] = False
        noisy[:, -1] = False
        # Which key each pair shows, none where it is noise. The last key is drawn from these.
        shown = (keys[:, :-1, None] == np.arange(1, kinds + 1)) & ~noisy[:, :-1, None]
        lots = generator.random((self.batch_size, kinds))
        keys[:, -1] = np.where(shown.any(axis=1), lots, -1).argmax(axis=1) + 1
        before = np.logical_or.accumulate(shown, axis=1)
        again = np.zeros(shape, bool)
        again[:, 1:] = np.take_along_axis(before, keys[:, 1:, None] - 1, axis=2)[:, :, 0]
        again &= ~noisy

        values = generator.integers(kinds + 1, self.symbols + 1, size=lots.shape)
        pairs = np.stack([keys, np.take_along_axis(values, keys - 1, axis=1)], axis=2)
        if self.noise:
            low, high = self.symbols + 1, self.vocabulary
            pairs[noisy] = generator.integers(low, high, size=(*shape, 2))[noisy]
        sequence = pairs.reshape(self.batch_size, self.length)
        asked = np.stack([again, np.zeros(shape, bool)], axis=2).reshape(sequence.shape)[:, :-1]
        weights = np.ones_like(asked) if self.split == "train" else asked
        return sequence[:, :-1], sequence[:, 1:], weights


class AssociativeRecall(SymbolTask):
    """Multi-query associative recall (MQAR): what is this key's value? Asked once for each key.

    A sequence begins with `pairs` pairs of different keys, 1 to `symbols // 2 - 1`, and different
    values, `symbols // 2` to `symbols - 1`. Then each key occurs once more, `2 * k` steps after the
    pairs, with k = 0, 1, 2 and so on. The keys choose in turn among the places that are left, with
    probabilities in proportion to (k + 1)^(power - 1). All other places are random symbols, which
    may be keys, or 0.

    Args:
        length: Even integer, at least `4 * pairs`. Defaults to 64.
        pairs: Integer, at least 1, at most `symbols // 2 - 1`. Defaults to 4.
        symbols: Even integer, at least 4. Defaults to 8,192.
        power: Number from 0 to 1, where 1 makes all distances equally likely. Defaults to 0.01.
        filled: Boolean, whether other places are random symbols. Defaults to True.
        **kwargs: Those of `SymbolTask`; the source's batches are of 256.

    Source: github.com/HazyResearch/zoology, `zoology/data/multiquery_ar.py`, which may fill with 0
    too; Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models", 2023,
    arXiv:2312.04927. It trains with (length, pairs) = (64, 4), (128, 8) and (256, 16 to 64) and
    tests up to (1024, 256).
    """

    def __init__(
        self,
        length: int = 64,
        pairs: int = 4,
        symbols: int = 8192,
        power: float = 0.01,
        filled: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pairs = integer("pairs", pairs, 1)
        self.length = integer("length", length, 4 * self.pairs)
        self.symbols = self.vocabulary = self.classes = integer("symbols", symbols, 4)
        self.power = probability("power", power)
        self.filled = bool(filled)
        for name in ("length", "symbols"):
            if getattr(self, name) % 2:
                raise ValueError(f"{name} must be even, received {getattr(self, name)}.")
        if self.pairs >= self.symbols // 2:
            raise ValueError(f"{self.pairs} pairs need symbols of at least {2 * self.pairs + 2}.")

    def _draw(self, generator: np.random.Generator) -> Batch:
        shape, half = (self.batch_size, self.length), self.symbols // 2
        keys = 1 + self._different(generator, half - 1)
        values = half + self._different(generator, half)
        begin = 2 * self.pairs
        places = (self.length - begin) // 2
        rates = np.arange(1.0, places + 1) ** (self.power - 1)
        queries = begin + 2 * self._different(generator, places, rates)

        filling = generator.integers(1, self.symbols, size=shape)
        symbols = filling if self.filled else np.zeros_like(filling)
        symbols[:, :begin:2], symbols[:, 1:begin:2] = keys, values
        np.put_along_axis(symbols, queries, keys, axis=1)
        targets = np.zeros_like(symbols)
        np.put_along_axis(targets, queries, values, axis=1)
        return symbols, targets, targets > 0

    def _different(self, generator: np.random.Generator, count: int, rates: Any = 1.0):
        """For each sequence `pairs` of `count` numbers, drawn in turn, weighted by their rates."""
        # Clocks of these rates ring in the order of such draws: exponential times, sorted.
        times = -np.log1p(-generator.random((self.batch_size, count))) / rates
        return times.argsort(axis=1)[:, : self.pairs]
