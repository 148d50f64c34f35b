import keras
import numpy as np
import oracles
import pytest
from keras import ops
from scans import (
    assert_matches,
    cotangents_of,
    differentiate,
    precision,
    selective_arrays,
    widened,
)

from keras_coffee.ops import selective_scan
from keras_coffee.solvers import Sequential

SHAPE = (2, 33, 3, 2)


def check(arrays, dtype="float32", discretization="zoh", delta_softplus=False, **options):
    chosen = {"discretization": discretization, "delta_softplus": delta_softplus}
    assert_matches(
        lambda **tensors: selective_scan(**tensors, **chosen, **options),
        lambda *args: oracles.selective(*args, **chosen),
        arrays,
        cotangents_of(arrays),
        dtype,
    )


def run(arrays, **options):
    return [ops.convert_to_numpy(x) for x in selective_scan(**arrays, **options)]


def small_steps(arrays):
    """Steps with |1 + λΔ| ≤ 1, so that Euler's states stay bounded."""
    return arrays | {"delta": arrays["delta"] / arrays["delta"].max(initial=1)}


@pytest.mark.parametrize(
    ("discretization", "varying"),
    [
        ("zoh", (True, True)),
        ("zoh", (True, False)),
        ("zoh", (False, True)),
        ("zoh", (False, False)),
        ("euler", (True, True)),
        ("euler", (False, False)),
        ("mamba", (True, True)),
        ("mamba", (False, False)),
    ],
    ids=str,
)
def test_values_and_gradients_of_every_option(discretization, varying):
    arrays = selective_arrays(SHAPE, varying=varying)
    arrays = small_steps(arrays) if discretization == "euler" else arrays
    check(arrays, "float64", discretization)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("discretization", "delta_softplus"), [("zoh", True), ("mamba", True), ("mamba", False)]
)
def test_values_and_gradients_with_skip_bias_and_softplus(discretization, delta_softplus, dtype):
    arrays = selective_arrays(SHAPE, skip=True, delta_bias=True, delta_softplus=delta_softplus)
    check(arrays, dtype, discretization, delta_softplus)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_skip_alone_and_softplus_alone(dtype):
    arrays = selective_arrays(SHAPE, skip=True, delta_bias=True, delta_softplus=True)
    check({k: a for k, a in arrays.items() if k != "skip"}, dtype, "mamba", True, recompute=True)
    check({k: a for k, a in arrays.items() if k != "delta_bias"}, dtype, "mamba", True)
    del arrays["skip"], arrays["delta_bias"]
    check(arrays, dtype, "zoh", True)


# Far out softplus is e^x, x and 0; where e^x is the smallest number, it and its gradients are too.
RAW_STEPS = [
    0,
    1e-8,
    -1e-8,
    1,
    -1,
    5,
    -5,
    16,
    -16,
    17.5,
    30,
    -30,
    50,
    -60,
    -80,
    90,
    -1e3,
    1e4,
    -1e30,
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("discretization", ["zoh", "mamba"])
@pytest.mark.parametrize("transition", [-1, -1e-6, 0])
def test_softplus_of_tiny_and_huge_steps(transition, discretization, dtype):
    arrays = one_step([(transition, raw) for raw in RAW_STEPS])
    check(arrays, dtype, discretization, True)
    arrays |= {"delta_bias": np.float32(RAW_STEPS[::-1]), "skip": np.float32(RAW_STEPS)}
    check(arrays, dtype, discretization, True)


@pytest.mark.parametrize(
    ("shape", "varying"),
    [
        ((1, 1, 1, 1), (True, True)),
        ((1, 7, 2, 1), (False, True)),
        (SHAPE, (True, True)),
        ((3, 257, 1, 3), (True, False)),
        ((0, 3, 2, 2), (True, True)),
    ],
    ids=str,
)
def test_values_and_gradients_of_every_shape(shape, varying):
    check(selective_arrays(shape, varying=varying))


def test_values_and_gradients_of_euler_in_float32():
    check(small_steps(selective_arrays(SHAPE)), discretization="euler")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_of_a_long_sequence(dtype):
    check(selective_arrays((2, 4096, 3, 2)), dtype)


# Pairs of λ and Δ. Near 0 the gain's series is summed; from |λΔ| = 0.1, ln(2)/2 in C, or 0.5 on,
# e^z - 1 is divided.
EXPONENTS = [
    (0, 0.7), (-1, 0), (0, 0), (-1, 1e-8), (-1e-8, 1), (-1, 1e-4), (-1e-4, 1), (-1e-2, 1),
    (1, 1e-4), (-1, 0.0999999), (-0.1, 1), (-1, 0.1000001), (1, 0.0999999), (1, 0.1000001),
    (-2, 0.3), (-1, 0.3465735), (-1, 0.3465737), (-1, 1), (1, 3), (-2, 5), (-1, 50), (-50, 1),
    (-2, 500), (-1000, 1),
]  # fmt: skip


def one_step(pairs):
    """One step, where each pair of λ and Δ has a feature of its own."""
    transition, delta = np.array(pairs, "float32").T
    arrays = selective_arrays((1, 1, len(pairs), 1))
    return arrays | {"transition": transition[:, None], "delta": delta[None, None]}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("discretization", ["zoh", "mamba"])
def test_discretizations_near_zero_at_the_seam_and_far_out(discretization, dtype):
    check(one_step(EXPONENTS), dtype, discretization)


# Powers of these exponents overflow, and zero times infinity must not reach the gradient.
ENORMOUS = [(-1e6, 1), (-1, 1e6), (-1e4, 1e4), (-1, 1e12), (-1e10, 1)]


@pytest.mark.parametrize("discretization", ["zoh", "mamba"])
def test_enormous_exponents(discretization):
    check(one_step(EXPONENTS[: -len(ENORMOUS)] + ENORMOUS), discretization=discretization)


def test_zero_order_hold_of_no_transition_is_a_sum():
    arrays = selective_arrays(SHAPE)
    arrays["transition"][:] = 0
    gain = arrays["delta"] * arrays["inputs"]
    sums = arrays["initial_state"] + np.einsum("btd,btn->bdn", gain, arrays["input_matrix"])
    np.testing.assert_allclose(run(arrays)[1], sums, rtol=1e-5, atol=1e-4)


def test_default_initial_state_is_zero():
    arrays = selective_arrays(SHAPE)
    expected = run(arrays | {"initial_state": np.zeros_like(arrays["initial_state"])})
    del arrays["initial_state"]
    for actual, e in zip(run(arrays), expected, strict=True):
        np.testing.assert_array_equal(actual, e)


@pytest.mark.parametrize("solver", ["sequential", Sequential()])
def test_solvers_agree(solver):
    arrays = selective_arrays(SHAPE)
    for actual, expected in zip(run(arrays, solver=solver), run(arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("length", "varying"), [(1, (True, False)), (17, (False, True))])
def test_recomputed_values_and_gradients(length, varying):
    check(selective_arrays((2, length, 2, 2), varying=varying), recompute=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_accumulated_in_float32(dtype):
    low = {name: ops.cast(array, dtype) for name, array in selective_arrays(SHAPE).items()}
    outputs, state = selective_scan(**low)
    wide, wide_state = selective_scan(**{k: ops.cast(a, "float32") for k, a in low.items()})
    # A state that is rounded at every handover drifts.
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in (outputs, state)]
    assert dtypes == [dtype, "float32"]
    for actual, e in ((outputs, ops.cast(wide, dtype)), (state, wide_state)):
        actual, e = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (actual, e))
        np.testing.assert_array_equal(actual, e)


def test_gradients_in_low_precision():
    arrays = selective_arrays(SHAPE, input_scale=1.0)
    low = {name: array.astype("float16") for name, array in arrays.items()}
    cotangents = cotangents_of(arrays)
    cotangents[0] = cotangents[0].astype("float16")  # the state stays in float32
    wide = {name: array.astype("float32") for name, array in low.items()}
    _, expected = differentiate(selective_scan, wide, [c.astype("float32") for c in cotangents])
    _, gradients = differentiate(selective_scan, low, cotangents)
    for name, gradient in gradients.items():
        assert gradient.dtype == "float16"
        np.testing.assert_allclose(gradient, expected[name].astype("float16"), rtol=2**-10)


def test_other_arrays_take_the_dtype_of_the_inputs():
    arrays = selective_arrays(SHAPE)
    mixed = {name: a if name == "inputs" else widened(a) for name, a in arrays.items()}
    for actual, expected in zip(run(mixed), run(arrays), strict=True):
        assert actual.dtype == "float32"
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("varying", [(True, True), (False, False)], ids=str)
def test_lists_take_the_precision_of_the_inputs(varying):
    arrays = selective_arrays((1, 5, 2, 2), varying=varying, skip=True, delta_bias=True)
    arrays = {name: widened(array) / 3 for name, array in arrays.items()}
    lists = {name: array.tolist() for name, array in arrays.items() if name != "inputs"}
    with precision("float64"):
        for actual, expected in zip(run(arrays | lists), run(arrays), strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["inputs", "delta"])
@pytest.mark.parametrize("discretization", ["zoh", "euler", "mamba"])
def test_nan_stays_in_its_feature_and_sequence_and_goes_on_from_its_step(discretization, name):
    arrays = small_steps(selective_arrays(SHAPE))
    clean_outputs, clean_final = run(arrays, discretization=discretization)
    arrays[name][1, 5, 2] = np.nan
    outputs, final_state = run(arrays, discretization=discretization)
    clean_outputs[1, 5:, 2] = clean_final[1, 2] = np.nan
    np.testing.assert_array_equal(outputs, clean_outputs)
    np.testing.assert_array_equal(final_state, clean_final)


@pytest.mark.parametrize("name", ["inputs", "delta"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("discretization", ["zoh", "euler", "mamba"])
def test_infinity_is_never_hidden(discretization, value, name):
    arrays = small_steps(selective_arrays(SHAPE))
    arrays[name][1, 5, 2] = value
    with np.errstate(all="ignore"):
        expected = oracles.values(oracles.selective, arrays, discretization)
    for actual, e in zip(run(arrays, discretization=discretization), expected, strict=True):
        assert not np.isfinite(e).all()
        np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(e))


ZEROS = {name: np.zeros_like(array) for name, array in selective_arrays((2, 5, 3, 4)).items()}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"inputs": np.zeros((5, 3))},
            r"`inputs` must have shape \(batch, time, features\).*\(5, 3\)",
        ),
        ({"inputs": np.zeros((2, 0, 3))}, r"`inputs` has no steps: its shape is \(2, 0, 3\)"),
        ({"delta": np.zeros((2, 5, 1))}, r"`delta` must have shape \(2, 5, 3\).*\(2, 5, 1\)"),
        ({"transition": np.zeros((2, 4))}, r"`transition` must have shape \(3, any\).*\(2, 4\)"),
        (
            {"input_matrix": np.zeros((4, 3))},
            r"`input_matrix`.*\(batch, time, 4\) or \(3, 4\).*\(4, 3\)",
        ),
        ({"input_matrix": np.zeros((2, 5, 3))}, r"`input_matrix` must have.*\(2, 5, 3\)"),
        ({"output_matrix": np.zeros((1, 5, 4))}, r"`output_matrix` must have.*\(1, 5, 4\)"),
        ({"output_matrix": np.zeros(4)}, r"`output_matrix` must have.*received \(4,\)"),
        ({"initial_state": np.zeros((2, 4, 3))}, r"`initial_state` must have shape \(2, 3, 4\)"),
        (
            {"discretization": "bilinear"},
            r"`discretization` must be one of \('zoh', 'euler', 'mamba'\).*'bil",
        ),
        ({"skip": np.zeros((3, 1))}, r"`skip` must have shape \(3,\), received \(3, 1\)"),
        ({"delta_bias": np.zeros(4)}, r"`delta_bias` must have shape \(3,\), received \(4,\)"),
        ({"solver": "newton"}, "linear in its state .*, received 'newton'"),
    ],
)
def test_unfit_arguments(changed, message):
    with pytest.raises(ValueError, match=message):
        selective_scan(**ZEROS | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"inputs": np.zeros((2, 5, 3), int)},
            "`inputs` must be floating-point.*int.*Cast it first",
        ),
        ({"inputs": keras.KerasTensor((2, 5, 3))}, "`inputs` is a symbolic KerasTensor.*layer"),
        ({"delta": None}, "`delta` is required, received None"),
        ({"delta": np.zeros((2, 5, 3), "complex64")}, "`delta` must be real.*complex64"),
        ({"input_matrix": np.zeros((2, 5, 4), "complex64")}, "`input_matrix` must be real"),
        ({"output_matrix": np.zeros((3, 4), "complex128")}, "`output_matrix` must be real"),
        ({"delta": keras.KerasTensor((2, 5, 3))}, "`delta` is a symbolic KerasTensor"),
        ({"output_matrix": keras.KerasTensor((3, 4))}, "`output_matrix` is a symbolic KerasTensor"),
    ],
)
def test_arguments_of_unfit_type(changed, message):
    with pytest.raises(TypeError, match=message):
        selective_scan(**ZEROS | changed)
