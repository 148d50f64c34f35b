"""Tasks of symbols that need a state to be tracked: parity, flip-flop, arithmetic and groups.

Batches are described in symbols.py.
"""

import itertools
from typing import Any

import numpy as np
from symbols import Batch, SymbolTask, probability

from keras_coffee.datasets.arguments import integer


class Parity(SymbolTask):
    """Is the number of twos odd? Asked at the last symbol.

    Symbols 1 and 2 are equally likely, lengths from `min_length` to `max_length` too. All sequences
    are padded to `max_length` steps. Two classes.

    Args:
        min_length: Integer, at least 1. Defaults to 3.
        max_length: Integer. Defaults to 40. The source tests with 40 to 256.
        **kwargs: Those of `SymbolTask`; the source's batches are of 256.

    Source: github.com/Benjamin-Walker/structured-linear-cdes, `data_dir/fl_tasks/parity.py`.
    github.com/NX-AI/xlstm, `experiments/parity_xlstm*.yaml`, has the same lengths, but counts the
    answer as a symbol.
    """

    vocabulary, classes = 3, 2

    def __init__(self, min_length: int = 3, max_length: int = 40, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.min_length = integer("min_length", min_length, 1)
        self.max_length = integer("max_length", max_length, self.min_length)

    def _draw(self, generator: np.random.Generator) -> Batch:
        lengths = generator.integers(self.min_length, self.max_length + 1, size=self.batch_size)
        symbols = generator.integers(1, 3, size=(self.batch_size, self.max_length))
        symbols[np.arange(self.max_length) >= lengths[:, None]] = 0
        odd = (symbols == 2).cumsum(axis=1) % 2
        return symbols, odd, np.arange(self.max_length) == lengths[:, None] - 1


class FlipFlop(SymbolTask):
    """What was the last bit written? Asked at every read.

    Instruction and bit are one symbol, as a layer that sees one symbol at a time cannot know to
    which instruction a bit belongs: 1 and 2 write 0 and 1, 3 and 4 are bits to be ignored, 5 reads.
    The first symbol writes, the last one reads. Between them a symbol is to be ignored with
    probability `ignore`; writes and reads share the rest equally. Two classes.

    Args:
        length: Integer, at least 2. Defaults to 256, which are 512 symbols in the source.
        ignore: Number from 0 to 1. Defaults to 0.8. The source tests with 0.98 and 0.1 as well.
        **kwargs: Those of `SymbolTask`; the source's batches are of 16.

    Source: Liu et al., "Exposing Attention Glitches with Flip-Flop Language Modeling", 2023,
    arXiv:2306.00946.
    """

    vocabulary, classes = 6, 2

    def __init__(self, length: int = 256, ignore: float = 0.8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = integer("length", length, 2)
        self.ignore = probability("ignore", ignore)

    def _draw(self, generator: np.random.Generator) -> Batch:
        shape = (self.batch_size, self.length)
        uniform, bits = generator.random(shape), generator.integers(2, size=shape)
        reads = uniform >= (1 + self.ignore) / 2
        writes = (uniform >= self.ignore) & ~reads
        writes[:, 0], writes[:, -1] = True, False
        reads[:, 0], reads[:, -1] = False, True
        symbols = np.where(reads, 5, bits + np.where(writes, 1, 3))
        last = np.maximum.accumulate(np.where(writes, np.arange(self.length), 0), axis=1)
        return symbols, np.take_along_axis(bits, last, axis=1), reads


class ModularArithmetic(SymbolTask):
    """What is the value of the expression, modulo `modulus`? Asked at the equals sign, its end.

    Digit d is symbol `d + 1`. Plus, minus, times, equals and the two brackets are `modulus + 1` to
    `modulus + 6`. Lengths from `min_length` to `max_length` are equally likely; all sequences are
    padded to one length. There are `modulus` classes.

    Without brackets digits and operators alternate, times binds more than plus and minus, and odd
    lengths get one symbol more. With brackets an expression E of n symbols is d, -d, (d) or (-d)
    where n is 1 to 4. A longer one is (E+E), (E-E) or (E*E); all lengths of its left part are
    equally likely.

    Args:
        min_length: Integer, at least 2. Defaults to 3.
        max_length: Integer, symbols with the equals sign. Defaults to 40. The source tests with 40
            to 256.
        modulus: Integer, at least 2. Defaults to 5.
        brackets: Boolean. Defaults to False.
        **kwargs: Those of `SymbolTask`; the source's batches are of 256.

    Source: github.com/Benjamin-Walker/structured-linear-cdes, `data_dir/fl_tasks`,
    `mod_arith_no_brack.py` and `mod_arith_w_brack.py`, which number the symbols otherwise.
    """

    def __init__(
        self,
        min_length: int = 3,
        max_length: int = 40,
        modulus: int = 5,
        brackets: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.min_length = integer("min_length", min_length, 2)
        self.max_length = integer("max_length", max_length, self.min_length)
        self.modulus = self.classes = integer("modulus", modulus, 2)
        self.brackets = bool(brackets)
        self.plus, self.minus, self.times, self.equals, self.opening, self.closing = range(
            self.modulus + 1, self.modulus + 7
        )
        self.vocabulary = self.modulus + (7 if self.brackets else 5)

    def _draw(self, generator: np.random.Generator) -> Batch:
        lengths = generator.integers(self.min_length, self.max_length + 1, size=self.batch_size)
        if self.brackets:
            symbols = np.zeros((self.batch_size, self.max_length), int)
            rows, starts = np.arange(self.batch_size), np.zeros(self.batch_size, int)
            values = self._bracketed(generator, symbols, rows, starts, lengths - 1)
        else:
            lengths += lengths % 2
            symbols, values = self._plain(generator, lengths)
        ends = np.arange(symbols.shape[1]) == lengths[:, None] - 1
        symbols[ends] = self.equals
        return symbols, ends * values[:, None], ends

    def _plain(self, generator, lengths):
        """Reads all sequences at once: products are kept back until a plus or minus follows."""
        shape = (self.batch_size, (self.max_length + 1) // 2)
        digits = generator.integers(self.modulus, size=shape)
        operators = generator.integers(self.plus, self.times + 1, size=shape)
        symbols = np.stack([digits + 1, operators], axis=2).reshape(self.batch_size, -1)
        symbols[np.arange(symbols.shape[1]) >= lengths[:, None]] = 0
        total, product = np.zeros(self.batch_size, int), digits[:, 0]
        for sign, digit in zip(symbols[:, 1:-1:2].T, symbols[:, 2::2].T - 1, strict=True):
            times, inside = sign == self.times, digit >= 0
            total = np.where(times | ~inside, total, total + product)
            term = np.select([times, sign == self.minus], [product * digit, -digit], digit)
            product = np.where(inside, term, product) % self.modulus
        return symbols, (total + product) % self.modulus

    def _bracketed(self, generator, symbols, rows, starts, sizes):
        """Writes expressions into segments, one level of all trees at once; returns the values."""
        values = generator.integers(self.modulus, size=rows.size)
        inner = sizes > 4
        self._leaves(symbols, *(x[~inner] for x in (rows, starts, sizes, values)))
        values[(sizes == 2) | (sizes == 4)] *= -1
        if inner.any():
            rows, starts, sizes = rows[inner], starts[inner], sizes[inner]
            left = generator.integers(1, sizes - 3)
            sign = generator.integers(3, size=rows.size)
            symbols[rows, starts] = self.opening
            symbols[rows, starts + 1 + left] = self.plus + sign
            symbols[rows, starts + sizes - 1] = self.closing
            starts = np.concatenate([starts + 1, starts + 2 + left])
            sizes = np.concatenate([left, sizes - 3 - left])
            parts = self._bracketed(generator, symbols, np.tile(rows, 2), starts, sizes)
            a, b = np.split(parts, 2)
            values[inner] = np.choose(sign, [a + b, a - b, a * b])
        return values % self.modulus

    def _leaves(self, symbols, rows, starts, sizes, digits):
        bracket, minus = sizes > 2, sizes % 2 == 0
        symbols[rows[bracket], starts[bracket]] = self.opening
        symbols[rows[bracket], (starts + sizes - 1)[bracket]] = self.closing
        symbols[rows[minus], (starts + bracket)[minus]] = self.minus
        symbols[rows, starts + bracket + minus] = digits + 1


class WordProblem(SymbolTask):
    """What is the product of the elements of a group so far? Asked at every step.

    A5, the even permutations of five, is not solvable; Z60, addition modulo 60, is, and has as many
    elements. Element g is symbol `g + 1`; 0 is the neutral one. Permutations are numbered in
    lexicographic order and the product of p and then q is q[p[i]]. 60 classes.

    Args:
        group: `"A5"` or `"Z60"`. Defaults to `"A5"`.
        length: Integer, at least 1. Defaults to 20. The source has 2 to 20.
        **kwargs: Those of `SymbolTask`; the source's batches are of 512.

    Source: github.com/jopetty/word-problem, `src/generate_data.py`; Merrill, Petty and Sabharwal,
    "The Illusion of State in State-Space Models", 2024, arXiv:2404.08819.
    """

    vocabulary, classes = 61, 60

    def __init__(self, group: str = "A5", length: int = 20, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if group not in _PRODUCTS:
            raise ValueError(f"group must be one of {tuple(_PRODUCTS)}, received {group!r}.")
        self.group = group
        self.length = integer("length", length, 1)
        self._products = _PRODUCTS[group]()

    def _draw(self, generator: np.random.Generator) -> Batch:
        elements = generator.integers(self.classes, size=(self.batch_size, self.length))
        products = elements.copy()
        for step in range(1, self.length):
            products[:, step] = self._products[products[:, step - 1], elements[:, step]]
        return elements + 1, products, np.ones_like(elements)


def _cyclic() -> np.ndarray:
    return np.add.outer(np.arange(60), np.arange(60)) % 60


def _alternating() -> np.ndarray:
    everything = np.array(list(itertools.permutations(range(5))))
    first, second = np.triu_indices(5, 1)
    even = everything[(everything[:, first] > everything[:, second]).sum(axis=1) % 2 == 0]
    numbers = even @ 5 ** np.arange(4, -1, -1)  # ascending, as the order is lexicographic
    products = even[:, even].swapaxes(0, 1)  # [p, q] is q after p
    return np.searchsorted(numbers, products @ 5 ** np.arange(4, -1, -1))


_PRODUCTS = {"A5": _alternating, "Z60": _cyclic}
