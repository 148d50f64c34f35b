"""What is computed: recurrences by family, arguments of each, and what a row of the benchmark is.

Rows of one family take the same arrays and must give the same answers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from arguments import MODES

Shape = tuple[int, ...]

COFFEE, S6, LINEAR, GRU, LSTM = "COFFEE", "S6", "linear", "GRU", "LSTM"
# The scan of S6 alone, without its projections; that of Mamba; Mamba's whole block.
S6_SCAN, MAMBA, BLOCK = "S6 scan", "Mamba", "Mamba block"
OURS, LIMIT, RNN = "ours", "C, one core", "keras.layers.RNN"
TRANSFORMERS = "transformers"

SHAPES = (
    *((512, 16, 16, 8), (512, 25, 25, 2), (32, 784, 32, 1)),
    *((64, 256, 16, 8), (8, 4096, 16, 8), (1, 65536, 16, 8)),
)
# Mamba has twice as many features inside a block as outside, so the scans are the same.
MAMBA_SHAPES = {
    MAMBA: ((4, 512, 64, 16), (1, 2048, 256, 16)),
    BLOCK: ((4, 512, 32, 16), (1, 2048, 128, 16)),
}


def block_weights(dim: int, n: int) -> dict[str, Shape]:
    """Shapes of the weights of Mamba's block, by the names of `MambaMixer`."""
    inner, rank = 2 * dim, -(-dim // 16)
    return {
        "input_projection": (dim, 2 * inner),
        "kernel": (4, inner),
        "bias": (inner,),
        "selection_projection": (inner, rank + 2 * n),
        "step_projection": (rank, inner),
        "step_bias": (inner,),
        "log_transition": (inner, n),
        "skip": (inner,),
        "output_projection": (inner, dim),
    }


_SCANNED = "inputs", "delta", "transition", "input matrix", "output matrix", "skip"
# What rows of a family take, and what they give. Keras' own layers have nothing to compare with.
TAKE = {
    COFFEE: ("inputs", "transition", "gate", "readout", "initial state"),
    S6: ("inputs", "log transition", *(f"{x} projection" for x in ("input", "output", "step"))),
    S6_SCAN: _SCANNED,
    MAMBA: _SCANNED,
    BLOCK: ("inputs", *block_weights(1, 1)),
    LINEAR: ("decay", "inputs", "initial state"),
}
GIVE = dict.fromkeys(TAKE, ("outputs", "final state"))
GIVE |= {BLOCK: ("outputs",), LINEAR: ("states",)}


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
        once: Whether a call that takes longer than the limit is the only one, and is what the table
            has: of a row that compiles nothing and shall be there however slow it is.
        nbytes: Bytes that the function holds between calls, of a shape and a mode.
    """

    name: str
    family: str
    make: Callable[[Shape, str], Callable[..., Any]]
    convert: Callable[[np.ndarray], Any]
    modes: Sequence[str] = MODES
    loops: bool = False
    may_miss: bool = False
    once: bool = False
    nbytes: Callable[[Shape, str], int] = lambda shape, mode: 0

    def bound(self, call: Callable[..., Any], shape: Shape, mode: str, seed: int) -> Callable:
        """What `make` made, with the example of a seed, as a function of no arguments."""
        tensors, grads = (
            tuple(self.convert(x) for x in arrays) for arrays in example(self.family, shape, seed)
        )
        return lambda: call(grads, *tensors) if mode == "training" else call(*tensors)


def shapes_of(family: str) -> tuple[Shape, ...]:
    """Shapes (B, T, D, n) at which a family is timed unless others are asked for."""
    return MAMBA_SHAPES.get(family, SHAPES)


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
        others = _ARGUMENTS[family](random, shape)
        arguments, results = [inputs, *others], [inputs.shape, (batch, dim, n)]
        results = results[: len(GIVE[family])]
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


def _selective_arguments(random: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    batch, length, dim, n = shape
    matrices = [random.normal(size=(batch, length, n)) for _ in range(2)]
    transition = np.broadcast_to(-np.arange(1.0, n + 1), (dim, n))
    delta = _steps(random, (batch, length, dim))
    return [delta, transition, *matrices, random.normal(size=dim)]


def _block_arguments(random: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    _, _, dim, n = shape
    shapes = block_weights(dim, n)
    arrays = {name: _weight(random, x) for name, x in shapes.items()}
    steps = _steps(random, shapes["step_bias"])
    arrays["step_bias"] = steps + np.log(-np.expm1(-steps))  # softplus of it is `steps`
    arrays["log_transition"] = np.broadcast_to(np.log(np.arange(1, n + 1)), (2 * dim, n))
    return list(arrays.values())


def _steps(random: np.random.Generator, shape: Shape) -> np.ndarray:
    """Step sizes, where Mamba's start."""
    return np.exp(random.uniform(np.log(0.001), np.log(0.1), shape))


def _linear_arguments(random: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    batch, length, dim, n = shape
    inputs = random.normal(size=(batch, length, dim * n))
    return [random.uniform(0.5, 1, inputs.shape), inputs, random.normal(size=(batch, dim * n))]


def _gated_shapes(family: str, dim: int, units: int) -> list[Shape]:
    """Kernel, recurrent kernel and bias of a layer of Keras."""
    gates = {GRU: 3, LSTM: 4}[family] * units
    return [(dim, gates), (units, gates), (2, gates) if family == GRU else (gates,)]


_ARGUMENTS = {
    COFFEE: _coffee_arguments,
    S6: _s6_arguments,
    S6_SCAN: _selective_arguments,
    MAMBA: _selective_arguments,
    BLOCK: _block_arguments,
}


def _weight(random: np.random.Generator, shape: Shape) -> np.ndarray:
    return random.normal(size=shape) / np.sqrt(shape[0])
