"""How a scan is divided among vectors and threads: the `sizes` of common.h."""

import concurrent.futures
import ctypes
import dataclasses
import functools
from collections.abc import Callable, Sequence

# States that are processed side by side: enough vectors to cover the latency of a step, few enough
# for weights, sums and states to stay in the innermost cache. And lanes, each with its own
# sequences: the cache can hold only so many apart.
_STATES = 256
_LANES = range(32, 129)
_VECTOR = 16  # as in common.h

# Steps between two states that are kept for the gradient. To compute fifteen in sixteen again takes
# about as long as to write and read them, and no longer where memory is fresh; and a sixteenth of
# the memory is enough.
KEEP = 16

# Parts of a sum over sequences: enough for threads. Fewer where each may be as large as a sequence.
_SUMS = 64
_PARTS = 16

# Work worth a second thread: some hundred microseconds of it.
_STATES_PER_THREAD = 2**18

# For a caller in C that divides the work itself, when it knows the sizes.
MACROS = {
    "BLOCK_STATES": _STATES,
    "LEAST_LANES": _LANES[0],
    "MOST_LANES": _LANES[-1],
    "MOST_PARTS": _PARTS,
    "MOST_SUMS": _SUMS,
}


class Sizes(ctypes.Structure):
    """The structure of the same name in common.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("first", "last", "sequences", "features", "together")
        + ("batch", "length", "dim", "states", "keep")
    ]


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A scan over `(B, T, D)` with n states for each feature, in blocks.

    The blocks depend on the sizes alone, so that results do not depend on the number of threads.
    `has_rows`: at each step a sequence has numbers that all features share.
    """

    batch: int
    length: int
    dim: int
    states: int
    keep: int
    has_rows: bool = False

    @property
    def lanes(self) -> int:
        """Lanes that a block of several sequences should have."""
        return min(max(_STATES // max(1, self.states), _LANES[0]), _LANES[-1])

    @property
    def features(self) -> int:
        """Features in a block: as many as there may be, or equal parts in whole vectors.

        Blocks of 32 took up to twice as long: they read short pieces of every step.
        """
        parts = -(-self.dim // _LANES[-1])
        return max(1, self.dim) if parts <= 1 else -(-self.dim // (parts * _VECTOR)) * _VECTOR

    @property
    def sequences(self) -> int:
        """Sequences in a block.

        One sequence reads what its features share as one number for a row of lanes. That is worth
        more than a second sequence beside it, if half of the states fill whole vectors.
        """
        if self.has_rows and self.dim >= _VECTOR and self.dim * self.states >= _STATES // 2:
            return 1
        return max(1, min(self.batch, self.lanes // self.features))

    @functools.cached_property
    def rows(self) -> int:
        """Blocks of sequences."""
        return -(-self.batch // self.sequences)

    @functools.cached_property
    def columns(self) -> int:
        """Blocks of features."""
        return -(-self.dim // self.features)

    @functools.cached_property
    def together(self) -> int:
        """Rows of blocks whose sums over sequences are one part."""
        return max(1, -(-self.rows // _SUMS))

    @property
    def parts(self) -> int:
        """Parts of a sum over sequences."""
        return -(-self.rows // self.together)

    @property
    def chunks(self) -> int:
        """States that are kept of a sequence."""
        return -(-self.length // self.keep) if self.keep else 0

    @property
    def kept(self) -> int:
        """Numbers that are kept for the gradient."""
        return self.batch * self.chunks * self.dim * self.states

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """What follows `first` and `last` in `Sizes`."""
        whole = self.batch, self.length, self.dim, self.states, self.keep
        return self.sequences, self.features, self.together, *whole

    def run(
        self, function: Callable[..., int], pointers: Sequence[int | None], threads: int
    ) -> None:
        """Calls a kernel for all blocks, with the addresses of its arrays."""
        arrays = (ctypes.c_void_p * len(pointers))(*pointers)
        count = self.rows * self.columns
        # What belongs to one part of a sum goes to one thread.
        unit = self.together * self.columns if self.together > 1 else 1
        units = -(-count // unit)
        work = self.batch * self.length * self.dim * self.states
        threads = max(1, min(threads, units, work // _STATES_PER_THREAD))
        bounds = [min(units * k // threads * unit, count) for k in range(threads + 1)]

        def part(first: int, last: int) -> int:
            return function(ctypes.byref(Sizes(first, last, *self.sizes)), arrays)

        if threads == 1:
            failures = [function(ctypes.byref(Sizes(0, count, *self.sizes)), arrays)]
        else:
            # Threads of this call alone: they cost some microseconds, and survive no fork.
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                failures = list(pool.map(part, bounds[:-1], bounds[1:]))
        if any(failures):
            raise MemoryError(f"No memory for {self.keep} states of {threads} blocks.")


@dataclasses.dataclass(frozen=True)
class LinearBlocks(Blocks):
    """The same for linear.c: one state for each feature, none kept, no sequences side by side.

    `shares_decay`: the gradient of the decay is a sum over sequences, of which each row of blocks
    has a part.
    """

    states: int = 1
    keep: int = 0
    shares_decay: bool = False

    @property
    def sequences(self) -> int:
        return max(1, -(-self.batch // _PARTS)) if self.shares_decay else 1

    @property
    def together(self) -> int:
        return 1
