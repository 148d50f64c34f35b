"""What is checked and timed: cases, their random data, and what a step of each costs at least."""

import dataclasses
import functools
import importlib
import math

import numpy as np

from gpu_parts import reference

COFFEE, S6 = "COFFEE", "S6"
INFERENCE, TRAINING, RECOMPUTE = "inference", "training", "training, recompute"
MODES = (INFERENCE, TRAINING, RECOMPUTE)
OPTIONS = ("mask", "input_matrix", "output_gate")

# (B, T, D, n). The first fills the card; the others are those of bench.py.
SHAPES = (
    *((512, 256, 128, 8), (512, 16, 16, 8), (512, 25, 25, 2), (32, 784, 32, 1)),
    *((64, 256, 16, 8), (8, 4096, 16, 8), (1, 65536, 16, 8)),
)
DRY_SHAPES = ((1, 3, 2, 2),)

# Of the largest element: sums in float32 in another order, and exponentials by the card.
TOLERANCE = 1e-4
# Results in low precision are off by half a unit of their last place, too.
ROUNDING = {"float32": 0, "bfloat16": 2.0**-8, "float16": 2.0**-11}

# Shapes of the checks: many programs; full tiles of 32 pairs and several warps; numbers that are no
# powers of two; more states than a lane has; several windows of the parallel kernels.
PLACES = {
    "usual": (3, 67, 37, 8),
    "full tiles": (512, 33, 67, 8),
    "odd": (3, 65, 19, 3),
    "many states": (2, 65, 5, 20),
    "windows": (2, 1100, 3, 8),
}
DRY_PLACES = {
    "usual": (2, 5, 2, 2),
    "full tiles": (2, 3, 2, 2),
    "odd": (1, 3, 2, 3),
    "many states": (1, 2, 2, 5),
    "windows": (1, 9, 2, 2),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A recurrence with its options; `keep` as the kernels have it, or "sqrt" of the steps."""

    family: str
    place: str = "usual"
    keep: int | str = 1
    dtype: str = "float32"
    feedback: str | None = "sigmoid"
    options: tuple[str, ...] = ()
    discretization: str = "zoh"
    varying: tuple[bool, bool] = (True, True)
    gate_scale: float = 0.5

    @property
    def name(self) -> str:
        if self.family == COFFEE:
            what = [f"feedback {self.feedback}", *self.options]
            what += [f"gate scale {self.gate_scale:g}"] if self.gate_scale != 0.5 else []
        else:
            kinds = ["over time" if varying else "fixed" for varying in self.varying]
            what = [self.discretization, f"B {kinds[0]}, C {kinds[1]}"]
        return ", ".join([self.family, *what, f"keep {self.keep}", self.dtype, self.place])


def cases(place: str) -> list[Case]:
    """What is checked at `place`, the most important first."""
    found = [Case(family, place, keep) for family in (COFFEE, S6) for keep in (1, 0, "sqrt")]
    for feedback in ("sigmoid", "linear", None):
        if feedback != "sigmoid":
            found.append(Case(COFFEE, place, feedback=feedback))
        found.append(Case(COFFEE, place, "sqrt", feedback=feedback, options=OPTIONS))
    found += [Case(COFFEE, place, options=(option,)) for option in OPTIONS]
    found += [Case(S6, place, varying=x) for x in ((True, False), (False, True), (False, False))]
    found.append(Case(S6, place, "sqrt", discretization="euler", varying=(False, False)))
    found += [Case(family, place, dtype="bfloat16") for family in (COFFEE, S6)]
    return found


def other_places() -> list[Case]:
    """More checks, of how the kernels in order cut up the work."""
    found = [Case(x, place) for place in ("full tiles", "odd", "many states") for x in (COFFEE, S6)]
    return [*found, Case(COFFEE, "odd", dtype="float16", options=OPTIONS)]


@dataclasses.dataclass
class Problem:
    """Arrays of a case, as the kernels take them, all float32.

    Those that a kernel is given in low precision (inputs, gradient by the outputs) are rounded to
    it already.
    """

    tensors: tuple
    grads: tuple
    options: dict
    keep: int
    names: tuple[str, ...]


class _Middle:
    """In place of a generator of random numbers: the middle of each distribution, at once."""

    def normal(self, size):
        return np.zeros(size)

    def uniform(self, low=0.0, high=1.0, size=()):
        return np.full(size, (low + high) / 2)


def problem(case: Case, shape: tuple, seed: int | None = 0) -> Problem:
    """With random data, or the same number everywhere if there is no seed."""
    batch, length, dim, n = shape
    random = _Middle() if seed is None else np.random.default_rng(seed)
    make = _coffee if case.family == COFFEE else _selective
    tensors, options, names = make(case, shape, random)
    grads = random.normal(size=(batch, length, dim)), random.normal(size=(batch, dim, n))
    tensors = [x if x is None else x.astype("float32") for x in tensors]
    tensors[0] = rounded(tensors[0], case.dtype)
    grads = rounded(grads[0], case.dtype), grads[1].astype("float32")
    keep = keep_of(RECOMPUTE, length) if case.keep == "sqrt" else case.keep
    names = ("outputs", "final state", *(f"gradient by {name}" for name in names))
    return Problem(tuple(tensors), grads, options, keep, names)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """To what `dtype` can hold, in float32."""
    if dtype == "bfloat16":
        dtype = importlib.import_module("ml_dtypes").bfloat16
    return array.astype("float32").astype(dtype).astype("float32")


@functools.lru_cache(maxsize=64)
def expected(case: Case, shape: tuple) -> tuple:
    """Outputs, final state and gradients in float64, whatever is kept."""
    if case.keep != 1:
        return expected(dataclasses.replace(case, keep=1), shape)
    data = problem(case, shape)
    compute = reference.coffee if case.family == COFFEE else reference.selective
    return compute(*data.tensors, *data.grads, **data.options)


def _coffee(case: Case, shape: tuple, random: np.random.Generator):
    batch, length, dim, n = shape
    inputs = random.normal(size=(batch, length, dim))
    state = random.normal(size=(batch, dim, n))
    gate = case.gate_scale * random.normal(size=(dim, n))
    if case.feedback == "linear":
        # Steps have to stay small and positive, or the recurrence runs away.
        gate, state = abs(gate) / 10, abs(state)
    weights = [random.uniform(-1.5, -0.2, size=(dim, n)), gate, random.normal(size=(dim, n))]
    has = {f"has_{name}": name in case.options for name in OPTIONS[1:]}
    weights += [random.normal(size=(dim, n)) for is_there in has.values() if is_there]
    mask = None
    if "mask" in case.options:
        mask = random.uniform(size=(batch, length)) > 0.2
        # Before the first step that counts the functions of the package return zeros.
        mask[:, 0] = True
    options = {"feedback": case.feedback, **has}
    return [inputs, mask, np.stack(weights), state], options, ("inputs", "weights", "initial state")


def _selective(case: Case, shape: tuple, random: np.random.Generator):
    batch, length, dim, n = shape
    matrices = [
        random.normal(size=(batch, length, n) if varying else (dim, n)) for varying in case.varying
    ]
    tensors = [
        random.normal(size=(batch, length, dim)),
        random.uniform(0.01, 1, size=(batch, length, dim)),
        random.uniform(-1.5, -0.2, size=(dim, n)),
        *matrices,
        random.normal(size=(batch, dim, n)),
    ]
    names = ("inputs", "delta", "transition", "input matrix", "output matrix", "initial state")
    return tensors, {"discretization": case.discretization}, names


def difference(answer: np.ndarray, expected: np.ndarray) -> float:
    """The largest, of the largest element; infinite for another shape or what is no number."""
    if answer.shape != expected.shape:
        return math.inf
    found = float(np.abs(answer - expected).max() / np.abs(expected).max())
    return found if math.isfinite(found) else math.inf


def allowed(name: str, dtype: str, is_interpreted: bool) -> float:
    """Of a result: outputs and the gradient by the inputs are in the dtype of the inputs."""
    if name not in ("outputs", "gradient by inputs"):
        return TOLERANCE
    # Triton's interpreter cuts off, where a card rounds.
    return TOLERANCE + ROUNDING[dtype] * (2 if is_interpreted else 1)


def keep_of(mode: str, length: int) -> int:
    """What the layers ask for."""
    return {INFERENCE: 0, TRAINING: 1, RECOMPUTE: max(1, math.isqrt(length))}[mode]


# The least that a step costs. docs in README.md: "The limit of a card".


def least_bytes(family: str, shape: tuple, mode: str, size: int = 4) -> int:
    """Bytes to and from the memory of the card, where each array is read or written once.

    Inputs, outputs and their gradients have `size` bytes a number, all others four.
    """
    batch, length, dim, n = shape
    features, states, steps = batch * length * dim, batch * dim * n, batch * length
    kept = 0 if mode == INFERENCE else -(-length // keep_of(mode, length)) * states
    is_s6 = family == S6
    forward = 2 * features * size + 4 * (is_s6 * (features + 2 * steps * n) + 2 * states + kept)
    if mode == INFERENCE:
        return forward
    others = is_s6 * (2 * features + 4 * steps * n) + 2 * states + kept
    return forward + 3 * features * size + 4 * others


def special_functions(family: str, shape: tuple, mode: str) -> int:
    """Exponentials and reciprocals: two for a sigmoid, one for the decay of S6, in each pass."""
    passes = {INFERENCE: 1, TRAINING: 2, RECOMPUTE: 3}[mode]
    return passes * math.prod(shape) * (2 if family == COFFEE else 1)


def limit(row: dict, ceilings: dict) -> tuple[float, str] | None:
    """Milliseconds that a row takes at least on this card, and what binds."""
    if not ceilings or row.get("bytes") is None:
        return None
    times = {
        "memory": 1e3 * row["bytes"] / ceilings["bytes_per_second"],
        "special functions": 1e3 * row["special"] / ceilings["special_per_second"],
    }
    what = max(times, key=times.get)
    return times[what], what
