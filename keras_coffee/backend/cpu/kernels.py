"""The kernels in C as a framework calls them: which function, and which arrays it fills.

A kernel is known by the name of its C file. It knows arrays by their shapes alone, given in one
order: sequences, then weights, with None where one is absent.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from keras_coffee.backend.cpu import compiler
from keras_coffee.backend.cpu.blocks import Blocks, LinearBlocks

Shape = tuple[int, ...]
Shapes = tuple[Any, ...]  # None where there is no array


class Recurrence(NamedTuple):
    """What a C file computes.

    Attributes:
        sequences: Names of its sequences, in order; the first one has the inputs `(B, T, D)`.
        weights: Names of its weights, in order: `(D, n)`, or `(D, 1)` where the states of a
            feature share it. The first one is always there and `(D, n)`.
        shared: Sequences `(B, T, n)` that all features share.
        constant: Sequences without a gradient.
    """

    sequences: tuple[str, ...]
    weights: tuple[str, ...]
    shared: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()


RECURRENCES = {
    "coffee": Recurrence(
        sequences=("inputs", "gate_inputs", "mask"),
        weights=("transition", "gate", "readout", "input_matrix", "output_gate", "gate_bias"),
        constant=("mask",),
    ),
    "selective": Recurrence(
        sequences=("inputs", "delta", "varying_input_matrix", "varying_output_matrix"),
        weights=("transition", "input_matrix", "output_matrix", "skip", "delta_bias"),
        shared=("varying_input_matrix", "varying_output_matrix"),
    ),
}

# The values of an option, in the order of the numbers that its macro takes.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "feedback": (None, "sigmoid", "linear"),
    "discretization": ("zoh", "euler", "mamba"),
    "delta_softplus": (False, True),
}
_BITS = {"float32": 32, "float64": 64, "complex64": 32, "complex128": 64}


class Result(NamedTuple):
    """An array that a kernel fills. `is_sum`: it is the sum over axis 0 of what is filled."""

    shape: Shape
    is_sum: bool = False


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One direction of a recurrence, for arrays of certain shapes.

    Attributes:
        direction: `"forward"` or `"backward"`.
        library: The compiled C file.
        blocks: How the work is divided.
        results: What it fills, in order; None where there is nothing to fill.
    """

    direction: str
    library: Any
    blocks: Blocks
    results: Sequence[Result | None]

    @property
    def function(self) -> Any:
        """What fills the results, given the addresses of the arguments and of the results."""
        return getattr(self.library, f"scan_{self.direction}")

    def summed(self, arrays: Iterable[Any]) -> list[Any]:
        """What the arrays that were filled stand for."""
        pairs = zip(self.results, arrays, strict=True)
        return [x.sum(0) if result and result.is_sum else x for result, x in pairs]


def is_available(include: str | None = None) -> bool:
    """Whether there is a compiler for them."""
    # As most layers have them.
    sequences, weights = ((), None, None), ((), (), (), None, None, None)
    macros = _macros("coffee", sequences, weights, "float32", {"feedback": "sigmoid"})
    return compiler.is_available("coffee.c", include, **macros)


@functools.lru_cache(maxsize=1024)
def scan(
    direction: str,
    name: str,
    shapes: Shapes,
    *,
    dtype: str,
    keep: int,
    include: str | None = None,
    **options: Any,
) -> Kernel:
    """One direction of a recurrence of `RECURRENCES`.

    The arguments of `"forward"` are sequences, weights and the initial state; it fills outputs, the
    final state and the states that are kept. Those of `"backward"` are the gradients of outputs and
    final state, the states that are kept, sequences and weights; it fills the gradients of
    sequences, weights and the initial state.

    Args:
        direction: `"forward"` or `"backward"`.
        name: The recurrence.
        shapes: Those of the arguments.
        dtype: `"float32"` or `"float64"`, of all arrays.
        keep: Steps between two states that are kept for the gradient; 0 keeps none.
        include: The folder with XLA's headers if XLA is to call it.
        **options: Those of the recurrence.
    """
    own = shapes[:-1] if direction == "forward" else shapes[3:]
    count = len(RECURRENCES[name].sequences)
    sequences, weights = own[:count], own[count:]
    (batch, length, dim), (_, n) = sequences[0], weights[0]
    blocks = Blocks(batch, length, dim, n, keep)
    state = Result((batch, dim, n))
    results: list[Result | None] = [Result(sequences[0]), state, Result((blocks.kept,))]
    if direction == "backward":
        results = [*_gradients(RECURRENCES[name], sequences, weights, blocks), state]
    macros = _macros(name, sequences, weights, dtype, options)
    return Kernel(direction, compiler.library(f"{name}.c", include, **macros), blocks, results)


def _gradients(
    recurrence: Recurrence, sequences: Shapes, weights: Shapes, blocks: Blocks
) -> Iterator[Result | None]:
    # Blocks beside each other have parts of a sum over features; below each other, over sequences.
    for name, shape in zip(recurrence.sequences, sequences, strict=True):
        if shape is None or name in recurrence.constant:
            yield None
        elif name in recurrence.shared:
            yield _sum(blocks.columns, shape)
        else:
            yield Result(shape)
    for shape in weights:
        yield None if shape is None else _sum(blocks.rows, shape)


def _sum(parts: int, shape: Shape) -> Result:
    return Result(shape) if parts == 1 else Result((parts, *shape), is_sum=True)


def _macros(
    name: str, sequences: Shapes, weights: Shapes, dtype: str, options: dict[str, Any]
) -> dict[str, int]:
    recurrence = RECURRENCES[name]
    names, shapes = recurrence.sequences + recurrence.weights, (*sequences, *weights)
    present = {f"HAS_{x.upper()}": s is not None for x, s in zip(names, shapes, strict=True)}
    chosen = {x.upper(): _OPTIONS[x].index(value) for x, value in options.items()}
    return {"REAL_BITS": _BITS[dtype], **present, **chosen}


@functools.lru_cache(maxsize=1024)
def linear(
    direction: str,
    decay: Shape,
    inputs: Shape,
    *,
    dtype: str,
    reverse: bool,
    include: str | None = None,
) -> Kernel:
    """One direction of the linear recurrence.

    The arguments of `"forward"` are decay, inputs and the initial state; it fills the states. Those
    of `"backward"` are the gradient of the states, the states, decay and the initial state; it
    fills the gradients of decay, inputs and the initial state, complex conjugates of derivatives.

    Args:
        direction: `"forward"` or `"backward"`.
        decay: Its shape, that of the inputs, but that the first two axes may each be 1: the same
            for all sequences, or for all steps.
        inputs: Their shape, `(B, T, ...)`.
        dtype: Of all arrays, real or complex.
        reverse: Whether time runs from the last step to the first.
        include: The folder with XLA's headers if XLA is to call it.
    """
    batch, length, *rest = inputs
    is_per_sequence, is_per_step = decay[0] == batch, decay[1] == length
    blocks = LinearBlocks(batch, length, math.prod(rest), shares_decay=not is_per_sequence)
    results: list[Result | None] = [Result(inputs)]
    if direction == "backward":
        grad_decay = Result(decay) if is_per_sequence else _sum(blocks.rows, decay)
        results = [grad_decay, Result(inputs), Result((batch, *rest))]
    macros = {
        "REAL_BITS": _BITS[dtype],
        "IS_COMPLEX": dtype.startswith("complex"),
        "REVERSE": reverse,
        "DECAY_PER_SEQUENCE": is_per_sequence,
        "DECAY_PER_STEP": is_per_step,
    }
    return Kernel(direction, compiler.library("linear.c", include, **macros), blocks, results)
