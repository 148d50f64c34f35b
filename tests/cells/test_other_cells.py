"""The cells beside COFFEE and S6: steps against the equations, Jacobians by finite differences."""

import dataclasses

import numpy as np
import pytest
import recurrences
from keras import ops
from recurrences import CASES
from scans import precision

from keras_coffee.cells import AffineCell, Cell, CoffeeCell, ElmanCell, LinearCell, MaskedCell
from keras_coffee.diagnostics import check_jacobian

LENGTH = 5


def cell_and_tensors(name):
    case = CASES[name](LENGTH)
    cell = case.cell(*[ops.convert_to_tensor(w) for w in case.weights.values()])
    return case, cell, ops.convert_to_tensor(case.inputs), ops.convert_to_tensor(case.initial_state)


@pytest.mark.parametrize("name", CASES)
def test_step_and_jacobian_of_one_step_and_of_all(name):
    with precision("float64"):
        case, cell, inputs, state = cell_and_tensors(name)
        states = recurrences.loop(case)
        before = ops.convert_to_tensor(recurrences.previous(case, states))
        jacobian = recurrences.jacobians(case, states)
        for actual, expected in (
            (cell.step(before, inputs), states),
            (cell.step(state, inputs[:, 0]), states[:, 0]),
            (cell.jacobian(before, inputs), jacobian),
            (cell.jacobian(state, inputs[:, 0]), jacobian[:, 0]),
        ):
            actual = ops.convert_to_numpy(actual)
            assert actual.dtype == "float64"
            np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_check_jacobian_agrees(name, dtype):
    case = CASES[name](LENGTH)
    with precision(dtype):
        cell = case.cell(*[ops.cast(w, dtype) for w in case.weights.values()])
        state, inputs = (ops.cast(x, dtype) for x in (case.initial_state, case.inputs[:, 0]))
        assert check_jacobian(cell, state, inputs) < {"float32": 1e-3, "float64": 1e-8}[dtype]


@dataclasses.dataclass(frozen=True)
class Constant(LinearCell):
    """A decay that is a Python number."""

    decay: float

    def affine(self, inputs):
        return self.decay, inputs


@pytest.mark.parametrize(("number", "dtype"), [(0.9, "float64"), (0.9 + 0.1j, "complex128")])
def test_the_jacobian_of_a_constant_decay_has_the_precision_of_the_state(number, dtype):
    with precision("float64"):
        state = ops.ones((2, 3), dtype)
        jacobian = ops.convert_to_numpy(Constant(number).jacobian(state, state))
    assert jacobian.dtype == dtype
    np.testing.assert_array_equal(jacobian, np.full((2, 3), number))


@dataclasses.dataclass(frozen=True)
class Wrong(Cell):
    cell: object
    structure: str

    def step(self, state, inputs):
        return self.cell.step(state, inputs)

    def jacobian(self, state, inputs):
        jacobian = self.cell.jacobian(state, inputs)
        if self.structure != self.cell.structure:
            return ops.einsum("...ii->...i", jacobian)
        if self.structure == "dense":
            return ops.swapaxes(jacobian, -1, -2)
        return 1.01 * jacobian


@pytest.mark.parametrize(
    ("name", "structure"),
    [("coffee", "diagonal"), ("Elman", "dense"), ("Elman", "diagonal")],
    ids=["wrong by a hundredth", "transposed", "not diagonal"],
)
def test_check_jacobian_finds_what_is_wrong(name, structure):
    with precision("float64"):
        _, cell, inputs, state = cell_and_tensors(name)
        with pytest.raises(ValueError, match="The Jacobian of Wrong differs by .* from finite"):
            check_jacobian(Wrong(cell, structure), state, inputs[:, 0])


@dataclasses.dataclass(frozen=True)
class Spoilt:
    """A cell that gives a bad number in its step or its Jacobian, at one element."""

    cell: object
    what: str
    number: float
    structure: str = "diagonal"

    def step(self, state, inputs):
        return self._spoil("step", self.cell.step(state, inputs))

    def jacobian(self, state, inputs):
        return self._spoil("Jacobian", self.cell.jacobian(state, inputs))

    def _spoil(self, what, x):
        array = ops.convert_to_numpy(x).copy()
        array[(-1,) * array.ndim] = self.number if what == self.what else array.flat[-1]
        return ops.convert_to_tensor(array)


@pytest.mark.parametrize(("number", "word"), [(np.nan, "NaN"), (-np.inf, "infinity")])
@pytest.mark.parametrize("what", ["step", "Jacobian"])
def test_check_jacobian_says_what_is_not_finite(what, number, word):
    _, cell, inputs, state = cell_and_tensors("coffee")
    with pytest.raises(ValueError, match=f"The {what} of Spoilt gives {word} at these states"):
        check_jacobian(Spoilt(cell, what, number), state, inputs[:, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [3e3, 1e6])
def test_check_jacobian_of_large_states_allows_for_their_rounding(dtype, size):
    with precision(dtype):
        generator = np.random.default_rng(0)
        decay, drive = (ops.convert_to_tensor(generator.normal(size=(3, 4)), dtype) for _ in "ab")
        state = ops.convert_to_tensor(size * generator.normal(size=(3, 4)), dtype)
        check_jacobian(AffineCell(), state, (decay, drive))
        with pytest.raises(ValueError, match="The Jacobian of Negated differs by .* from finite"):
            check_jacobian(Negated(AffineCell()), state, (decay, drive))


@dataclasses.dataclass(frozen=True)
class Negated:
    cell: object
    structure: str = "diagonal"

    def step(self, state, inputs):
        return self.cell.step(state, inputs)

    def jacobian(self, state, inputs):
        return -self.cell.jacobian(state, inputs)


@pytest.mark.parametrize("name", CASES)
def test_a_masked_step_is_the_identity(name):
    with precision("float64"):
        _, cell, inputs, state = cell_and_tensors(name)
        own, mask = inputs[:, 0], ops.convert_to_tensor(np.array([True, False, True]))
        masked = MaskedCell(cell)
        assert masked.structure == cell.structure
        states = ops.convert_to_numpy(masked.step(state, (own, mask)))
        expected = ops.convert_to_numpy(cell.step(state, own)).copy()
        expected[1] = ops.convert_to_numpy(state)[1]
        np.testing.assert_array_equal(states, expected)
        check_jacobian(masked, state, (own, mask))


def test_affine_cell():
    with precision("float64"):
        generator = np.random.default_rng(0)
        decay, drive, state = (ops.convert_to_tensor(generator.normal(size=(3, 4))) for _ in "abc")
        expected = ops.convert_to_numpy(decay) * ops.convert_to_numpy(state)
        expected += ops.convert_to_numpy(drive)
        actual = ops.convert_to_numpy(AffineCell().step(state, (decay, drive)))
        np.testing.assert_allclose(actual, expected, rtol=1e-15)
        check_jacobian(AffineCell(), state, (decay, drive))


def test_slope_of_an_elman_network_at_zero():
    cell = ElmanCell(*(ops.convert_to_tensor(np.ones(s, "float32")) for s in ((1, 1), (1, 1), 1)))
    cell = dataclasses.replace(cell, bias=ops.zeros(1))
    zero = ops.zeros((1, 1))
    assert float(cell.jacobian(zero, zero)[0, 0, 0]) == 1.0


def test_cells_have_no_state_of_their_own():
    for cell in (CoffeeCell(1.0, 1.0), AffineCell()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            cell.structure = "dense"
