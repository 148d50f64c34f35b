"""Cells of a user's own: values and gradients against float64 loops, and what is refused."""

import dataclasses
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from gradients import value_and_gradients
from keras import ops
from nightly import IS_THOROUGH
from oracles import sigmoid
from scans import differentiate, precision

from keras_coffee.cells import Cell, CoffeeCell, LinearCell
from keras_coffee.ops import cell_scan
from keras_coffee.solvers import Newton

BATCH, LENGTH = 3, 11
IDS = np.random.default_rng(7).integers(0, 4, size=(BATCH, LENGTH)).astype("int32")
# Left, right and middle padding in turn.
MASK = np.ones((BATCH, LENGTH), bool)
MASK[0, :3] = MASK[1, 7:] = MASK[2, 4:6] = False


def wave(x):
    # Keras' tanh and sin compute float64 in float32 on JAX.
    return x / (1 + x * x)


@dataclasses.dataclass(frozen=True)
class MemoryCell(Cell):
    """A tree of states, a dictionary of inputs, matrices, and outputs that see the inputs."""

    kernel: Any
    readout: Any

    def step(self, state, inputs):
        hidden, memory = state["hidden"], state["memory"]
        joined = ops.concatenate([hidden, inputs["u"]], axis=-1)
        # Keras' matmul computes float64 in float32 on PyTorch.
        both = ops.einsum("bi,ij->bj", joined, self.kernel)
        forget, new = ops.split(both, 2, axis=-1)
        memory = ops.sigmoid(forget) * memory + inputs["scale"] * wave(new)
        return {"hidden": wave(memory), "memory": memory}

    def read(self, state, inputs):
        return ops.einsum("bi,ij->bj", state["hidden"], self.readout) * inputs["scale"]


@dataclasses.dataclass(frozen=True)
class LeakyCell(Cell):
    """Diagonal, with an option and outputs that are wider than the state."""

    gate: Any
    power: float = 2.0

    structure = "diagonal"

    def step(self, state, inputs):
        return ops.sigmoid(self.gate * state + inputs) * state + self.power * inputs

    def read(self, state, inputs):
        return ops.concatenate([state, state * inputs], axis=-1)


@dataclasses.dataclass(frozen=True)
class SymbolCell(Cell):
    """Integers for inputs."""

    table: Any

    structure = "diagonal"

    def step(self, state, inputs):
        return wave(state) + ops.take(self.table, inputs, axis=0)


@dataclasses.dataclass(frozen=True)
class RotationCell(LinearCell):
    """Complex and linear in its state."""

    decay: Any

    def affine(self, inputs):
        return self.decay, inputs

    def read(self, state, inputs):
        return ops.real(state) + ops.imag(inputs)


@dataclasses.dataclass(frozen=True)
class ComplexCell(Cell):
    """The same, step by step."""

    decay: Any

    structure = "diagonal"

    def step(self, state, inputs):
        return self.decay * state + inputs

    def read(self, state, inputs):
        return ops.real(state) + ops.imag(inputs)


@dataclasses.dataclass(frozen=True)
class PlainCell(LinearCell):
    """Complex, and its own output."""

    decay: Any

    def affine(self, inputs):
        return self.decay, inputs


@dataclasses.dataclass(frozen=True)
class PermutedCell(Cell):
    """Integers for a weight, beside numbers."""

    order: Any
    gain: Any

    def step(self, state, inputs):
        return wave(self.gain * ops.take(state, self.order, axis=-1)) + inputs


@dataclasses.dataclass(frozen=True)
class ConnectedCell(Cell):
    """Booleans for a weight, and weights that may be copied."""

    gain: Any
    keep: Any

    structure = "diagonal"
    broadcasts = True

    def step(self, state, inputs):
        return wave(ops.where(self.keep, self.gain * state, state)) + inputs


@dataclasses.dataclass(frozen=True)
class SquaringCell(Cell):
    """Complex, not linear, with a Jacobian."""

    factor: Any

    structure = "diagonal"

    def step(self, state, inputs):
        return self.factor * state * state + inputs

    def jacobian(self, state, inputs):
        return 2 * self.factor * state


class Case(NamedTuple):
    """A cell by its class, its step and read in NumPy, and arrays: inputs, weights and state.

    `fixed`: weights that have no gradient.
    """

    cell: Any
    step: Any
    read: Any
    arrays: dict
    is_packed: bool = False
    fixed: Any = MappingProxyType({})


def memory():
    generator = np.random.default_rng(0)
    shapes = {
        "u": (BATCH, LENGTH, 2),
        "scale": (BATCH, LENGTH, 1),
        "kernel": (6, 8),
        "readout": (4, 5),
        "hidden": (BATCH, 4),
        "memory": (BATCH, 4),
    }

    def step(w, state, x):
        both = np.concatenate([state["hidden"], x["u"]], -1) @ w["kernel"]
        forget, new = np.split(both, 2, -1)
        memory = sigmoid(forget) * state["memory"] + x["scale"] * wave(new)
        return {"hidden": wave(memory), "memory": memory}

    def read(w, state, x):
        return state["hidden"] @ w["readout"] * x["scale"]

    return Case(MemoryCell, step, read, _normal(generator, shapes), is_packed=True)


def leaky():
    generator = np.random.default_rng(1)
    shapes = {"inputs": (BATCH, LENGTH, 4), "gate": (4,), "state": (BATCH, 4)}

    def step(w, state, x):
        return sigmoid(w["gate"] * state + x["inputs"]) * state + 2 * x["inputs"]

    def read(w, state, x):
        return np.concatenate([state, state * x["inputs"]], -1)

    return Case(LeakyCell, step, read, _normal(generator, shapes))


def symbols():
    generator = np.random.default_rng(2)

    def step(w, state, x):
        return wave(state) + w["table"][x["inputs"]]

    arrays = _normal(generator, {"table": (4, 2), "state": (BATCH, 2)})
    return Case(SymbolCell, step, lambda w, state, x: state, arrays)


def rotation(cell=RotationCell):
    generator = np.random.default_rng(3)
    shapes = {"inputs": (BATCH, LENGTH, 3), "decay": (3,), "state": (BATCH, 3)}
    arrays = _complex(generator, shapes)
    arrays["decay"] /= abs(arrays["decay"])

    def step(w, state, x):
        return w["decay"] * state + x["inputs"]

    return Case(cell, step, lambda w, state, x: state.real + x["inputs"].imag, arrays)


def complex_outputs():
    case = rotation(PlainCell)
    return case._replace(read=lambda w, state, x: state)


def squaring():
    shapes = {"inputs": (BATCH, LENGTH, 3), "factor": (3,), "state": (BATCH, 3)}
    arrays = {k: 0.3 * a for k, a in _complex(np.random.default_rng(6), shapes).items()}

    def step(w, state, x):
        return w["factor"] * state * state + x["inputs"]

    return Case(SquaringCell, step, lambda w, state, x: state, arrays)


SHAPES = {"inputs": (BATCH, LENGTH, 4), "gain": (4,), "state": (BATCH, 4)}


def permuted():
    order = np.array([2, 0, 3, 0], "int32")

    def step(w, state, x):
        return wave(w["gain"] * state[:, order]) + x["inputs"]

    arrays = _normal(np.random.default_rng(4), SHAPES)
    return Case(PermutedCell, step, lambda w, state, x: state, arrays, fixed={"order": order})


def connected():
    keep = np.array([True, False, True, False])

    def step(w, state, x):
        return wave(np.where(keep, w["gain"] * state, state)) + x["inputs"]

    arrays = _normal(np.random.default_rng(5), SHAPES)
    return Case(ConnectedCell, step, lambda w, state, x: state, arrays, fixed={"keep": keep})


CASES = {
    "memory": memory,
    "leaky": leaky,
    "symbols": symbols,
    "rotation": rotation,
    "complex": lambda: rotation(ComplexCell),
    "complex outputs": complex_outputs,
    "squaring": squaring,
    "permuted": permuted,
    "connected": connected,
}


def _normal(generator, shapes):
    return {k: generator.normal(size=shape).astype("float32") for k, shape in shapes.items()}


def _complex(generator, shapes):
    real, imaginary = (_normal(generator, shapes) for _ in range(2))
    return {k: (real[k] + 1j * imaginary[k]).astype("complex64") for k in shapes}


def scan(case, arrays, **options):
    """`cell_scan` on arrays by name: outputs, then the parts of the final state."""
    names = [field.name for field in dataclasses.fields(case.cell)]
    weights = {**arrays, **case.fixed}
    cell = case.cell(**{k: ops.convert_to_tensor(weights[k]) for k in names if k in weights})
    inputs, state = parts(case, arrays)
    outputs, final_state = cell_scan(cell, inputs, state, **options)
    return outputs, *keras.tree.flatten(final_state)


def parts(case, arrays):
    if case.is_packed:
        keys = ("u", "scale"), ("hidden", "memory")
        return tuple({k: arrays[k] for k in group} for group in keys)
    return arrays.get("inputs", IDS), arrays["state"]


def loop(case, arrays, mask=None):
    """The same in NumPy, in the precision of the arrays."""
    inputs, state = parts(case, arrays)
    inputs = inputs if case.is_packed else {"inputs": inputs}
    mask = np.ones((BATCH, LENGTH), bool) if mask is None else mask
    outputs = []
    for t in range(next(iter(inputs.values())).shape[1]):
        x, kept = {k: a[:, t] for k, a in inputs.items()}, mask[:, t, None]
        new = case.step(arrays, state, x)
        state = keras.tree.map_structure(lambda n, s, m=kept: np.where(m, n, s), new, state)
        y = case.read(arrays, state, x)
        outputs.append(np.where(kept, y, outputs[-1] if outputs else 0 * y))
    return np.stack(outputs, 1), *keras.tree.flatten(state)


def oracle(case, arrays, cotangents, mask=None):
    """Results, and gradients of Σ results * cotangents by central differences, in float64."""
    wide = {k: a.astype(np.result_type(a.dtype, "float64")) for k, a in arrays.items()}

    def loss(changed):
        pairs = zip(loop(case, wide | changed, mask), cotangents, strict=True)
        return sum((y * np.conj(c)).real.sum() for y, c in pairs)

    gradients = {}
    for name, array in wide.items():
        gradients[name] = np.zeros_like(array)
        units = (1, 1j) if array.dtype.kind == "c" else (1,)
        for index in np.ndindex(array.shape):
            for unit in units:
                move = np.zeros_like(array)
                move[index] = 1e-6 * unit
                change = loss({name: array + move}) - loss({name: array - move})
                gradients[name][index] += unit * change / 2e-6
    return loop(case, wide, mask), gradients


@pytest.fixture(scope="module")
def expected():
    """The oracle's answer for a case with or without mask, computed once."""
    answers = {}

    def find(name, is_masked):
        if (name, is_masked) not in answers:
            case = CASES[name]()
            results = loop(case, case.arrays)
            generator = np.random.default_rng(9)
            cotangents = [generator.normal(size=y.shape).astype(y.dtype) for y in results]
            mask = MASK if is_masked else None
            answer = case, cotangents, *oracle(case, case.arrays, cotangents, mask)
            answers[name, is_masked] = answer
        return answers[name, is_masked]

    return find


# No cell sees whether there is a mask, nor what is computed again.
@pytest.mark.parametrize(
    ("is_masked", "recompute"),
    [(False, False), (True, True), *([(False, True), (True, False)] if IS_THOROUGH else [])],
)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, is_masked, recompute, expected):
    assert_as_expected(*expected(name, is_masked), is_masked, recompute=recompute)


def test_complex_states_of_newtons_method(expected):
    # In windows that do not divide the length.
    assert_as_expected(*expected("squaring", True), True, solver=Newton(window=8))


def assert_as_expected(case, cotangents, results, gradients, is_masked, **options):
    options["mask"] = MASK if is_masked else None
    arrays = {k: widened(a) for k, a in case.arrays.items()}
    with precision("float64"):
        actual, actual_gradients = differentiate(
            lambda **tensors: scan(case, tensors, **options),
            arrays,
            [widened(c) for c in cotangents],
        )
    for a, e in zip(actual, results, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)
    for k, e in gradients.items():
        # The differences have rounding errors of about 1e-16 / 1e-6 of the loss.
        np.testing.assert_allclose(actual_gradients[k], e, rtol=1e-7, atol=1e-7, err_msg=k)


def widened(array):
    return array.astype(np.result_type(array.dtype, "float64"))


@pytest.mark.parametrize("name", CASES)
def test_float32_and_a_single_step(name, expected):
    case, _, results, _ = expected(name, False)
    arrays = {k: a for k, a in case.arrays.items()}
    for a, e in zip(scan(case, arrays), results, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(a), e, rtol=1e-4, atol=1e-4)
    outputs, *_ = scan(case, {k: _first(k, a) for k, a in arrays.items()} | _first_ids(case))
    np.testing.assert_allclose(
        ops.convert_to_numpy(outputs), results[0][:, :1], rtol=1e-5, atol=1e-5
    )


def _first(name, array):
    return array[:, :1] if name in ("u", "scale", "inputs") else array


def _first_ids(case):
    return {"inputs": IDS[:, :1]} if case.cell is SymbolCell else {}


def test_what_stands_at_masked_steps_has_no_effect():
    case = leaky()
    poisoned = np.where(MASK[..., None], case.arrays["inputs"], np.float32(np.nan))

    def loss(inputs):
        outputs, state = scan(case, case.arrays | {"inputs": inputs}, mask=MASK)
        return ops.sum(outputs) + ops.sum(state)

    value, (gradient,) = value_and_gradients(loss, poisoned)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert not gradient[~MASK].any()


def test_low_precision_inputs_run_in_the_dtype_of_the_state():
    case = leaky()
    low = ops.cast(case.arrays["inputs"], "bfloat16")
    outputs, state = scan(case, case.arrays | {"inputs": low})
    wide, wide_state = scan(case, case.arrays | {"inputs": ops.cast(low, "float32")})
    np.testing.assert_array_equal(*(ops.convert_to_numpy(x) for x in (outputs, wide)))
    np.testing.assert_array_equal(*(ops.convert_to_numpy(x) for x in (state, wide_state)))


@dataclasses.dataclass(frozen=True)
class BrokenCell(Cell):
    """Returns what an option says."""

    what: str = "shape"

    def step(self, state, inputs):
        if self.what == "shape":
            return ops.concatenate([state, state], axis=-1)
        if self.what in ("nothing", "a number"):
            return None if self.what == "nothing" else 1.0
        return ops.cast(state, "float64" if self.what == "dtype" else "float32")

    def read(self, state, inputs):
        return [state, state]


@dataclasses.dataclass(frozen=True)
class NothingCell(Cell):
    """Has no step."""


INPUTS, STATE = np.ones((2, 5, 3), "float32"), np.zeros((2, 3), "float32")


@pytest.mark.parametrize(
    ("cell", "inputs", "state", "error", "words"),
    [
        (BrokenCell("shape"), INPUTS, STATE, ValueError, "must return a state of the shapes"),
        (BrokenCell("nothing"), INPUTS, STATE, ValueError, "`BrokenCell.step` .* returned None"),
        (BrokenCell("a number"), INPUTS, STATE, ValueError, r"it returned 1\.0"),
        (BrokenCell("read"), INPUTS, STATE, ValueError, "must return one tensor, received a list"),
        (NothingCell(), INPUTS, STATE, NotImplementedError, "NothingCell has no `step`"),
        (object(), INPUTS, STATE, TypeError, "must be a keras_coffee.cells.Cell"),
        (LeakyCell(STATE[0], []), INPUTS, STATE, TypeError, "options and must be hashable"),
        (LeakyCell(STATE[0]), INPUTS[:, :0], STATE, ValueError, "`inputs` has no steps"),
        (LeakyCell(STATE[0]), INPUTS[:1], STATE, ValueError, "`inputs` must have shape"),
        (LeakyCell(STATE[0]), INPUTS, STATE[0], ValueError, r"must have shape \(batch, ...\)"),
        (
            LeakyCell(STATE[0]),
            INPUTS,
            STATE.astype("int32"),
            TypeError,
            "one of float32, float64, complex64",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(cell, inputs, state, error, words):
    with pytest.raises(error, match=words):
        cell_scan(cell, inputs, state)


@dataclasses.dataclass(frozen=True)
class MisreadCell(LinearCell):
    """Counts axes from the first, or returns a pair."""

    what: str

    def affine(self, inputs):
        return 0.5, inputs

    def read(self, state, inputs):
        return (state, inputs) if self.what == "pair" else state[:, :1]


@pytest.mark.parametrize("solver", ["sequential", "associative"])
def test_outputs_of_all_steps_are_checked(solver):
    with pytest.raises(ValueError, match=r"`MisreadCell.read` must return one tensor.*a tuple"):
        cell_scan(MisreadCell("pair"), INPUTS, STATE, solver=solver)
    message = r"must return \(B, T, ...\) for states of all steps, \(2, 5, 3\); .*\(2, 1, 3\)"
    with pytest.raises(ValueError, match=message):
        cell_scan(MisreadCell("axis"), INPUTS, STATE, solver=solver)


# What was once wrong and silent.


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_weights_of_another_dtype_are_cast_to_that_of_the_state(dtype):
    inputs, state = np.float32(INPUTS), np.float32(STATE)
    with precision("float64"):
        decay = ops.cast(ops.full((3,), 0.5), dtype)
        outputs, _ = cell_scan(HalvingCell(decay), inputs, state)
    expected, _ = cell_scan(HalvingCell(ops.full((3,), 0.5)), inputs, state)
    np.testing.assert_array_equal(*(ops.convert_to_numpy(x) for x in (outputs, expected)))


@dataclasses.dataclass(frozen=True)
class HalvingCell(LinearCell):
    decay: Any

    def affine(self, inputs):
        return self.decay, inputs


def test_a_complex_decay_needs_a_complex_state():
    decay = ops.cast(ops.ones(3), "complex64")
    with pytest.raises(TypeError, match="Give a complex initial state"):
        cell_scan(HalvingCell(decay), INPUTS, STATE)


def test_a_drive_is_cast_to_a_complex_state():
    outputs, _ = cell_scan(HalvingCell(ops.full((3,), 0.5)), INPUTS, STATE.astype("complex64"))
    real, _ = cell_scan(HalvingCell(ops.full((3,), 0.5)), INPUTS, STATE)
    np.testing.assert_array_equal(ops.convert_to_numpy(outputs), ops.convert_to_numpy(real))


def test_a_decay_for_each_sequence_but_no_step_is_refused():
    decay = ops.full((2, 3), 0.5)
    with pytest.raises(ValueError, match=r"`affine` must return tensors `\(B, T, ...\)`"):
        cell_scan(HalvingCell(decay), INPUTS[:, :2], STATE)


def test_cells_with_kernels_may_have_weights_that_broadcast():
    u, state = np.ones((2, 5, 3), "float32"), np.zeros((2, 3, 4), "float32")
    full = [ops.full((3, 4), x) for x in (-0.5, 0.5, 1.0)]
    narrow = ops.full((1, 4), -0.5), ops.full((3, 1), 0.5), ops.ones((3, 4))
    results = [cell_scan(CoffeeCell(*w), u, state)[0] for w in (full, narrow)]
    np.testing.assert_allclose(*map(ops.convert_to_numpy, results), rtol=1e-6)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_python_number_takes_the_precision_of_the_state(recompute):
    with precision("float64"):
        inputs, state = INPUTS.astype("float64"), STATE.astype("float64")
        _, final = cell_scan(HalvingCell(0.9), inputs, state, recompute=recompute)
        expected = (1 - 0.9**5) / (1 - 0.9)
        np.testing.assert_allclose(ops.convert_to_numpy(final), expected, rtol=1e-14)


@dataclasses.dataclass(frozen=True)
class PairCell(Cell):
    """Said to be diagonal, with two states."""

    structure = "diagonal"

    def step(self, state, inputs):
        return state[0] + inputs, state[1]

    def read(self, state, inputs):
        return state[0]


@pytest.mark.parametrize("solver", ["sequential", "newton"])
def test_a_diagonal_cell_of_several_states_is_refused(solver):
    message = 'PairCell has structure = "diagonal", so its state must be one tensor; received 2'
    with pytest.raises(ValueError, match=message):
        cell_scan(PairCell(), INPUTS, (STATE, STATE), solver=solver)


@dataclasses.dataclass(frozen=True)
class SwappingCell(Cell):
    """Returns a tuple for a dictionary."""

    def step(self, state, inputs):
        return state["h"], state["c"]

    def read(self, state, inputs):
        return state["h"]


def test_a_state_of_another_structure_is_refused():
    with pytest.raises(ValueError, match="of the structure that it is given, with the same keys"):
        cell_scan(SwappingCell(), INPUTS, {"h": STATE, "c": STATE + 1})


@dataclasses.dataclass(frozen=True)
class OptionCell(Cell):
    option: Any

    def step(self, state, inputs):
        return state + (inputs if self.option is True else 2 * inputs)


def test_options_that_python_calls_equal_are_told_apart():
    results = [cell_scan(OptionCell(x), INPUTS, STATE)[1] for x in (1, True, 1.0)]
    assert [float(ops.convert_to_numpy(x)[0, 0]) for x in results] == [10, 5, 10]


class Added(NamedTuple):
    number: float


class Multiplied(NamedTuple):
    number: float


def test_options_that_are_named_tuples_of_the_same_numbers_are_told_apart():
    # Python calls them equal, as tuples, and a backend would run the program of the first.
    @dataclasses.dataclass(frozen=True)
    class Combined(Cell):
        option: Any

        def step(self, state, inputs):
            if isinstance(self.option, Added):
                return state + inputs + self.option.number
            return (state + inputs) * self.option.number

    inputs, state = np.ones((1, 3, 1), "float32"), np.zeros((1, 1), "float32")
    for option, expected in ((Added(3.0), [4, 8, 12]), (Multiplied(3.0), [3, 12, 39])):
        outputs, _ = cell_scan(Combined(option), inputs, state)
        np.testing.assert_array_equal(ops.convert_to_numpy(outputs)[0, :, 0], expected)


def test_weights_that_no_gradient_could_reach_are_refused():
    with pytest.raises(TypeError, match="Give each weight a field of its own"):
        cell_scan(OptionCell((ops.ones(3),)), INPUTS, STATE)
    with pytest.raises(TypeError, match="Give each weight a field of its own"):
        cell_scan(OptionCell(keras.layers.Dense(3)), INPUTS, STATE)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 5, 0)])
def test_nothing_at_all_with_a_mask(shape):
    inputs, mask = np.ones(shape, "float32"), np.ones(shape[:2], bool)
    outputs, _ = cell_scan(OptionCell(True), inputs, inputs[:, 0], mask=mask)
    assert tuple(outputs.shape) == shape


def test_parallel_solvers_need_a_state_that_is_one_tensor():
    case = memory()
    with pytest.raises(ValueError, match="need a state that is one tensor"):
        scan(case, case.arrays, solver="newton")


def test_a_cell_without_a_jacobian_has_no_parallel_solver():
    with pytest.raises(NotImplementedError, match="has no `jacobian`"):
        cell_scan(LeakyCell(ops.convert_to_tensor(STATE[0])), INPUTS, STATE, solver="newton")


def test_elk_refuses_complex_states():
    case = squaring()
    message = r"Elk needs a real state, received complex64\. Choose the solver 'newton' or"
    with pytest.raises(TypeError, match=message):
        scan(case, case.arrays, solver="elk")
