"""The Pallas kernels of JAX, interpreted on the CPU, and lowered for a GPU that is not there."""

import functools

import keras
import numpy as np
import oracles
import pytest
from scans import assert_matches, coffee_arrays, cotangents_of, differentiate, selective_arrays

if keras.config.backend() != "jax":
    pytest.skip("kernels of the JAX backend", allow_module_level=True)

import jax
import jax.numpy as jnp

from keras_coffee.backend import numpy as loops
from keras_coffee.backend.jax import fused, pallas_coffee, pallas_math, pallas_selective

pytestmark = pytest.mark.skipif(not pallas_math.is_available(), reason="this JAX has no Pallas")

SHAPE = (2, 9, 11, 3)  # blocks of steps and a rest; tiles of pairs, the last one not filled
SMALL = (2, 3, 2, 3)


@pytest.fixture(autouse=True)
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def one_step_blocks(monkeypatch):
    """Compiled sooner; for tests of what a step computes."""
    monkeypatch.setattr(pallas_math, "BLOCK", 1)


def coffee(*, keep, feedback="sigmoid", mask=None):
    """The scan as a differentiable function of arrays by name."""

    def scan(inputs, initial_state, transition, gate, readout, input_matrix=None, output_gate=None):
        given = transition, gate, readout, input_matrix, output_gate
        options = {
            "feedback": feedback,
            "has_input_matrix": input_matrix is not None,
            "has_output_gate": output_gate is not None,
            "keep": keep,
            "interpret": True,
        }

        @jax.custom_vjp
        def run(inputs, weights, initial_state):
            return forward(inputs, weights, initial_state)[0]

        def forward(inputs, weights, initial_state):
            outputs, final_state, kept = pallas_coffee.coffee_forward(
                inputs, mask, weights, initial_state, **options
            )
            assert kept.shape == (-(-inputs.shape[1] // keep) * initial_state.size,)
            return (outputs, final_state), (kept, inputs, weights)

        def backward(residuals, cotangents):
            kept, inputs, weights = residuals
            return pallas_coffee.coffee_backward(
                *cotangents, kept, inputs, mask, weights, **options
            )

        run.defvjp(forward, backward)
        return run(inputs, jnp.stack([w for w in given if w is not None]), initial_state)

    return scan


def selective(*, keep, discretization="zoh"):
    options = {"discretization": discretization, "keep": keep, "interpret": True}

    @jax.custom_vjp
    def run(*arrays):
        return forward(*arrays)[0]

    def forward(*arrays):
        outputs, final_state, kept = pallas_selective.selective_forward(*arrays, **options)
        return (outputs, final_state), (kept, *arrays[:-1])

    def backward(residuals, cotangents):
        return pallas_selective.selective_backward(*cotangents, *residuals, **options)

    run.defvjp(forward, backward)
    names = "inputs", "delta", "transition", "input_matrix", "output_matrix", "initial_state"
    return lambda **arrays: run(*(arrays[name] for name in names))


def check_coffee(arrays, dtype="float32", feedback="sigmoid", keep=1):
    oracle = functools.partial(oracles.coffee, feedback=feedback)
    scan = coffee(keep=keep, feedback=feedback)
    assert_matches(scan, oracle, arrays, cotangents_of(arrays), dtype)


def check_selective(arrays, dtype="float32", discretization="zoh", keep=1):
    oracle = functools.partial(oracles.selective, discretization=discretization)
    scan = selective(keep=keep, discretization=discretization)
    assert_matches(scan, oracle, arrays, cotangents_of(arrays), dtype)


# COFFEE.


def test_coffee_of_hard_weights_in_tiles_that_are_not_filled():
    check_coffee(coffee_arrays(SHAPE), "float64")


@pytest.mark.parametrize(
    ("feedback", "optional"),
    [("sigmoid", ()), ("linear", ("output_gate",)), (None, ("input_matrix",))],
    ids=str,
)
def test_coffee_of_every_option(feedback, optional, one_step_blocks):
    gentle = {"gate_scale": 0.05, "input_scale": 1.0} if feedback == "linear" else {}
    arrays = coffee_arrays(SMALL, **gentle)
    for name in {"input_matrix", "output_gate"} - set(optional):
        del arrays[name]
    check_coffee(arrays, "float64", feedback)


@pytest.mark.parametrize(
    ("shape", "keep"), [((1, 1, 1, 1), 1), ((3, 13, 1, 3), 5), ((0, 3, 2, 2), 2)], ids=str
)
def test_coffee_of_every_shape(shape, keep):
    check_coffee(coffee_arrays(shape, optional=False), keep=keep)


def test_coffee_of_gentle_weights_over_many_chunks(one_step_blocks):
    arrays = coffee_arrays((2, 257, 2, 3), gate_scale=0.5, input_scale=1.0, optional=False)
    check_coffee(arrays, keep=16)


def test_coffee_holds_its_state_at_masked_steps(one_step_blocks):
    arrays = coffee_arrays(SMALL)
    cotangents = cotangents_of(arrays)
    mask = np.array([[1, 0, 1], [0, 1, 0]], "float32")

    def expected_scan(**tensors):
        return fused.coffee_scan(**tensors, mask=mask, feedback="sigmoid", recompute=False)

    results, gradients = differentiate(coffee(keep=1, mask=mask), arrays, cotangents)
    _, expected = differentiate(expected_scan, arrays, cotangents)
    wide = {name: array.astype("float64") for name, array in arrays.items()}
    for actual, e in zip(
        results, loops.coffee_scan(**wide, mask=mask, feedback="sigmoid"), strict=True
    ):
        np.testing.assert_allclose(actual, e, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


# The selective scan.


def test_selective_of_several_tiles_in_a_sequence():
    check_selective(selective_arrays(SHAPE), "float64")


@pytest.mark.parametrize(
    ("discretization", "varying", "keep"),
    [("zoh", (False, True), 1), ("euler", (True, False), 1), ("euler", (False, False), 2)],
    ids=str,
)
def test_selective_of_every_option(discretization, varying, keep, one_step_blocks):
    arrays = selective_arrays(SMALL, varying=varying)
    if discretization == "euler":
        arrays["delta"] /= arrays["delta"].max()
    check_selective(arrays, "float64", discretization, keep)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (0, 3, 2, 2)], ids=str)
def test_selective_of_every_shape(shape):
    check_selective(selective_arrays(shape))


# Pairs of λ and Δ: at zero, about the seam at |λΔ| = 0.1, far out, and where powers overflow.
EXPONENTS = [
    (0, 0.7), (-1, 0), (0, 0), (-1, 1e-8), (-1e-8, 1), (-1e-2, 1), (-1, 0.0999999), (-0.1, 1),
    (1, 0.1000001), (-2, 0.3), (1, 3), (-2, 5), (-50, 1), (-1000, 1), (-1e10, 1), (-1, 1e12),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_order_hold_near_zero_at_the_seam_and_far_out(dtype, one_step_blocks):
    # In float64 the bounds ask for all bits of what has overflowed; that much is for float32.
    pairs = EXPONENTS if dtype == "float32" else EXPONENTS[:-2]
    transition, delta = np.array(pairs, "float32").T
    arrays = selective_arrays((1, 1, len(pairs), 1))
    arrays |= {"transition": transition[:, None], "delta": delta[None, None]}
    check_selective(arrays, dtype)


# Both.


@pytest.mark.parametrize("name", ["coffee", "selective"])
def test_low_precision_is_accumulated_in_float32(name, one_step_blocks):
    make, arrays_of = {
        "coffee": (coffee, coffee_arrays),
        "selective": (selective, selective_arrays),
    }[name]
    arrays, scan = arrays_of(SMALL, input_scale=1.0), make(keep=1)
    low = arrays | {"inputs": arrays["inputs"].astype(jnp.bfloat16)}
    cotangents = cotangents_of(arrays)
    cotangents[0] = cotangents[0].astype(jnp.bfloat16)

    @jax.jit
    def run(arrays, cotangents):
        results, vjp = jax.vjp(lambda arrays: scan(**arrays), arrays)
        return results, vjp(cotangents)[0]

    results, gradients = run(low, tuple(cotangents))
    wide = low | {"inputs": low["inputs"].astype("float32")}
    expected_results, expected = run(wide, tuple(c.astype("float32") for c in cotangents))
    assert results[0].dtype == gradients["inputs"].dtype == jnp.bfloat16
    assert results[1].dtype == gradients["initial_state"].dtype == "float32"
    unit = {"bfloat16": 2.0**-8, "float32": 1e-5}  # XLA fuses the two programs differently
    pairs = [*zip(results, expected_results, strict=True)]
    pairs += [(gradients[name], expected[name]) for name in arrays]
    for actual, e in pairs:
        rtol = unit[str(actual.dtype)]
        np.testing.assert_allclose(np.asarray(actual, "float32"), e, rtol=rtol, atol=1e-5)


def test_nan_stays_in_its_pair_where_nothing_is_kept(one_step_blocks):
    arrays = selective_arrays(SHAPE)
    names = "inputs", "delta", "transition", "input_matrix", "output_matrix", "initial_state"

    @jax.jit
    def run(arrays):
        given = [arrays[name] for name in names]
        return pallas_selective.selective_forward(
            *given, discretization="zoh", keep=0, interpret=True
        )

    outputs, final_state, kept = map(np.array, run(arrays))
    assert kept.shape == (0,)
    arrays["inputs"][1, 5, 9] = np.nan
    outputs[1, 5:, 9] = final_state[1, 9] = np.nan
    np.testing.assert_array_equal(run(arrays)[0], outputs)
    np.testing.assert_array_equal(run(arrays)[1], final_state)


def test_infinity_passes_through_states_that_only_fill_a_tile(one_step_blocks):
    arrays = coffee_arrays(SMALL, optional=False)
    arrays["inputs"][1, 1, 1], arrays["readout"] = np.inf, abs(arrays["readout"])
    weights = np.stack([arrays[name] for name in ("transition", "gate", "readout")])
    options = {"feedback": "sigmoid", "has_input_matrix": False, "has_output_gate": False}
    run = functools.partial(pallas_coffee.coffee_forward, **options, keep=0, interpret=True)
    outputs, final_state, kept = jax.jit(run)(
        arrays["inputs"], None, weights, arrays["initial_state"]
    )
    assert kept.shape == (0,)
    with np.errstate(all="ignore"):
        expected = loops.coffee_scan(
            **arrays, input_matrix=None, output_gate=None, mask=None, feedback="sigmoid"
        )
    assert outputs[1, 1, 1] == expected[0][1, 1, 1] == np.inf
    np.testing.assert_array_equal(np.isfinite(outputs), np.isfinite(expected[0]))
    np.testing.assert_array_equal(np.isfinite(final_state), np.isfinite(expected[1]))


def kernels(shape, keep):
    """Each kernel's function and the shapes of its arguments."""
    batch, length, dim, n = shape
    array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    inputs = jax.ShapeDtypeStruct((batch, length, dim), jnp.bfloat16)
    delta, state = array((batch, length, dim)), array((batch, dim, n))
    matrix, mask = array((batch, length, n)), array((batch, length))
    weights, transition = array((5, dim, n)), array((dim, n))
    kept = array((-(-length // keep) * batch * dim * n,))
    of_coffee = {"feedback": "sigmoid", "has_input_matrix": True, "has_output_gate": True}
    of_selective = {"discretization": "zoh"}
    for function, fixed, arrays in (
        (pallas_coffee.coffee_forward, of_coffee, (inputs, mask, weights, state)),
        (
            pallas_coffee.coffee_backward,
            of_coffee,
            (inputs, state, kept, inputs, mask, weights),
        ),
        (
            pallas_selective.selective_forward,
            of_selective,
            (inputs, delta, transition, matrix, matrix, state),
        ),
        (
            pallas_selective.selective_backward,
            of_selective,
            (inputs, state, kept, inputs, delta, transition, matrix, matrix),
        ),
    ):
        yield functools.partial(function, **fixed, keep=keep), arrays


@pytest.mark.parametrize(
    ("shape", "keep"), [((512, 16, 16, 8), 1), ((8, 262144, 1000, 100), 512)], ids=str
)
def test_kernels_lower_for_a_gpu(shape, keep):
    for function, arrays in kernels(shape, keep):
        lowered = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
        text = lowered.as_text()
        assert text.count("custom_call") == text.count("triton") == 1
