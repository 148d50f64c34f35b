"""The Pallas kernels of JAX, interpreted on the CPU, and lowered for a GPU that is not there."""

import functools
import sys

import keras
import numpy as np
import oracles
import pytest
from scans import (
    assert_matches,
    assert_same,
    coffee_arrays,
    cotangents_of,
    differentiate,
    in_pieces,
    selective_arrays,
)

if keras.config.backend() != "jax":
    pytest.skip("kernels of the JAX backend", allow_module_level=True)

import jax
import jax.numpy as jnp

from keras_coffee.backend.jax import gpu_kernels, pallas_driver
from keras_coffee.cells import CoffeeCell
from keras_coffee.ops.cell_scan import run as run_cell

SHAPE = (2, 9, 11, 3)  # blocks of steps and a rest; tiles of pairs, the last one not filled
SMALL = (2, 3, 2, 3)
COFFEE_WEIGHTS = "transition", "gate", "readout", "input_matrix", "output_gate", "gate_bias"


def kernels_of(name):
    if name == "linear":
        return gpu_kernels.linear_forward, gpu_kernels.linear_backward
    recurrence = gpu_kernels.RECURRENCES[name]
    drivers = pallas_driver.forward, pallas_driver.backward
    return (functools.partial(driver, recurrence) for driver in drivers)


@pytest.fixture(autouse=True)
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def one_step_blocks(monkeypatch):
    """Compiled sooner; for tests of what a step computes."""
    monkeypatch.setattr(pallas_driver, "BLOCK", 1)


@pytest.fixture
def two_step_blocks(monkeypatch):
    """Blocks and a rest, as by default, in a program of half the size."""
    monkeypatch.setattr(pallas_driver, "BLOCK", 2)


def coffee_arguments(arrays, mask=None, reset=None):
    weights = [arrays.get(name) for name in COFFEE_WEIGHTS]
    sequences = [arrays["inputs"], arrays.get("gate_inputs"), mask, reset]
    return sequences, weights, arrays["initial_state"]


def selective_arguments(arrays, reset=None):
    matrices = [arrays[name] for name in ("input_matrix", "output_matrix")]
    varying = [m if m.ndim == 3 else None for m in matrices]
    fixed = [m if m.ndim == 2 else None for m in matrices]
    sequences = [arrays["inputs"], arrays["delta"], *varying, reset]
    skip = arrays["skip"][:, None] if "skip" in arrays else None
    return sequences, [arrays["transition"], *fixed, skip], arrays["initial_state"]


def driven(name, arguments, *, keep, **options):
    """The scan as a differentiable function of arrays by name."""
    kernels = kernels_of(name)
    run_forward, run_backward = (
        functools.partial(kernel, keep=keep, interpret=True, **options) for kernel in kernels
    )

    @jax.custom_vjp
    def run(sequences, weights, state):
        return forward(sequences, weights, state)[0]

    def forward(sequences, weights, state):
        outputs, final_state, kept = run_forward(sequences, weights, state)
        assert kept.shape == (-(-outputs.shape[1] // keep) * state.size,)
        return (outputs, final_state), (kept, sequences, weights)

    def backward(residuals, cotangents):
        _, sequences, weights = residuals
        grads = run_backward(*cotangents, *residuals)
        # Masks and resets, which have two axes, have no gradient.
        assert [g is None for g in grads[0]] == [x is None or x.ndim == 2 for x in sequences]
        assert [g is None for g in grads[1]] == [w is None for w in weights]
        return grads

    run.defvjp(forward, backward)
    return lambda **arrays: run(*arguments(arrays))


def coffee(*, keep, feedback="sigmoid", **marks):
    arguments = functools.partial(coffee_arguments, **marks)
    return driven("coffee", arguments, keep=keep, feedback=feedback)


def selective(*, keep, reset=None, **chosen):
    arguments = functools.partial(selective_arguments, reset=reset)
    return driven("selective", arguments, keep=keep, **chosen)


def check_coffee(arrays, dtype="float32", feedback="sigmoid", keep=1):
    oracle = functools.partial(oracles.coffee, feedback=feedback)
    scan = coffee(keep=keep, feedback=feedback)
    assert_matches(scan, oracle, arrays, cotangents_of(arrays), dtype)


def check_selective(arrays, dtype="float32", discretization="zoh", keep=1, delta_softplus=False):
    chosen = {"discretization": discretization, "delta_softplus": delta_softplus}
    oracle = functools.partial(oracles.selective, **chosen)
    scan = selective(keep=keep, **chosen)
    assert_matches(scan, oracle, arrays, cotangents_of(arrays), dtype)


# COFFEE.


def test_coffee_of_hard_weights_in_tiles_that_are_not_filled():
    check_coffee(coffee_arrays(SHAPE, gated=True), "float64")


@pytest.mark.parametrize(
    ("feedback", "optional"),
    [
        ("sigmoid", ()),
        ("sigmoid", ("gate_inputs", "gate_bias")),
        ("linear", ("output_gate", "gate_bias")),
        (None, ("input_matrix", "gate_inputs")),
    ],
    ids=str,
)
def test_coffee_of_every_option(feedback, optional, one_step_blocks):
    gentle = {"gate_scale": 0.05, "input_scale": 1.0} if feedback == "linear" else {}
    arrays = coffee_arrays(SMALL, **gentle, gated=True)
    for name in {"input_matrix", "output_gate", "gate_inputs", "gate_bias"} - set(optional):
        del arrays[name]
    check_coffee(arrays, "float64", feedback)


# The second one in chunks of a block and a rest, the last chunk of one step.
@pytest.mark.parametrize(
    ("shape", "keep"), [((1, 1, 1, 1), 1), ((3, 7, 1, 3), 3), ((0, 3, 2, 2), 2)], ids=str
)
def test_coffee_of_every_shape(shape, keep, two_step_blocks):
    check_coffee(coffee_arrays(shape, optional=False), keep=keep)


def test_coffee_of_gentle_weights_over_many_chunks(one_step_blocks):
    arrays = coffee_arrays((2, 257, 2, 3), gate_scale=0.5, input_scale=1.0, optional=False)
    check_coffee(arrays, keep=16)


def test_coffee_holds_its_state_at_masked_steps(one_step_blocks):
    arrays = coffee_arrays(SMALL, gated=True)
    cotangents = cotangents_of(arrays)
    mask = np.array([[1, 0, 1], [0, 1, 0]], "float32")

    def expected_scan(inputs, gate_inputs, initial_state, **weights):
        cell, inputs = CoffeeCell(**weights), (inputs, gate_inputs)
        return run_cell(cell, inputs, initial_state, mask.astype(bool), None, "sequential", False)

    results, gradients = differentiate(coffee(keep=1, mask=mask), arrays, cotangents)
    expected_results, expected = differentiate(expected_scan, arrays, cotangents)
    for actual, e in zip(results, expected_results, strict=True):
        np.testing.assert_allclose(actual, e, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_an_infinite_state_is_held_at_masked_steps(one_step_blocks):
    arrays = coffee_arrays(SMALL, optional=False)
    arrays["initial_state"][:] = np.inf
    arguments = coffee_arguments(arrays, mask=np.zeros(SMALL[:2], "float32"))
    forward, _ = kernels_of("coffee")
    run = functools.partial(forward, feedback="sigmoid", keep=0, interpret=True)
    assert np.isposinf(jax.jit(run)(*arguments)[1]).all()


@pytest.mark.parametrize("name", ["coffee", "selective"])
def test_resets_cut_a_row_into_pieces(name, one_step_blocks):
    reset = np.array([[0, 1, 0], [1, 0, 1]], "float32")
    scan, arrays = (
        (coffee, coffee_arrays(SMALL, gate_scale=0.5, input_scale=1.0, gated=True))
        if name == "coffee"
        else (functools.partial(selective, **MAMBA), selective_arrays(SMALL, skip=True))
    )
    arguments = scan(keep=2, reset=reset), in_pieces(scan(keep=2), reset), arrays
    assert_same(*arguments, "float32", 2e-6)


MAMBA = {"discretization": "mamba", "delta_softplus": False}

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


# Tiles that are not filled, in features and in states.
@pytest.mark.parametrize(
    ("discretization", "delta_softplus", "keep", "varying"),
    [
        ("zoh", True, 2, (False, False)),
        ("mamba", True, 1, (True, True)),
        ("mamba", False, 2, (False, False)),
    ],
    ids=str,
)
def test_selective_with_skip_and_softplus(
    discretization, delta_softplus, keep, varying, one_step_blocks
):
    options = {"skip": True, "delta_softplus": delta_softplus}
    arrays = selective_arrays((2, 3, 11, 3), varying=varying, **options)
    check_selective(arrays, "float64", discretization, keep, delta_softplus)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softplus_of_tiny_and_huge_steps(dtype, one_step_blocks):
    raw = [0, 1e-8, 1, -1, 5, -16, 17.5, -30, 30, 50, -60, -80, 90, -1e3, 1e4, -1e30]
    arrays = selective_arrays((1, 1, len(raw), 1), skip=True)
    arrays["delta"] = np.float32(raw)[None, None]
    check_selective(arrays, dtype, "mamba", delta_softplus=True)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (0, 3, 2, 2)], ids=str)
def test_selective_of_every_shape(shape, one_step_blocks):
    check_selective(selective_arrays(shape))
    arrays = selective_arrays(shape, skip=True, delta_softplus=True)
    check_selective(arrays, "float32", "mamba", delta_softplus=True)


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


def test_nan_stays_in_its_pair_where_nothing_is_kept(one_step_blocks):
    arrays = selective_arrays(SHAPE)

    @jax.jit
    def run(arrays):
        forward, _ = kernels_of("selective")
        arguments = selective_arguments(arrays)
        options = {"discretization": "zoh", "delta_softplus": False}
        return forward(*arguments, **options, keep=0, interpret=True)

    outputs, final_state, kept = map(np.array, run(arrays))
    assert kept.shape == (0,)
    arrays["inputs"][1, 5, 9] = np.nan
    outputs[1, 5:, 9] = final_state[1, 9] = np.nan
    np.testing.assert_array_equal(run(arrays)[0], outputs)
    np.testing.assert_array_equal(run(arrays)[1], final_state)


def test_infinity_passes_through_states_that_only_fill_a_tile(one_step_blocks):
    arrays = coffee_arrays(SMALL, optional=False)
    arrays["inputs"][1, 1, 1], arrays["readout"] = np.inf, abs(arrays["readout"])
    forward, _ = kernels_of("coffee")
    run = functools.partial(forward, feedback="sigmoid", keep=0, interpret=True)
    outputs, final_state, kept = jax.jit(run)(*coffee_arguments(arrays))
    assert kept.shape == (0,)
    with np.errstate(all="ignore"):
        expected = oracles.values(oracles.coffee, arrays)
    assert outputs[1, 1, 1] == expected[0][1, 1, 1] == np.inf
    np.testing.assert_array_equal(np.isfinite(outputs), np.isfinite(expected[0]))
    np.testing.assert_array_equal(np.isfinite(final_state), np.isfinite(expected[1]))


# The linear recurrence.


def linear(*, reverse):
    """The scan as a differentiable function, with JAX's gradients, which are conjugates."""
    kernels = kernels_of("linear")
    run_forward, run_backward = (
        functools.partial(kernel, reverse=reverse, interpret=True) for kernel in kernels
    )

    @jax.custom_vjp
    def run(decay, inputs, initial_state):
        return run_forward(decay, inputs, initial_state)

    def forward(decay, inputs, initial_state):
        states = run_forward(decay, inputs, initial_state)
        return states, (states, decay, initial_state)

    def backward(residuals, cotangent):
        return tuple(map(jnp.conj, run_backward(jnp.conj(cotangent), *residuals)))

    run.defvjp(forward, backward)
    return run


def linear_arrays(shape, *, decay_shape=None, kind="float32", seed=0):
    """Decays up to 1 in size, some of them next to 0 and to 1; inputs of scale 3."""
    generator = np.random.default_rng(seed)

    def normal(shape):
        parts = generator.normal(size=(2, *shape))
        return (parts[0] + 1j * parts[1] if kind == "complex64" else parts[0]).astype(kind)

    decay = normal(decay_shape or shape)
    sizes = generator.uniform(size=decay.shape)
    hard = np.resize([0, 1, 1e-30, 1 - 1e-7, 1e-4, 1 - 1e-3], decay.shape)
    sizes = np.where(generator.uniform(size=decay.shape) < 0.5, hard, sizes)
    decay = (decay / abs(decay) * sizes).astype(kind)
    return {
        "decay": decay,
        "inputs": 3 * normal(shape),
        "initial_state": normal((shape[0], *shape[2:])),
    }


def check_linear(shape, dtype="float32", reverse=False, **options):
    arrays = linear_arrays(shape, **options)
    cotangent = linear_arrays(shape, **options, seed=1)["inputs"]
    oracle = functools.partial(oracles.linear, reverse=reverse)
    assert_matches(linear(reverse=reverse), oracle, arrays, [cotangent], dtype)


# Each pair of a direction, a kind and a dtype: the kernel is one and the same for all of them.
@pytest.mark.parametrize(
    ("reverse", "kind", "dtype"),
    [
        (False, "float32", "float32"),
        (False, "complex64", "float64"),
        (True, "float32", "float64"),
        (True, "complex64", "float32"),
    ],
)
def test_linear_of_decays_near_zero_and_one(reverse, kind, dtype):
    check_linear((2, 33, 5, 7), dtype, reverse, kind=kind)


# Each pair of these axes, a direction and a kind.
@pytest.mark.parametrize(
    ("axes", "reverse", "kind"),
    [
        ((1, 1), False, "float32"),
        ((1, 1), True, "complex64"),
        ((3, 1), False, "complex64"),
        ((3, 1), True, "float32"),
        ((1, 9), False, "float32"),
        ((1, 9), True, "complex64"),
    ],
    ids=str,
)
def test_linear_of_a_decay_that_is_broadcast(axes, reverse, kind, two_step_blocks):
    check_linear((3, 9, 2, 3), "float64", reverse, decay_shape=(*axes, 2, 3), kind=kind)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1, 3), (1, 6, 40), (0, 3, 2), (2, 3, 0)], ids=str)
def test_linear_of_every_shape(shape):
    check_linear(shape)
    check_linear(shape, decay_shape=(1, 1, *shape[2:]), reverse=True)


def test_linear_of_a_long_sequence():
    check_linear((1, 4096, 3), decay_shape=(1, 1, 3))


@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_linear_holds_nan_in_its_element_and_goes_on_from_its_step(reverse):
    arrays, run = linear_arrays((2, 9, 3)), jax.jit(linear(reverse=reverse))
    expected = np.array(run(**arrays))
    arrays["inputs"][1, 5, 2] = np.nan
    expected[1, slice(None, 6) if reverse else slice(5, None), 2] = np.nan
    np.testing.assert_array_equal(run(**arrays), expected)


# On a GPU.


def calls(shape, keep):
    """Each kernel's function and the shapes of its arguments."""
    batch, length, dim, n = shape
    array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    inputs, state, weight = (array(x) for x in ((batch, length, dim), (batch, dim, n), (dim, n)))
    matrix, mask, row = array((batch, length, n)), array((batch, length)), array((dim, 1))
    kept = array((-(-length // keep) * batch * dim * n,))
    for name, options, sequences, weights in (
        ("coffee", {"feedback": "sigmoid"}, [inputs, None, mask, mask], [weight] * 5 + [None]),
        ("coffee", {"feedback": "sigmoid"}, [inputs, inputs, mask, None], [weight] * 6),
        (
            *("selective", {"discretization": "zoh", "delta_softplus": False}),
            *([inputs, inputs, matrix, matrix, mask], [weight, *[None] * 3]),
        ),
        (
            *("selective", {"discretization": "mamba", "delta_softplus": True}),
            *([inputs, inputs, matrix, matrix, None], [weight, None, None, row]),
        ),
    ):
        forward, backward = (
            functools.partial(kernel, keep=keep, **options) for kernel in kernels_of(name)
        )
        yield forward, (sequences, weights, state)
        yield backward, (inputs, state, kept, sequences, weights)
    for dtype in (jnp.float32, jnp.complex64):
        array = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
        inputs, decay, state = array((batch, length, dim)), array((1, 1, dim)), array((batch, dim))
        forward, backward = kernels_of("linear")
        yield functools.partial(forward, reverse=False), (decay, inputs, state)
        yield functools.partial(backward, reverse=True), (inputs, inputs, decay, state)


def test_a_jax_without_pallas_for_triton_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    monkeypatch.delattr(jax.experimental.pallas, "triton", raising=False)
    message = f"without compiled kernels on a GPU, .* JAX {jax.__version__} has no Triton backend"
    with pytest.warns(UserWarning, match=message):
        assert not gpu_kernels.is_available.__wrapped__()


# With a JAX that has lost what they need, this fails: no kernel vanishes silently.
@pytest.mark.parametrize(
    ("shape", "keep"), [((512, 16, 16, 8), 1), ((8, 262144, 1000, 100), 512)], ids=str
)
def test_kernels_lower_for_a_gpu(shape, keep):
    for function, arguments in calls(shape, keep):
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
        text = lowered.as_text()
        assert text.count("custom_call") == text.count("triton") == 1
