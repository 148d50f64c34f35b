"""Uniform sequences in which a pattern occurs at a given position and nowhere else."""

import numpy as np


class PatternSampler:
    """Draws positions and free symbols so that the pattern occurs there and nowhere else.

    A symbol's class is its index among the pattern's distinct letters; all other symbols form the
    last class. State q of the automaton says that the last q symbols are the longest start of the
    pattern just seen. Let h_k(q) count the ways to put k symbols and then the pattern after state
    q so that its one occurrence is the last. Then h_k(q) = Σ_c ways(q, c) h_{k-1}(next(q, c)),
    and a class's probability is its share of this sum. The counts are kept as logarithms, for
    they overflow at lengths of a few hundred.
    """

    def __init__(self, pattern: np.ndarray, others: int, free_length: int, positions: int) -> None:
        self._size, self._free_length = len(pattern), free_length
        self._next = _automaton(pattern)
        ways = np.where(self._next == self._size, 0, 1)
        ways[:, -1] = others
        with np.errstate(divide="ignore"):
            log_ways = np.log(ways)
            log_counts = self._count(pattern, log_ways)
        shares = (log_ways + log_counts[:-1, self._next]).reshape(-1, log_ways.shape[1])
        self._thresholds = np.ascontiguousarray(_cumulative(shares)[:, :-1].T)
        first = np.arange(positions)
        weights = log_counts[first, 0] + log_counts[free_length - first, self._size]
        self._position_thresholds = _cumulative(weights)

    def _count(self, pattern: np.ndarray, log_ways: np.ndarray) -> np.ndarray:
        state, alone = np.arange(self._size + 1), np.ones(self._size + 1, bool)
        for letter in pattern[:-1]:
            state = self._next[state, letter]
            alone &= state != self._size
        log_counts = np.empty((self._free_length + 1, self._size + 1))
        log_counts[0] = np.log(alone)
        for k in range(self._free_length):
            log_counts[k + 1] = np.logaddexp.reduce(log_ways + log_counts[k][self._next], axis=1)
        return log_counts

    def draw(self, generator: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
        starts = self._position_thresholds.searchsorted(generator.random(batch), side="right")
        uniform = generator.random((self._free_length, batch))
        classes = np.empty((self._free_length, batch), np.intp)
        states = self._size + 1
        state, row = np.zeros(batch, np.intp), (starts - 1) * states
        for k in range(self._free_length):
            begun = starts == k
            state[begun], row[begun] = self._size, (self._free_length - k - 1) * states
            thresholds = self._thresholds.take(row + state, axis=1)
            np.add.reduce(uniform[k] >= thresholds, axis=0, out=classes[k])
            state = self._next[state, classes[k]]
            row -= states
        return starts, classes.T


def _automaton(pattern: np.ndarray) -> np.ndarray:
    """Next state for every state 0 to len(pattern) and class (Knuth, Morris and Pratt)."""
    table = np.zeros((len(pattern) + 1, pattern.max() + 2), np.intp)
    table[0, pattern[0]] = 1
    fallback = 0
    for state, letter in enumerate(pattern[1:], start=1):
        table[state] = table[fallback]
        table[state, letter] = state + 1
        fallback = table[fallback, letter]
    table[-1] = table[fallback]
    return table


def _cumulative(log_weights: np.ndarray) -> np.ndarray:
    """Cumulative probabilities on the last axis, exactly 1 from the last possible entry on."""
    # Rows of states that are never entered have no weight at all: they become zeros, not NaN.
    peak = log_weights.max(axis=-1, keepdims=True)
    total = np.exp(log_weights - np.where(np.isfinite(peak), peak, 0.0)).cumsum(axis=-1)
    return total / np.maximum(total[..., -1:], 1.0)
