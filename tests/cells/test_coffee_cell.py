import keras
import numpy as np
import oracles
import pytest
from keras import ops
from rounding import Rounded, assert_agrees
from scans import coffee_arrays, widened

from keras_coffee.cells import CoffeeCell

FEEDBACKS = ["sigmoid", "linear", None]
BATCH, LENGTH, DIM, N = 2, 5, 3, 4
OPTIONAL = pytest.mark.parametrize(
    "optional",
    [(), ("input_matrix",), ("gate_bias", "gate_inputs"), ("gate_inputs",)],
    ids=lambda names: "+".join(names),
)


def cell_and_arrays(feedback, optional):
    """The cell, its weights, states and inputs: u, or u and what the gate sees."""
    arrays = coffee_arrays((BATCH, LENGTH, DIM, N), gated=True)
    names = "transition", "gate", *(name for name in optional if name != "gate_inputs")
    weights = {name: arrays[name] for name in names}
    cell = CoffeeCell(
        **{k: ops.convert_to_tensor(w) for k, w in weights.items()}, feedback=feedback
    )
    states = np.random.default_rng(2).normal(size=(BATCH, LENGTH, DIM, N)).astype("float32")
    inputs = arrays["inputs"]
    if "gate_inputs" in optional:
        inputs = inputs, arrays["gate_inputs"]
    return cell, weights, states, inputs


def oracle_arguments(weights, state, inputs, convert):
    """Arrays, state and source as the oracle takes them."""
    source, *gate_inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    arrays = weights | dict(zip(("gate_inputs",), gate_inputs, strict=False))
    arrays = {name: convert(array) for name, array in arrays.items()}
    return arrays, convert(state), convert(source[..., None])


def exact(array):
    return Rounded(widened(array))


def run(function, *arrays):
    tensors = keras.tree.map_structure(ops.convert_to_tensor, arrays)
    return ops.convert_to_numpy(function(*tensors))


@OPTIONAL
@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_step_and_jacobian_of_one_step_and_of_a_sequence(feedback, optional):
    cell, weights, states, inputs = cell_and_arrays(feedback, optional)
    # All times at once, and the first alone.
    for index in (slice(None), (slice(None), 0)):
        state, given = states[index], keras.tree.map_structure(lambda x, k=index: x[k], inputs)
        arguments = *oracle_arguments(weights, state, given, exact), feedback
        actual = run(cell.step, state, given)
        assert_agrees(actual, oracles.coffee_step(*arguments), "step")
        actual = run(cell.jacobian, state, given)
        assert_agrees(actual, oracles.coffee_jacobian(*arguments), "jacobian")


@OPTIONAL
@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_jacobian_of_the_oracle_is_the_derivative(feedback, optional):
    # By a complex step in all states at once, since each moves only its own.
    _, weights, states, inputs = cell_and_arrays(feedback, optional)
    arrays, state, source = oracle_arguments(weights, states, inputs, widened)
    stepped = oracles.coffee_step(arrays, state + 1e-30j, source, feedback)
    jacobian = oracles.coffee_jacobian(arrays, state, source, feedback)
    np.testing.assert_allclose(jacobian, stepped.imag / 1e-30, rtol=1e-12)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_structure_is_true(feedback):
    cell, _, states, inputs = cell_and_arrays(feedback, ("input_matrix", "gate_inputs"))
    assert cell.structure == "diagonal"
    clean = run(cell.step, states, inputs)
    changed = states.copy()
    changed[1, 2, 1, 3] += 1
    moved = run(cell.step, changed, inputs) != clean
    assert [tuple(map(int, k)) for k in np.argwhere(moved)] == [(1, 2, 1, 3)]


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_delta_is_the_update_gate(feedback):
    cell, weights, states, inputs = cell_and_arrays(feedback, ())
    argument = exact(weights["gate"]) * exact(inputs[..., None] if feedback is None else states)
    expected = argument if feedback == "linear" else oracles.sigmoid(argument)
    actual = run(cell.delta, states, inputs)
    assert_agrees(np.broadcast_to(actual, expected.shape), expected)


@pytest.mark.parametrize("output_gate", [False, True], ids=["", "output_gate"])
def test_read(output_gate):
    arrays = coffee_arrays((BATCH, LENGTH, DIM, N))
    names = ("readout", "output_gate")[: 2 if output_gate else 1]
    weights = {name: arrays[name] for name in names}
    _, _, states, _ = cell_and_arrays("sigmoid", ())
    exact_weights = {name: exact(weight) for name, weight in weights.items()}
    tensors = {name: ops.convert_to_tensor(weight) for name, weight in weights.items()}
    cell = CoffeeCell(
        *(ops.convert_to_tensor(arrays[k]) for k in ("transition", "gate")), **tensors
    )
    for state in (states, states[:, 0]):
        actual = run(cell.read, state, arrays["inputs"][:, 0])
        assert_agrees(actual, oracles.read(exact_weights, exact(state)))
