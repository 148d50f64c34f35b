import numpy as np
import oracles
import pytest
from keras import ops
from rounding import Rounded, assert_agrees
from scans import coffee_arrays, widened

from keras_coffee.cells import CoffeeCell

FEEDBACKS = ["sigmoid", "linear", None]
BATCH, LENGTH, DIM, N = 2, 5, 3, 4
INPUT_MATRIX = pytest.mark.parametrize("input_matrix", [False, True], ids=["", "input_matrix"])


def cell_and_arrays(feedback, input_matrix):
    arrays = coffee_arrays((BATCH, LENGTH, DIM, N))
    names = ("transition", "gate", "input_matrix")[: 3 if input_matrix else 2]
    weights = {name: arrays[name] for name in names}
    cell = CoffeeCell(
        **{k: ops.convert_to_tensor(w) for k, w in weights.items()}, feedback=feedback
    )
    states = np.random.default_rng(2).normal(size=(BATCH, LENGTH, DIM, N)).astype("float32")
    return cell, weights, states, arrays["inputs"]


def exact(array):
    return Rounded(widened(array))


def run(function, *arrays):
    return ops.convert_to_numpy(function(*(ops.convert_to_tensor(array) for array in arrays)))


@INPUT_MATRIX
@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_step_and_jacobian_of_one_step_and_of_a_sequence(feedback, input_matrix):
    cell, weights, states, inputs = cell_and_arrays(feedback, input_matrix)
    weights = {name: exact(weight) for name, weight in weights.items()}
    # All times at once, and the first alone.
    for index in (slice(None), (slice(None), 0)):
        state, source = states[index], inputs[index]
        arguments = weights, exact(state), exact(source[..., None]), feedback
        actual = run(cell.step, state, source)
        assert_agrees(actual, oracles.coffee_step(*arguments), "step")
        actual = run(cell.jacobian, state, source)
        assert_agrees(actual, oracles.coffee_jacobian(*arguments), "jacobian")


@INPUT_MATRIX
@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_jacobian_of_the_oracle_is_the_derivative(feedback, input_matrix):
    # By a complex step in all states at once, since each moves only its own.
    _, weights, states, inputs = cell_and_arrays(feedback, input_matrix)
    weights = {name: widened(weight) for name, weight in weights.items()}
    state, source = widened(states), widened(inputs)[..., None]
    stepped = oracles.coffee_step(weights, state + 1e-30j, source, feedback)
    jacobian = oracles.coffee_jacobian(weights, state, source, feedback)
    np.testing.assert_allclose(jacobian, stepped.imag / 1e-30, rtol=1e-12)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_structure_is_true(feedback):
    cell, _, states, inputs = cell_and_arrays(feedback, True)
    assert cell.structure == "diagonal"
    clean = run(cell.step, states, inputs)
    changed = states.copy()
    changed[1, 2, 1, 3] += 1
    moved = run(cell.step, changed, inputs) != clean
    assert [tuple(map(int, k)) for k in np.argwhere(moved)] == [(1, 2, 1, 3)]


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_delta_is_the_update_gate(feedback):
    cell, weights, states, inputs = cell_and_arrays(feedback, False)
    argument = exact(weights["gate"]) * exact(inputs[..., None] if feedback is None else states)
    expected = argument if feedback == "linear" else oracles.sigmoid(argument)
    actual = run(cell.delta, states, inputs)
    assert_agrees(np.broadcast_to(actual, expected.shape), expected)


@pytest.mark.parametrize("output_gate", [False, True], ids=["", "output_gate"])
def test_read(output_gate):
    arrays = coffee_arrays((BATCH, LENGTH, DIM, N))
    names = ("readout", "output_gate")[: 2 if output_gate else 1]
    weights = {name: arrays[name] for name in names}
    _, _, states, _ = cell_and_arrays("sigmoid", False)
    exact_weights = {name: exact(weight) for name, weight in weights.items()}
    tensors = {name: ops.convert_to_tensor(weight) for name, weight in weights.items()}
    cell = CoffeeCell(
        *(ops.convert_to_tensor(arrays[k]) for k in ("transition", "gate")), **tensors
    )
    for state in (states, states[:, 0]):
        actual = run(cell.read, state, arrays["inputs"][:, 0])
        assert_agrees(actual, oracles.read(exact_weights, exact(state)))
