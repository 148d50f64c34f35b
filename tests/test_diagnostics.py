import numpy as np
import pytest
import recurrences
from keras import ops
from recurrences import CASES

from keras_coffee import CoffeeLayer, S6Layer
from keras_coffee.cells import AffineCell
from keras_coffee.diagnostics import layer_lyapunov_exponent, lyapunov_exponent


def test_exponent_of_a_constant_decay():
    decay = np.broadcast_to([0.5, -0.9, 0.0], (2, 50, 3)).astype("float32")
    drive, state = np.ones_like(decay), np.zeros((2, 3), "float32")
    inputs = tuple(ops.convert_to_tensor(x) for x in (decay, drive))
    np.testing.assert_allclose(
        lyapunov_exponent(AffineCell(), inputs, state), np.log(0.9), rtol=1e-5
    )


@pytest.mark.parametrize("name", CASES)
def test_exponent_of_a_long_trajectory(name):
    case = CASES[name](60)
    cell = case.cell(*[ops.cast(w, "float32") for w in case.weights.values()])
    inputs, state = (x.astype("float32") for x in (case.inputs, case.initial_state))
    actual = lyapunov_exponent(cell, ops.convert_to_tensor(inputs), state)
    jacobian = recurrences.jacobians(case, recurrences.loop(case))
    if case.cell.structure == "diagonal":
        expected = np.log(abs(jacobian)).mean((0, 1)).max()
    else:
        # The growth of a difference over the whole trajectory.
        size = np.ones((*case.initial_state.shape,)) / case.initial_state.shape[-1] ** 0.5
        for t in range(60):
            size = np.einsum("...ij,...j->...i", jacobian[:, t], size)
        with np.errstate(divide="ignore"):  # where all states are saturated
            expected = (np.log(np.linalg.norm(size, axis=-1)) / 60).mean(0).max()
    assert abs(actual - expected) < 0.02 * max(1, abs(expected))


@pytest.mark.parametrize("junk", [0.5, np.nan])
@pytest.mark.parametrize("name", CASES)
def test_masked_steps_do_not_count_and_do_not_turn_the_direction(name, junk):
    case = CASES[name](60)
    cell = case.cell(*[ops.cast(w, "float32") for w in case.weights.values()])
    inputs, state = (x.astype("float32") for x in (case.inputs, case.initial_state))
    mask = np.ones(inputs.shape[:2], bool)
    mask[:, [0, 7, 8, 9, 30]] = False
    expected = lyapunov_exponent(cell, ops.convert_to_tensor(inputs[:, mask[0]]), state)
    inputs[~mask] = junk
    for given in (mask, ops.convert_to_tensor(mask), mask.tolist()):
        found = lyapunov_exponent(cell, ops.convert_to_tensor(inputs), state, given)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_exponent_of_a_layer_leaves_masked_steps_out():
    layer = CoffeeLayer(2, input_gate="full", transition_initializer="zeros")
    inputs = np.random.default_rng(0).normal(size=(2, 40, 3)).astype("float32")
    layer.build(inputs.shape)
    layer.transition.assign(np.full((3, 2), -1.0))
    mask = np.ones((2, 40), bool)
    mask[:, 30:] = False
    expected = layer_lyapunov_exponent(layer, inputs[:, :30])
    assert expected < 0
    np.testing.assert_allclose(
        layer_lyapunov_exponent(layer, inputs, mask=mask), expected, rtol=1e-5
    )


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_exponent_of_a_layer_that_goes_backwards_is_that_of_the_flipped_sequence(is_masked):
    # The loud steps come first, so that the states of the two directions differ.
    inputs = np.random.default_rng(0).normal(size=(2, 40, 3)).astype("float32")
    inputs[:, :20] *= 10
    mask = np.ones((2, 40), bool)
    mask[0, 3:9] = mask[1, 31:] = False
    masks = (mask, mask[:, ::-1]) if is_masked else (None, None)
    layer = CoffeeLayer(4)
    layer.build(inputs.shape)
    backwards = CoffeeLayer(4, go_backwards=True)
    backwards.build(inputs.shape)
    backwards.set_weights(layer.get_weights())
    actual = layer_lyapunov_exponent(backwards, inputs, mask=masks[0])
    expected = layer_lyapunov_exponent(layer, inputs[:, ::-1].copy(), mask=masks[1])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert abs(actual - layer_lyapunov_exponent(layer, inputs, mask=masks[0])) > 0.01


def test_the_exponent_of_a_layer_from_any_state_that_the_layer_takes():
    inputs = np.random.default_rng(0).normal(size=(3, 20, 3)).astype("float32")
    layer = CoffeeLayer(2)
    layer.build(inputs.shape)
    zeros = np.zeros((3, 3, 2))
    expected = layer_lyapunov_exponent(layer, inputs)
    for state in (zeros, zeros.astype("int32"), layer.get_initial_state(3)):
        actual = layer_lyapunov_exponent(layer, inputs, state)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert abs(layer_lyapunov_exponent(layer, inputs, zeros + 9) - expected) > 1e-3
    with pytest.raises(ValueError, match=r"`initial_state` must have shape.*received \(3, 3, 4\)"):
        layer_lyapunov_exponent(layer, inputs, np.zeros((3, 3, 4)))


def test_without_a_step_that_counts_there_is_no_exponent():
    layer = CoffeeLayer(2)
    inputs, mask = np.ones((2, 4, 3), "float32"), np.zeros((2, 4), bool)
    layer.build(inputs.shape)
    with pytest.raises(ValueError, match="no step counts: `mask` is False at all"):
        layer_lyapunov_exponent(layer, inputs, mask=mask)
    with pytest.raises(ValueError, match="no step counts: there is no sequence"):
        layer_lyapunov_exponent(layer, inputs[:0])


def test_other_layers_and_layers_that_are_not_built():
    with pytest.raises(TypeError, match="`layer` must be a CoffeeLayer, received S6Layer"):
        layer_lyapunov_exponent(S6Layer(2), np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="not known yet. Call or build the layer first"):
        layer_lyapunov_exponent(CoffeeLayer(2), np.ones((1, 2, 3)))
