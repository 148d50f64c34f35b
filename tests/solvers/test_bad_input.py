"""Whatever comes in, the answer is defined: that of steps in order, and the report says so."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from gradients import compiled
from keras import ops
from nightly import IS_THOROUGH
from recurrences import CASES
from scans import coffee_arrays

from keras_coffee.ops import coffee_scan, nonlinear_scan
from keras_coffee.solvers import Elk, Newton

LENGTH = 40
SOLVERS = pytest.mark.parametrize("solver", [Newton(window=16), Elk(window=16)], ids=repr)
NEWTON = Newton(window=16)


@functools.cache
def program(solver):
    """All tests here see the same weights and shapes, so that each solver is compiled once."""
    case = CASES["coffee"](LENGTH)
    weights = [ops.convert_to_tensor(w.astype("float32")) for w in case.weights.values()]

    def solve(*arrays):
        return nonlinear_scan(case.cell(*weights), *arrays, solver=solver)

    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        # One by one, the operations of all iterations take longer.
        return tf.function(solve)
    return compiled(solve)


def run(inputs, solver):
    arrays = (np.asarray(x, "float32") for x in (inputs, CASES["coffee"](LENGTH).initial_state))
    return [ops.convert_to_numpy(x) for x in program(solver)(*arrays)]


def clean():
    return CASES["coffee"](LENGTH).inputs.copy()


@SOLVERS
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nan_and_infinity_are_never_hidden_nor_spread(value, solver):
    inputs = clean()
    expected, *_ = run(inputs, solver)
    inputs[1, 20, 3] = value
    states, iterations, residual, converged = run(inputs, solver)
    in_order, *_ = run(inputs, "sequential")
    np.testing.assert_array_equal(np.isnan(states), np.isnan(in_order))
    assert not np.isfinite(states[1, 20, 3]).any()
    # What does not depend on it is what it was.
    others = np.ones_like(expected, dtype=bool)
    others[1, 16:] = False
    np.testing.assert_array_equal(states[others], expected[others])
    others[1, 16:] = True
    others[1, 20:, 3] = False
    np.testing.assert_allclose(states[others], expected[others], rtol=1e-3, atol=1e-4)
    assert converged.tolist() == [True, False, True]
    assert np.isinf(residual[1])
    assert (residual[[0, 2]] < 1e-6).all()
    assert (iterations <= 100).all()


def test_states_past_the_range_of_the_dtype():
    inputs = clean()
    inputs[2, 5:] = 3e38
    states, _, _, converged = run(inputs, NEWTON)
    in_order, *_ = run(inputs, "sequential")
    np.testing.assert_array_equal(np.isfinite(states), np.isfinite(in_order))
    assert not converged[2]
    assert converged[:2].all()


def test_large_states_are_solved_relative_to_their_size():
    case = CASES["coffee"](LENGTH)
    states, _, residual, _ = run(1e6 * clean(), NEWTON)
    assert abs(states).max() > 1e4
    assert residual.max() <= 8 * 2.0**-23
    exact = case.step(case.weights, states[:, :-1].astype(float), 1e6 * clean()[:, 1:])
    assert (abs(states[:, 1:] - exact) <= 2e-5 * np.maximum(1, abs(exact))).all()


@pytest.mark.parametrize("kind", [Newton, Elk])
def test_tolerance_zero_is_reached_or_refused(kind):
    states, iterations, residual, converged = run(clean(), kind(tolerance=0, window=16))
    in_order, *_ = run(clean(), "sequential")
    assert (iterations <= 100).all()
    assert ((residual == 0) | ~converged).all()
    np.testing.assert_allclose(states, in_order, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [LENGTH, LENGTH + 1, 10**6, 1] if IS_THOROUGH else [10**6, 1])
def test_any_window(window):
    states, _, residual, converged = run(clean(), Newton(window=window))
    assert states.shape[1] == LENGTH
    assert residual.max() <= 8 * 2.0**-23
    assert converged.all()


def test_a_window_that_does_not_get_there_is_run_in_order():
    expected, *_ = run(clean(), "sequential")
    states, iterations, residual, converged = run(clean(), Newton(max_iterations=1))
    assert not converged.any()
    assert iterations.tolist() == [1, 1, 1]
    assert residual.max() <= 8 * 2.0**-23
    np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-6)


@SOLVERS
def test_a_slow_sequence_leaves_the_others_alone(solver):
    inputs = clean()
    expected, iterations, *_ = run(inputs, solver)
    inputs[2] *= 30
    states, slower, *_ = run(inputs, solver)
    assert slower[2] > iterations[2]
    np.testing.assert_array_equal(states[:2], expected[:2])
    np.testing.assert_array_equal(slower[:2], iterations[:2])


def test_no_sequences():
    arrays = {
        name: array[:0] if name in ("inputs", "initial_state") else array
        for name, array in coffee_arrays((1, LENGTH, 3, 2)).items()
    }
    outputs, final_state = coffee_scan(**arrays, solver="newton")
    assert tuple(outputs.shape) == (0, LENGTH, 3)
    assert tuple(final_state.shape) == (0, 3, 2)


@pytest.mark.parametrize("guess", ["hold", "step", "zeros"])
def test_the_guess_does_not_matter(guess):
    expected, *_ = run(clean(), "sequential")
    states, *_ = run(clean(), dataclasses.replace(NEWTON, initial_guess=guess))
    np.testing.assert_allclose(states, expected, rtol=1e-3, atol=1e-4)
