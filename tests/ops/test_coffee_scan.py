import functools
import itertools

import keras
import numpy as np
import oracles
import pytest
from keras import ops
from nightly import IS_THOROUGH
from rounding import Rounded, assert_agrees
from scans import assert_matches, coffee_arrays, cotangents_of, differentiate, widened

from keras_coffee.ops import coffee_scan
from keras_coffee.solvers import Sequential

SHAPE = (2, 33, 3, 2)


def check(arrays, dtype="float32", feedback="sigmoid", **options):
    assert_matches(
        lambda **tensors: coffee_scan(**tensors, feedback=feedback, **options),
        lambda *args: oracles.coffee(*args, feedback=feedback),
        arrays,
        cotangents_of(arrays),
        dtype,
    )


def run(arrays, **options):
    return [ops.convert_to_numpy(x) for x in coffee_scan(**arrays, **options)]


def arrays_for(feedback, gated=False):
    if feedback != "linear":
        return coffee_arrays(SHAPE, gated=gated)
    # Without a sigmoid this is a logistic map, which diverges from wrong signs and large gates.
    arrays = coffee_arrays(SHAPE, gate_scale=0.05, input_scale=1.0, gated=gated)
    return arrays | {name: abs(arrays[name]) for name in ("gate", "initial_state")}


# Feedback and the optional arrays: every set of them, or each pair of two options at least once.
OPTIONAL = ("input_matrix", "output_gate", "gate_inputs", "gate_bias")
SETS = [s for count in range(5) for s in itertools.combinations(OPTIONAL, count)]
OPTIONS = list(itertools.product(["sigmoid", "linear", None], SETS))
PAIRS = [
    *[("sigmoid", ()), ("sigmoid", OPTIONAL)],
    *[("linear", ("input_matrix", "gate_inputs")), ("linear", ("output_gate", "gate_bias"))],
    *[(None, ("input_matrix", "output_gate", "gate_bias")), (None, ("gate_inputs",))],
]


@pytest.mark.parametrize(("feedback", "optional"), OPTIONS if IS_THOROUGH else PAIRS, ids=str)
def test_values_and_gradients_of_every_option(feedback, optional):
    arrays = arrays_for(feedback, gated=True)
    for name in set(OPTIONAL) - set(optional):
        del arrays[name]
    check(arrays, "float64", feedback)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 1, 2, 3), (1, 7, 1, 2), SHAPE, (0, 3, 2, 2)], ids=str
)
@pytest.mark.smoke
def test_values_and_gradients_of_every_shape(shape):
    check(coffee_arrays(shape, optional=False))


@pytest.mark.smoke
def test_values_and_gradients_of_a_long_sequence():
    check(coffee_arrays((2, 4096, 3, 2)), "float64")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_of_gates_that_saturate(dtype):
    # Inputs and biases of the gate of up to some hundreds, of both signs, that often cancel.
    arrays = coffee_arrays((2, 33, 3, 2), gated=True)
    for name in ("gate_inputs", "gate_bias"):
        arrays[name] *= 50
    check(arrays, dtype)


def test_values_and_gradients_of_gentle_weights():
    check(coffee_arrays((3, 257, 2, 3), gate_scale=0.5, input_scale=1.0))


def test_each_step_of_a_long_sequence_in_float32():
    # Over 4096 hard steps the last bit of a float32 can decide an output, so two trajectories may
    # differ and both be right. But with n = 1 and C = 1 outputs are states: each must follow from
    # the one before it, whatever that is, and the gradient must be that of this trajectory.
    arrays = coffee_arrays((2, 4096, 4, 1), optional=False)
    arrays["readout"][:] = 1
    cotangents = cotangents_of(arrays)
    (outputs, final_state), gradients = differentiate(coffee_scan, arrays, cotangents)
    np.testing.assert_array_equal(final_state[..., 0], outputs[:, -1])
    states = np.concatenate([arrays["initial_state"][:, None], outputs[..., None]], 1)

    exact = {name: Rounded(widened(array)) for name, array in arrays.items()}
    states = Rounded(widened(states))
    expected = oracles.coffee_step(exact, states[:, :-1], exact["inputs"][..., None])
    assert_agrees(outputs[..., None], expected, "states")
    expected = oracles.coffee_gradients(exact, states, *map(widened, cotangents))
    for name, gradient in gradients.items():
        assert_agrees(gradient, expected[name], f"gradient by {name}")


def test_default_initial_state_is_zero():
    arrays = coffee_arrays(SHAPE)
    expected = run(arrays | {"initial_state": np.zeros_like(arrays["initial_state"])})
    del arrays["initial_state"]
    for actual, e in zip(run(arrays), expected, strict=True):
        np.testing.assert_array_equal(actual, e)


@pytest.mark.parametrize("solver", ["sequential", Sequential()])
def test_solvers_agree(solver):
    arrays = coffee_arrays(SHAPE)
    for actual, expected in zip(run(arrays, solver=solver), run(arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 1000] if IS_THOROUGH else [1, 3, 16, 1000])
def test_recomputed_values_and_gradients(length):
    arrays = coffee_arrays((2, length, 2, 2), gate_scale=0.5, input_scale=1.0, optional=False)
    check(arrays, recompute=True)


def test_recomputed_gradients_of_an_empty_batch():
    check(coffee_arrays((0, 5, 3, 2), optional=False), recompute=True)


def test_recomputed_values_and_gradients_with_options():
    check(coffee_arrays(SHAPE, gated=True), "float64", recompute=True)


def test_a_parallel_solver_with_inputs_and_a_bias_of_the_gate():
    arrays = coffee_arrays(SHAPE, gate_scale=0.5, input_scale=1.0, gated=True)
    cotangents = cotangents_of(arrays)
    parallel, sequential = (
        differentiate(functools.partial(coffee_scan, solver=solver), arrays, cotangents)
        for solver in ("newton", "sequential")
    )
    for actual, expected in zip(parallel[0], sequential[0], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    for name, gradient in parallel[1].items():
        scale = abs(sequential[1][name]).max()
        np.testing.assert_allclose(gradient, sequential[1][name], atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_accumulated_in_float32(dtype):
    arrays = coffee_arrays(SHAPE, gated=True)
    low = {name: ops.cast(array, dtype) for name, array in arrays.items()}
    outputs, state = coffee_scan(**low)
    wide, wide_state = coffee_scan(**{k: ops.cast(array, "float32") for k, array in low.items()})
    # A state that is rounded at every handover drifts.
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in (outputs, state)]
    assert dtypes == [dtype, "float32"]
    for actual, e in ((outputs, ops.cast(wide, dtype)), (state, wide_state)):
        actual, e = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (actual, e))
        np.testing.assert_array_equal(actual, e)


def test_gradients_in_low_precision():
    arrays = coffee_arrays(SHAPE, gate_scale=0.5, input_scale=1.0, optional=False)
    low = {name: array.astype("float16") for name, array in arrays.items()}
    cotangents = cotangents_of(arrays)
    cotangents[0] = cotangents[0].astype("float16")  # the state stays in float32
    wide = {name: array.astype("float32") for name, array in low.items()}
    _, expected = differentiate(coffee_scan, wide, [c.astype("float32") for c in cotangents])
    _, gradients = differentiate(coffee_scan, low, cotangents)
    for name, gradient in gradients.items():
        assert gradient.dtype == "float16"
        np.testing.assert_allclose(gradient, expected[name].astype("float16"), rtol=2**-10)


def test_weights_take_the_dtype_of_the_inputs():
    arrays = coffee_arrays(SHAPE)
    mixed = {name: a if name == "inputs" else widened(a) for name, a in arrays.items()}
    for actual, expected in zip(run(mixed), run(arrays), strict=True):
        assert actual.dtype == "float32"
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_nan_stays_in_its_feature_and_sequence_and_goes_on_from_its_step(feedback):
    arrays = arrays_for(feedback)
    clean_outputs, clean_final = run(arrays, feedback=feedback)
    arrays["inputs"][1, 5, 2] = np.nan
    outputs, final_state = run(arrays, feedback=feedback)
    clean_outputs[1, 5:, 2] = clean_final[1, 2] = np.nan
    np.testing.assert_array_equal(outputs, clean_outputs)
    np.testing.assert_array_equal(final_state, clean_final)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_infinity_is_never_hidden(feedback, value):
    arrays = arrays_for(feedback)
    arrays["inputs"][1, 5, 2] = value
    with np.errstate(all="ignore"):
        expected = oracles.values(oracles.coffee, arrays, feedback)
    for actual, e in zip(run(arrays, feedback=feedback), expected, strict=True):
        assert not np.isfinite(e).all()
        np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(e))


def test_nan_in_an_input_of_the_gate_goes_on_from_its_step():
    arrays = coffee_arrays(SHAPE, gated=True)
    outputs, final_state = run(arrays)
    arrays["gate_inputs"][1, 5, 2] = np.nan
    outputs[1, 5:, 2] = final_state[1, 2] = np.nan
    for actual, expected in zip(run(arrays), (outputs, final_state), strict=True):
        np.testing.assert_array_equal(actual, expected)


ZEROS = {
    name: np.zeros_like(array) for name, array in coffee_arrays((2, 5, 3, 4), gated=True).items()
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"inputs": np.zeros((2, 5))},
            r"`inputs` must have shape \(batch, time, features\).*\(2, 5\)",
        ),
        (
            {"inputs": np.zeros((2, 0, 3))},
            r"`inputs` has no steps: its shape is \(2, 0, 3\).*at least",
        ),
        ({"inputs": np.zeros((2, 5, 2))}, r"`transition` must have shape \(2, any\).*\(3, 4\)"),
        ({"transition": np.zeros(3)}, r"`transition` must have shape \(3, any\).*\(3,\)"),
        ({"transition": np.zeros((3, 0))}, r"`transition` must have .* n of at least 1.*\(3, 0\)"),
        ({"gate": np.zeros((4, 3))}, r"`gate` must have shape \(3, 4\), received \(4, 3\)"),
        ({"readout": np.zeros((3, 1))}, r"`readout` must have shape \(3, 4\), received \(3, 1\)"),
        (
            {"input_matrix": np.zeros(4)},
            r"`input_matrix` must have shape \(3, 4\), received \(4,\)",
        ),
        ({"output_gate": np.zeros((1, 3, 4))}, r"`output_gate` must have shape.*\(1, 3, 4\)"),
        ({"gate_bias": np.zeros(3)}, r"`gate_bias` must have shape \(3, 4\), received \(3,\)"),
        (
            {"gate_inputs": np.zeros((2, 5, 3, 4))},
            r"`gate_inputs` must have shape \(2, 5, 3\), received \(2, 5, 3, 4\)",
        ),
        ({"gate_inputs": np.zeros((2, 4, 3))}, r"`gate_inputs` must have.*received \(2, 4, 3\)"),
        (
            {"initial_state": np.zeros((3, 4))},
            r"`initial_state` must have shape \(2, 3, 4\).*\(3, 4\)",
        ),
        ({"initial_state": np.zeros((1, 3, 4))}, r"`initial_state` must have.*\(1, 3, 4\)"),
        ({"feedback": "tanh"}, r"`feedback` must be one of \('sigmoid', 'linear', None\).*'tanh'"),
        (
            {"solver": "associative"},
            r"'sequential'.*keras_coffee\.solvers, received 'associative'",
        ),
        ({"solver": None}, "nonlinear in its state .*, received None"),
    ],
)
def test_unfit_arguments(changed, message):
    with pytest.raises(ValueError, match=message):
        coffee_scan(**ZEROS | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"inputs": np.zeros((2, 5, 3), int)},
            "`inputs` must be floating-point.*int.*Cast it first",
        ),
        (
            {"inputs": np.zeros((2, 5, 3), bool)},
            "`inputs` must be floating-point, received dtype bool",
        ),
        (
            {"inputs": np.zeros((2, 5, 3), "complex64")},
            "`inputs` must be floating-point.*complex64",
        ),
        ({"inputs": keras.KerasTensor((2, 5, 3))}, "`inputs` is a symbolic KerasTensor.*layer"),
        ({"gate": None}, "`gate` is required, received None"),
        ({"readout": np.zeros((3, 4), "complex64")}, "`readout` must be real.*complex64"),
        (
            {"gate_inputs": np.zeros((2, 5, 3), "complex64")},
            "`gate_inputs` must be real.*complex64",
        ),
        ({"gate_bias": np.zeros((3, 4), "complex64")}, "`gate_bias` must be real.*complex64"),
        ({"gate": keras.KerasTensor((3, 4))}, "`gate` is a symbolic KerasTensor"),
        ({"gate_inputs": keras.KerasTensor((2, 5, 3))}, "`gate_inputs` is a symbolic KerasTensor"),
        (
            {"initial_state": keras.KerasTensor((2, 3, 4))},
            "`initial_state` is a symbolic KerasTensor",
        ),
    ],
)
def test_arguments_of_unfit_type(changed, message):
    with pytest.raises(TypeError, match=message):
        coffee_scan(**ZEROS | changed)
