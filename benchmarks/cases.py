"""What is computed: recurrences by family, arguments of each, and what a row of the benchmark is.

Rows of one family take the same arrays and must give the same answers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Shape = tuple[int, ...]

MODES = ("inference", "training")
COFFEE, S6, LINEAR, GRU, LSTM = "COFFEE", "S6", "linear", "GRU", "LSTM"
OURS, LIMIT, RNN = "ours", "C, one core", "keras.layers.RNN"
# What rows of a family take, and what they give. Keras' own layers have nothing to compare with.
TAKE = {
    COFFEE: ("inputs", "transition", "gate", "readout", "initial state"),
    S6: ("inputs", "log transition", *(f"{x} projection" for x in ("input", "output", "step"))),
    LINEAR: ("decay", "inputs", "initial state"),
}
GIVE = {family: ("outputs", "final state") for family in (COFFEE, S6)} | {LINEAR: ("states",)}


class Unavailable(Exception):
    """A row cannot be had here; the text says why, and how it could."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A way to compute a recurrence.

    Attributes:
        make: From a shape and a mode, the function that is timed: `run(*tensors)` in inference,
            `run(grads, *tensors)` in training, which returns the gradients by all tensors too.
        convert: From an array of NumPy to what that function takes.
        loops: Whether a step may cost so much that a few are tried before all are.
        may_miss: Whether other answers leave the row out, rather than end the program: iterations
            of somebody else that stop too early.
        nbytes: Bytes that the function holds between calls, of a shape and a mode.
    """

    name: str
    family: str
    make: Callable[[Shape, str], Callable[..., Any]]
    convert: Callable[[np.ndarray], Any]
    modes: Sequence[str] = MODES
    loops: bool = False
    may_miss: bool = False
    nbytes: Callable[[Shape, str], int] = lambda shape, mode: 0

    def bound(self, call: Callable[..., Any], shape: Shape, mode: str, seed: int) -> Callable:
        """What `make` made, with the example of a seed, as a function of no arguments."""
        tensors, grads = (
            tuple(self.convert(x) for x in arrays) for arrays in example(self.family, shape, seed)
        )
        return lambda: call(grads, *tensors) if mode == "training" else call(*tensors)


def names(family: str, mode: str) -> list[str]:
    """What the answers of a row are."""
    gradients = TAKE[family] if mode == "training" else ()
    return [*GIVE[family], *(f"gradient by {name}" for name in gradients)]


def example(family: str, shape: Shape, seed: int) -> tuple[list, list]:
    """Arguments of a family's rows, and gradients of what they return, all in float32."""
    random = np.random.default_rng(seed)
    batch, length, dim, n = shape
    inputs = random.normal(size=(batch, length, dim))
    results = [(batch, length, dim * n)]
    if family == LINEAR:
        arguments = _linear_arguments(random, shape)
    elif family in TAKE:
        others = {COFFEE: _coffee_arguments, S6: _s6_arguments}[family](random, shape)
        arguments, results = [inputs, *others], [inputs.shape, (batch, dim, n)]
    else:
        arguments = [inputs, *(_weight(random, x) for x in _gated_shapes(family, dim, dim * n))]
    grads = [random.normal(size=x) for x in results]
    return tuple([np.asarray(x, "float32") for x in y] for y in (arguments, grads))


def _coffee_arguments(random: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    batch, _, dim, n = shape
    # Contracting, so that rounding stays small over any number of steps, and so that Newton's
    # method, which one peer uses, takes few iterations.
    transition = random.uniform(-1, -0.5, size=(dim, n))
    gate, readout = random.normal(scale=0.5, size=(dim, n)), random.normal(size=(dim, n))
    return [transition, gate, readout, random.normal(size=(batch, dim, n))]


def _s6_arguments(random: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    _, _, dim, n = shape
    log_transition = np.broadcast_to(np.log(np.arange(1, n + 1)), (dim, n))
    return [log_transition, *(_weight(random, x) for x in ((dim, n), (dim, n), (dim, dim)))]


def _linear_arguments(random: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    batch, length, dim, n = shape
    inputs = random.normal(size=(batch, length, dim * n))
    return [random.uniform(0.5, 1, inputs.shape), inputs, random.normal(size=(batch, dim * n))]


def _gated_shapes(family: str, dim: int, units: int) -> list[Shape]:
    """Kernel, recurrent kernel and bias of a layer of Keras."""
    gates = {GRU: 3, LSTM: 4}[family] * units
    return [(dim, gates), (units, gates), (2, gates) if family == GRU else (gates,)]


def _weight(random: np.random.Generator, shape: Shape) -> np.ndarray:
    return random.normal(size=shape) / np.sqrt(shape[0])
