"""The kernels in C as a framework calls them: which function, and which arrays it fills.

A kernel is known by the name of its C file. It knows arrays by their shapes alone, given in one
order: sequences, then weights, with None where one is absent.
"""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from keras_coffee.backend.cpu import compiler
from keras_coffee.backend.cpu.blocks import MACROS, Blocks, LinearBlocks

Shape = tuple[int, ...]
Shapes = tuple[Any, ...]  # None where there is no array


class Recurrence(NamedTuple):
    """What a C file computes.

    Attributes:
        sequences: Names of its sequences, in order; the first one has the inputs `(B, T, D)`.
        weights: Names of its weights, in order: `(D, n)`, or `(D, 1)` where the states of a
            feature share it. The first one is always there and `(D, n)`.
        per_feature: The weights `(D, 1)`.
        shared: Sequences `(B, T, n)` that all features share.
        constant: Sequences `(B, T)` without a gradient: masks and resets.
    """

    sequences: tuple[str, ...]
    weights: tuple[str, ...]
    per_feature: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    constant: tuple[str, ...] = ("mask", "reset")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays, in order."""
        return self.sequences + self.weights

    def axes(self, name: str) -> str:
        """Those of an array, by their letters."""
        if name in self.weights:
            return "D1" if name in self.per_feature else "Dn"
        return "BT" if name in self.constant else "BTn" if name in self.shared else "BTD"

    def has_gradient(self, name: str) -> bool:
        """Whether there is a gradient by an array."""
        return name not in self.constant

    def sum_of_gradient(self, name: str) -> str | None:
        """Over which blocks the gradient by an array is summed, if it is.

        Columns of blocks have parts of a sum over features; as many rows, over sequences.
        """
        return "parts" if name in self.weights else "columns" if name in self.shared else None

    def has_rows(self, present: Iterable[str]) -> bool:
        """Whether one of the arrays that are there has numbers that all features share."""
        return not set(self.shared).isdisjoint(present)


RECURRENCES = {
    "coffee": Recurrence(
        sequences=("inputs", "gate_inputs", "mask", "reset"),
        weights=("transition", "gate", "readout", "input_matrix", "output_gate", "gate_bias"),
    ),
    "selective": Recurrence(
        sequences=("inputs", "delta", "varying_input_matrix", "varying_output_matrix", "reset"),
        weights=("transition", "input_matrix", "output_matrix", "skip"),
        per_feature=("skip",),
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


def is_available(caller: compiler.Caller = compiler.PYTHON) -> bool:
    """Whether there is a compiler for them, and they are not switched off."""
    recurrence = RECURRENCES["coffee"]
    present = [x in _OF_MOST_LAYERS for x in recurrence.names]
    macros = _macros("coffee", present, "float32", {"feedback": "sigmoid"})
    return not is_switched_off() and compiler.is_available("coffee.c", caller, **macros)


_OF_MOST_LAYERS = "inputs", "transition", "gate", "readout"


def is_switched_off() -> bool:
    """Whether the environment variable `KERAS_COFFEE_KERNELS` is 0."""
    value = os.environ.get("KERAS_COFFEE_KERNELS", "1")
    if value not in ("0", "1"):
        raise ValueError(
            f"The environment variable KERAS_COFFEE_KERNELS is {value!r}. Set it to 0, and "
            "recurrences run without kernels in C; or to 1, the default."
        )
    return value == "0"


@functools.lru_cache(maxsize=1024)
def scan(
    direction: str,
    name: str,
    shapes: Shapes,
    *,
    dtype: str,
    keep: int,
    caller: compiler.Caller = compiler.PYTHON,
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
        caller: Who is to call it.
        **options: Those of the recurrence.
    """
    recurrence = RECURRENCES[name]
    own = shapes[:-1] if direction == "forward" else shapes[3:]
    names = recurrence.names
    shape_of = dict(zip(names, own, strict=True))
    (batch, length, dim), (_, n) = shape_of[names[0]], shape_of[recurrence.weights[0]]
    has_rows = recurrence.has_rows(x for x in names if shape_of[x] is not None)
    blocks = Blocks(batch, length, dim, n, keep, has_rows)

    def gradient(name: str) -> Result | None:
        if shape_of[name] is None or not recurrence.has_gradient(name):
            return None
        parts = recurrence.sum_of_gradient(name)
        return _sum(getattr(blocks, parts), shape_of[name]) if parts else Result(shape_of[name])

    state = Result((batch, dim, n))
    results: list[Result | None] = [Result(shape_of[names[0]]), state, Result((blocks.kept,))]
    if direction == "backward":
        results = [*map(gradient, names), state]
    macros = _macros(name, [x is not None for x in own], dtype, options)
    return Kernel(direction, compiler.library(f"{name}.c", caller, **macros), blocks, results)


def _sum(parts: int, shape: Shape) -> Result:
    return Result(shape) if parts == 1 else Result((parts, *shape), is_sum=True)


def _macros(
    name: str, present: Sequence[bool], dtype: str, options: dict[str, Any]
) -> dict[str, int]:
    recurrence = RECURRENCES[name]
    names = zip(recurrence.names, present, strict=True)
    has = {f"HAS_{x.upper()}": is_there for x, is_there in names}
    chosen = {x.upper(): _OPTIONS[x].index(value) for x, value in options.items()}
    return {"REAL_BITS": _BITS[dtype], **has, **chosen}


@functools.lru_cache(maxsize=1024)
def linear(
    direction: str,
    decay: Shape,
    inputs: Shape,
    *,
    dtype: str,
    reverse: bool,
    caller: compiler.Caller = compiler.PYTHON,
) -> Kernel:
    """One direction of the linear recurrence.

    The arguments of `"forward"` are decay, inputs and the initial state; it fills the states. Those
    of `"backward"` are the gradient of the states, the states, decay and the initial state; it
    fills the gradients of decay, inputs and the initial state, complex conjugates of derivatives.

    Args:
        direction: `"forward"` or `"backward"`.
        decay: Its shape, that of the inputs. Each of the first two axes may be 1: the same decay
            for all sequences, or for all steps.
        inputs: Their shape, `(B, T, ...)`.
        dtype: Of all arrays, real or complex.
        reverse: Whether time runs from the last step to the first.
        caller: Who is to call it.
    """
    batch, length, *rest = inputs
    is_per_sequence, is_per_step = decay[0] == batch, decay[1] == length
    blocks = LinearBlocks(batch, length, math.prod(rest), shares_decay=not is_per_sequence)
    results: list[Result | None] = [Result(inputs)]
    if direction == "backward":
        grad_decay = Result(decay) if is_per_sequence else _sum(blocks.parts, decay)
        results = [grad_decay, Result(inputs), Result((batch, *rest))]
    macros = _linear_macros(dtype, reverse, is_per_sequence, is_per_step)
    return Kernel(direction, compiler.library("linear.c", caller, **macros), blocks, results)


def _linear_macros(
    dtype: str, reverse: bool, is_per_sequence: bool, is_per_step: bool
) -> dict[str, int]:
    return {
        "REAL_BITS": _BITS[dtype],
        "IS_COMPLEX": dtype.startswith("complex"),
        "REVERSE": reverse,
        "DECAY_PER_SEQUENCE": is_per_sequence,
        "DECAY_PER_STEP": is_per_step,
    }


# For a caller in C that may know shapes only when it runs, what `scan` and `linear` say of shapes:
# tensorflow.h has the language.


def scan_library(
    name: str, present: Sequence[bool], caller: compiler.Caller, *, dtype: str, **options: Any
) -> Any:
    """Both directions of a recurrence of `RECURRENCES`.

    Args:
        name: The recurrence.
        present: Which of its sequences and weights are there, in order.
        caller: Who is to call it.
        dtype: `"float32"` or `"float64"`, of all arrays.
        **options: Those of the recurrence.
    """
    recurrence = RECURRENCES[name]
    names = recurrence.names
    arguments, gradients = [], []
    for x, is_there in zip(names, present, strict=True):
        arguments.append(f"{x}:{recurrence.axes(x)}" if is_there else "-")
        has_gradient = is_there and recurrence.has_gradient(x)
        parts = recurrence.sum_of_gradient(x)
        gradients.append((f"{x}/{parts}" if parts else x) if has_gradient else "-")
    forward = [*arguments, "state:BDn", ">", names[0], "state", "kept"]
    grads = "grad_outputs:BTD", "grad_state:BDn", "kept:K"
    backward = [*grads, *arguments, ">", *gradients, "grad_state"]
    macros = _macros(name, present, dtype, options)
    macros["HAS_ROWS"] = recurrence.has_rows(itertools.compress(names, present))
    return _library(name, caller, macros, forward, backward)


def linear_library(
    caller: compiler.Caller, *, dtype: str, reverse: bool, is_per_sequence: bool, is_per_step: bool
) -> Any:
    """Both directions of the linear recurrence, for decays as `linear` takes them."""
    decay = f"decay:{'B' if is_per_sequence else '1'}{'T' if is_per_step else '1'}*"
    forward = [decay, "inputs:BT*", "state:B*", ">", "inputs"]
    backward = ["grad_states:BT*", "states:BT*", decay, "state:B*", ">"]
    backward += ["decay" if is_per_sequence else "decay/parts", "states", "state"]
    macros = _linear_macros(dtype, reverse, is_per_sequence, is_per_step)
    return _library("linear", caller, macros, forward, backward)


def _library(
    name: str,
    caller: compiler.Caller,
    macros: dict[str, int],
    forward: Sequence[str],
    backward: Sequence[str],
) -> Any:
    words = {"FORWARD": " ".join(forward), "BACKWARD": " ".join(backward)}
    return compiler.library(f"{name}.c", caller, **macros, **words, **MACROS)
