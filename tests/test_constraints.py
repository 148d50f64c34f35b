import keras
import numpy as np
import pytest
from keras import ops

from keras_coffee import constraints
from keras_coffee.constraints import Interval


def apply(constraint, values):
    return ops.convert_to_numpy(constraint(ops.convert_to_tensor(values)))


def test_interval_brings_values_back():
    values = np.array([[-np.inf, -2.5, -2.0, -1.0], [0.0, 1e-6, 3.0, np.inf]], "float32")
    expected = [[-2.0, -2.0, -2.0, -1.0], [0.0, 0.0, 0.0, 0.0]]
    np.testing.assert_array_equal(apply(Interval(-2, 0), values), expected)


def test_nan_stays_nan():
    # More than one vector register, since vectorized minima may treat NaN in another way.
    values = np.full(67, np.nan, "float32")
    values[::3] = -1.0
    np.testing.assert_array_equal(apply(Interval(-2, 0), values), values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_interval_keeps_the_dtype(dtype):
    clipped = Interval(-2, 0)(ops.ones((2, 3), dtype=dtype))
    assert keras.backend.standardize_dtype(clipped.dtype) == dtype


def test_interval_acts_after_a_training_step():
    layer = keras.layers.Dense(1, use_bias=False, kernel_constraint=Interval(-0.25, 0.25))
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.SGD(10.0), "mse")
    model.fit(np.ones((4, 3), "float32"), np.full((4, 1), 100.0, "float32"), verbose=0)
    np.testing.assert_allclose(ops.convert_to_numpy(layer.kernel), 0.25)


@pytest.mark.parametrize(("lower", "upper"), [(0, 0), (1.0, -1.0)])
def test_interval_refuses_bounds_out_of_order(lower, upper):
    with pytest.raises(ValueError, match="`lower` below `upper`; received"):
        Interval(lower, upper)


@pytest.mark.parametrize("bound", [np.nan, -np.inf, None, "low"])
def test_interval_refuses_bounds_that_are_no_finite_numbers(bound):
    with pytest.raises(ValueError, match="finite bounds; received lower="):
        Interval(bound, 0)


def test_config_round_trip():
    restored = constraints.get(keras.constraints.serialize(Interval(-1.5, 2)))
    assert type(restored) is Interval
    assert (restored.lower, restored.upper) == (-1.5, 2.0)


def test_stable_keeps_a_transition_and_its_gate_from_growing():
    stable = constraints.get("stable")
    transition = apply(stable, np.linspace(-5, 5, 101).astype("float32"))
    gates = np.linspace(0, 1, 11)
    assert np.abs(1 + transition[:, None] * gates).max() <= 1
    assert (transition.min(), transition.max()) == (-2.0, 0.0)


def test_get_passes_on_what_keras_understands():
    assert constraints.get(None) is None
    assert isinstance(constraints.get("non_neg"), keras.constraints.NonNeg)
    assert isinstance(constraints.get(keras.constraints.UnitNorm), keras.constraints.UnitNorm)
    assert constraints.get(abs) is abs


@pytest.mark.parametrize("identifier", ["stabel", 7])
def test_get_names_what_it_knows(identifier):
    with pytest.raises(ValueError, match=r"Unknown constraint.*'stable'.*keras\.constraints"):
        constraints.get(identifier)
