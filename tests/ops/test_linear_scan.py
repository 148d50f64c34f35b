import keras
import numpy as np
import oracles
import pytest
from keras import ops
from rounding import exact
from scans import assert_matches, precision, widened

from keras_coffee.ops import linear_scan
from keras_coffee.solvers import Sequential

SHAPE = (2, 33, 3, 2)


def linear_arrays(shape, *, decay_shape=None, kinds=("float32",) * 3, seed=0):
    """Decays up to 1 in size, 1 and 0 among them; inputs of scale 3; an initial state."""
    generator = np.random.default_rng(seed)
    shapes = decay_shape or shape, shape, (shape[0], *shape[2:])
    decay, inputs, state = (_normal(generator, s, k) for s, k in zip(shapes, kinds, strict=True))
    decay *= generator.uniform(0, 1, decay.shape).astype("float32") / np.maximum(abs(decay), 1e-9)
    if decay.size:
        decay.flat[0], decay.flat[-1] = 1, 0
    return {"decay": decay, "inputs": 3 * inputs, "initial_state": state}


def _normal(generator, shape, kind):
    parts = generator.normal(size=(2, *shape))
    return (parts[0] + 1j * parts[1] if kind == "complex64" else parts[0]).astype(kind)


def check(arrays, dtype="float32", reverse=False):
    kind = np.result_type(arrays["decay"], arrays["inputs"])
    cotangent = linear_arrays(arrays["inputs"].shape, kinds=(kind,) * 3, seed=1)["inputs"]
    assert_matches(
        lambda **tensors: linear_scan(**tensors, reverse=reverse)[0],
        lambda *args: oracles.linear(*args, reverse=reverse),
        arrays,
        [cotangent],
        dtype,
    )


def run(arrays, **options):
    return ops.convert_to_numpy(linear_scan(**arrays, **options)[0])


@pytest.mark.parametrize("kind", ["float32", "complex64"], ids=["real", "complex"])
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_values_and_gradients(reverse, kind):
    check(linear_arrays(SHAPE, kinds=(kind,) * 3), "float64", reverse)


@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_complex_numbers_by_the_associative_scan(reverse):
    arrays = linear_arrays(SHAPE, kinds=("complex64",) * 3)
    actual = run(arrays, reverse=reverse, solver="associative")
    np.testing.assert_allclose(actual, run(arrays, reverse=reverse), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "kinds", [("complex64", "float32", "float32"), ("float32", "complex64", "complex64")], ids=str
)
def test_values_and_gradients_of_real_and_complex_together(kinds):
    check(linear_arrays(SHAPE, kinds=kinds))


def test_numbers_of_eight_bits_are_refused():
    inputs = ops.cast(np.ones((1, 4)), "float8_e4m3fn")
    with pytest.raises(TypeError, match="must be floating-point or complex, received dtype float8"):
        linear_scan(0.5, inputs)


@pytest.mark.parametrize("dtype", ["complex64", "float32"])
def test_a_wider_decay_takes_the_precision_of_the_inputs(dtype):
    inputs = ops.convert_to_tensor(np.ones((1, 4)), dtype)
    states, final_state = linear_scan(np.array([0.5]), inputs)
    assert {keras.backend.standardize_dtype(x.dtype) for x in (states, final_state)} == {dtype}


@pytest.mark.parametrize("decay_shape", [(), (3, 1), (33, 1, 1), (2, 1, 3, 2)], ids=str)
def test_values_and_gradients_of_broadcast_decay(decay_shape):
    check(linear_arrays(SHAPE, decay_shape=decay_shape))


@pytest.mark.parametrize("shape", [(1, 1), (1, 257), (0, 3, 2)], ids=str)
def test_values_and_gradients_of_every_shape(shape):
    check(linear_arrays(shape))
    check(linear_arrays(shape), reverse=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_of_a_long_sequence(dtype):
    check(linear_arrays((2, 4096, 3)), dtype)


def test_default_initial_state_is_zero():
    arrays = linear_arrays(SHAPE)
    expected = run(arrays | {"initial_state": np.zeros_like(arrays["initial_state"])})
    del arrays["initial_state"]
    np.testing.assert_array_equal(run(arrays), expected)


@pytest.mark.parametrize("solver", ["sequential", Sequential()])
def test_solvers_agree(solver):
    arrays = linear_arrays(SHAPE)
    np.testing.assert_array_equal(run(arrays, solver=solver), run(arrays))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_accumulated_in_float32(dtype):
    low = {name: ops.cast(array, dtype) for name, array in linear_arrays(SHAPE).items()}
    states, state = linear_scan(**low)
    expected, _ = linear_scan(**{name: ops.cast(array, "float32") for name, array in low.items()})
    assert keras.backend.standardize_dtype(state.dtype) == "float32"
    assert keras.backend.standardize_dtype(states.dtype) == dtype
    actual, expected = (
        ops.convert_to_numpy(ops.cast(x, "float32")) for x in (states, ops.cast(expected, dtype))
    )
    np.testing.assert_array_equal(actual, expected)


def test_decay_takes_the_dtype_of_the_inputs():
    arrays = linear_arrays(SHAPE)
    states = run(arrays | {"decay": widened(arrays["decay"])})
    assert states.dtype == "float32"
    np.testing.assert_array_equal(states, run(arrays))


def test_complex_decay_of_low_precision_inputs():
    arrays = linear_arrays(SHAPE, kinds=("complex64", "float32", "float32"))
    states = run(arrays | {"inputs": ops.cast(arrays["inputs"], "bfloat16")})
    assert states.dtype == "complex64"


@pytest.mark.parametrize("number", [0.9, 0.9 + 0.1j])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_python_number_takes_the_precision_of_the_inputs(dtype, number):
    with precision(dtype):
        _, state = linear_scan(number, ops.ones((1, 30, 1), dtype))
        state = ops.convert_to_numpy(state)
    assert state.dtype.itemsize == (8 if dtype == "float64" else 4) * (
        1 + isinstance(number, complex)
    )
    tolerance = 1e-14 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(state[0, 0], (1 - number**30) / (1 - number), rtol=tolerance)


@pytest.mark.parametrize("decay", [[0.9, 0.8], [0.9j, 0.8 + 0.1j], [1, 0.8]], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_lists_take_the_precision_of_the_inputs(dtype, decay):
    given = [[0.1, 0.2]]
    with precision(dtype):
        _, state = linear_scan(decay, ops.ones((1, 30, 2), dtype), initial_state=given)
        state = ops.convert_to_numpy(state)
    expected = np.array(given)
    for _ in range(30):
        expected = np.array(decay) * expected + 1
    assert state.dtype == (np.result_type(expected) if dtype == "float64" else state.dtype)
    np.testing.assert_allclose(state, expected, rtol=1e-14 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("solver", ["sequential", "associative"])
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_the_final_state_is_that_of_the_last_step_run(reverse, solver):
    arrays = linear_arrays(SHAPE)
    states, final_state = linear_scan(**arrays, reverse=reverse, solver=solver)
    states, final_state = (ops.convert_to_numpy(x) for x in (states, final_state))
    np.testing.assert_array_equal(final_state, states[:, 0 if reverse else -1])


@pytest.mark.parametrize("kind", ["float32", "complex64"], ids=["real", "complex"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_one_decay_for_all_sequences_or_steps(reverse, axes, kind):
    arrays = linear_arrays(SHAPE, kinds=(kind,) * 3)
    shape = [1 if k in axes else size for k, size in enumerate(arrays["decay"].shape)]
    arrays["decay"] = arrays["decay"][tuple(slice(size) for size in shape)]
    check(arrays, "float64", reverse)


@pytest.mark.parametrize("name", ["inputs", "decay"])
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_nan_stays_in_its_element_and_goes_on_from_its_step(reverse, name):
    arrays = linear_arrays(SHAPE)
    expected = run(arrays, reverse=reverse)
    arrays[name][1, 5, 2, 0] = np.nan
    expected[1, slice(None, 6) if reverse else slice(5, None), 2, 0] = np.nan
    np.testing.assert_array_equal(run(arrays, reverse=reverse), expected)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_is_never_hidden(value):
    arrays = linear_arrays(SHAPE)
    arrays["inputs"][1, 5, 2, 0] = value
    arrays["decay"][1, 9, 2, 0] = 0
    with np.errstate(all="ignore"):
        expected = exact(oracles.linear(arrays, [0 * arrays["inputs"]])[0][0])
    actual = run(arrays)
    assert not np.isfinite(expected).all()
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))


ZEROS = {name: np.zeros_like(array) for name, array in linear_arrays((2, 5, 3)).items()}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"inputs": np.zeros(5)}, r"`inputs` must have shape \(batch, time, \.\.\.\).*\(5,\)"),
        ({"inputs": np.zeros((2, 0))}, r"`inputs` has no steps: its shape is \(2, 0\)"),
        (
            {"decay": np.zeros(2)},
            r"`decay` must broadcast to the inputs' shape \(2, 5, 3\).*\(2,\)",
        ),
        ({"decay": np.zeros((1, 2, 5, 3))}, r"`decay` must broadcast.*\(1, 2, 5, 3\)"),
        ({"decay": np.zeros((2, 4, 3))}, r"`decay` must broadcast.*\(2, 4, 3\)"),
        ({"initial_state": np.zeros((2, 5, 3))}, r"`initial_state` must have shape \(2, 3\)"),
        ({"solver": "newton"}, "linear in its state .*, received 'newton'"),
    ],
)
def test_unfit_arguments(changed, message):
    with pytest.raises(ValueError, match=message):
        linear_scan(**ZEROS | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"inputs": np.zeros((2, 5, 3), int)},
            "`inputs` must be floating-point or complex.*int.*Cast",
        ),
        (
            {"decay": np.zeros((2, 5, 3), int)},
            "`decay` must be floating-point or complex.*int.*Cast",
        ),
        ({"inputs": keras.KerasTensor((2, 5, 3))}, "`inputs` is a symbolic KerasTensor.*layer"),
        ({"decay": None}, "`decay` is required, received None"),
        (
            {"initial_state": np.zeros((2, 3), "complex64")},
            "`initial_state` must be real.*complex64",
        ),
        ({"decay": keras.KerasTensor((2, 5, 3))}, "`decay` is a symbolic KerasTensor"),
    ],
)
def test_arguments_of_unfit_type(changed, message):
    with pytest.raises(TypeError, match=message):
        linear_scan(**ZEROS | changed)
