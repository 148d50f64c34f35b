import numpy as np
import oracles
import pytest
from keras import ops
from rounding import Rounded, assert_agrees
from scans import selective_arrays, widened

from keras_coffee.cells import SelectiveCell

SHAPE = BATCH, LENGTH, DIM, N = 2, 5, 3, 4
DISCRETIZATIONS = pytest.mark.parametrize("discretization", ["zoh", "euler", "mamba"])
MATRICES = pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])


def cell_and_inputs(discretization, shared):
    arrays = selective_arrays(SHAPE, varying=(shared, True))
    matrix = arrays["input_matrix"]
    fixed = None if shared else ops.convert_to_tensor(matrix)
    transition = ops.convert_to_tensor(arrays["transition"])
    cell = SelectiveCell(transition, fixed, discretization=discretization)
    states = np.random.default_rng(2).normal(size=SHAPE).astype("float32")
    inputs = arrays["inputs"], arrays["delta"], matrix[:, :, None] if shared else matrix
    return cell, arrays["transition"], states, inputs


def expected_step_and_jacobian(transition, state, inputs, discretization):
    transition, state, source, delta, matrix = (
        Rounded(widened(x)) for x in (transition, state, *inputs)
    )
    step = delta[..., None]
    exponent = step * transition
    if discretization == "euler":
        decay, gain = 1.0 + exponent, step
    elif discretization == "mamba":
        decay, gain = oracles.exp(exponent), step
    else:
        decay, gain = oracles.exp(exponent), step * oracles.expm1_ratio(exponent)
    return decay * state + gain * matrix * source[..., None], decay


def tensors(inputs, shared):
    """What the cell is given: B only if all features share it, without an axis for them."""
    source, delta, matrix = (ops.convert_to_tensor(x) for x in inputs)
    return (source, delta, matrix[..., 0, :]) if shared else (source, delta)


@MATRICES
@DISCRETIZATIONS
def test_step_and_jacobian_of_one_step_and_of_a_sequence(discretization, shared):
    cell, transition, states, (source, delta, matrix) = cell_and_inputs(discretization, shared)
    first = source[:, 0], delta[:, 0], matrix[:, 0] if shared else matrix
    for state, inputs in ((states, (source, delta, matrix)), (states[:, 0], first)):
        step, jacobian = expected_step_and_jacobian(transition, state, inputs, discretization)
        actual = cell.step(ops.convert_to_tensor(state), tensors(inputs, shared))
        assert_agrees(ops.convert_to_numpy(actual), step, "step")
        actual = cell.jacobian(ops.convert_to_tensor(state), tensors(inputs, shared))
        assert_agrees(ops.convert_to_numpy(actual), jacobian, "jacobian")


@MATRICES
@DISCRETIZATIONS
def test_step_is_linear_in_the_state_with_the_jacobian(discretization, shared):
    cell, _, states, inputs = cell_and_inputs(discretization, shared)
    zero = cell.step(ops.zeros(SHAPE), tensors(inputs, shared))
    jacobian = cell.jacobian(ops.convert_to_tensor(states), tensors(inputs, shared))
    expected = ops.convert_to_numpy(jacobian) * states + ops.convert_to_numpy(zero)
    actual = ops.convert_to_numpy(cell.step(ops.convert_to_tensor(states), tensors(inputs, shared)))
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-5)


@DISCRETIZATIONS
def test_structure_is_true(discretization):
    cell, _, states, inputs = cell_and_inputs(discretization, True)
    assert cell.structure == "diagonal"
    clean = ops.convert_to_numpy(cell.step(ops.convert_to_tensor(states), tensors(inputs, True)))
    changed = states.copy()
    changed[1, 2, 1, 3] += 100
    moved = ops.convert_to_numpy(cell.step(ops.convert_to_tensor(changed), tensors(inputs, True)))
    assert [tuple(map(int, k)) for k in np.argwhere(moved != clean)] == [(1, 2, 1, 3)]


def test_zero_order_hold_far_from_zero_and_near_it():
    exponents = np.float32(
        [0, -1e-8, -1e-4, -0.1, -0.4999999, -0.5, -0.5000001, 0.49, 0.51, 3, -50, -1000, -1e8]
    )
    cell = SelectiveCell(ops.convert_to_tensor(exponents[:, None]))
    one = np.ones((1, len(exponents)), "float32")
    inputs = one, one, np.ones((1, 1, 1), "float32")
    state = np.ones((1, len(exponents), 1), "float32")
    step, _ = expected_step_and_jacobian(exponents[:, None], state, inputs, "zoh")
    actual = cell.step(ops.convert_to_tensor(state), tensors(inputs, True))
    assert_agrees(ops.convert_to_numpy(actual), step)
