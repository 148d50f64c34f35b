"""The kernels for a CPU where tests/ops do not reach, and PyTorch's operators in their place."""

import concurrent.futures
import platform

import keras
import numpy as np
import oracles
import pytest
from scans import assert_matches, coffee_arrays, cotangents_of, selective_arrays

if keras.config.backend() != "torch":
    pytest.skip("kernels of PyTorch", allow_module_level=True)

import torch

from keras_coffee import CoffeeLayer
from keras_coffee.backend.cpu import blocks, compiler
from keras_coffee.backend.torch import fused, operators
from keras_coffee.ops import coffee_scan, selective_scan


def check_coffee(arrays, dtype="float64", feedback="sigmoid", **options):
    assert_matches(
        lambda **tensors: coffee_scan(**tensors, feedback=feedback, **options),
        lambda *args: oracles.coffee(*args, feedback=feedback),
        arrays,
        cotangents_of(arrays),
        dtype,
    )


def check_selective(arrays, dtype="float64", discretization="zoh", **options):
    assert_matches(
        lambda **tensors: selective_scan(**tensors, discretization=discretization, **options),
        lambda *args: oracles.selective(*args, discretization=discretization),
        arrays,
        cotangents_of(arrays),
        dtype,
    )


def leaves(arrays, dtype=torch.float32):
    return {k: torch.tensor(x, dtype=dtype, requires_grad=True) for k, x in arrays.items()}


def results_and_gradients(scan, tensors, cotangents=None, **options):
    """All results and then all gradients, in order."""
    results = scan(**tensors, **options)
    if cotangents is None:
        cotangents = [torch.cos(torch.arange(x.numel()).view(x.shape)).to(x) for x in results]
    return [*results, *torch.autograd.grad(results, list(tensors.values()), cotangents)]


def assert_equal(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)


SCANS = pytest.mark.parametrize(
    ("scan", "make"),
    [(coffee_scan, coffee_arrays), (selective_scan, selective_arrays)],
    ids=["coffee", "selective"],
)
VARYING = pytest.mark.parametrize("varying", [(True, True), (True, False), (False, True)], ids=str)


def test_kernels_are_what_runs():
    assert fused.implementation(torch.zeros(1)) == "kernel"


# Blocks. More features than a block has lanes are cut into columns, the last of them narrower;
# fewer are worked on for several sequences at a time, the last time for fewer.
CUT = [(2, 6, 131, 2), (9, 6, 16, 8), (7, 6, 11, 3), (0, 6, 131, 2)]


@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize("shape", CUT, ids=str)
def test_coffee_in_blocks_that_do_not_come_out_even(shape, recompute):
    check_coffee(coffee_arrays(shape), recompute=recompute)


@VARYING
@pytest.mark.parametrize("shape", CUT, ids=str)
def test_selective_in_blocks_that_do_not_come_out_even(shape, varying):
    check_selective(selective_arrays(shape, varying=varying), recompute=varying[0])


@SCANS
def test_blocks_in_float32(scan, make):
    check = check_coffee if scan is coffee_scan else check_selective
    check(make((3, 6, 131, 3)), "float32")


@SCANS
def test_threads_change_no_bit_and_are_no_more_than_pytorch_has(scan, make, monkeypatch):
    started = []

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, workers):
            started.append(workers)
            super().__init__(workers)

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Pool)
    tensors = leaves(make((21, 6, 16, 8)))
    alone = results_and_gradients(scan, tensors)
    monkeypatch.setattr(blocks, "_STATES_PER_THREAD", 1)
    try:
        for threads in (2, 5):
            torch.set_num_threads(threads)
            assert_equal(results_and_gradients(scan, tensors), alone)
    finally:
        torch.set_num_threads(1)
    assert_equal(results_and_gradients(scan, tensors), alone)
    assert started == [2, 2, 5, 5]


# Tensors as PyTorch's users have them.


@SCANS
def test_any_layout_of_tensors_and_of_gradients(scan, make):
    tensors = leaves(make((3, 6, 5, 2)))
    loss = sum(x.sum() for x in scan(**tensors))  # gradients of all ones, of which one is stored
    expected = torch.autograd.grad(loss, list(tensors.values()))

    def transposed(x):
        return x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()

    def strided(x):
        return torch.stack([x, x * np.nan], -1)[..., 0].detach().requires_grad_()

    def negated(x):
        return torch._neg_view(-x.detach()).requires_grad_()

    for view in (transposed, strided, negated):
        views = {name: view(x) for name, x in tensors.items()}
        results = scan(**views)
        grads = torch.autograd.grad([x.sum() for x in results], list(views.values()))
        assert_equal(results, scan(**tensors))
        assert_equal(grads, expected)
    assert not any(x.is_contiguous() for x in map(strided, tensors.values()))


@SCANS
def test_gradients_of_one_result_alone(scan, make):
    tensors = leaves(make((3, 6, 5, 2)))
    for k in (0, 1):
        results = scan(**tensors)
        zeros = [torch.zeros_like(x) for x in results]
        zeros[k] += 1.5
        whole = torch.autograd.grad(results, list(tensors.values()), zeros)
        result = scan(**tensors)[k]
        alone = torch.autograd.grad(result, list(tensors.values()), zeros[k], allow_unused=True)
        assert_equal(alone, whole)


@SCANS
def test_gradients_of_one_argument_alone(scan, make):
    tensors = leaves(make((3, 6, 5, 2)))
    gradients = results_and_gradients(scan, tensors)[2:]
    for (name, x), gradient in zip(tensors.items(), gradients, strict=True):
        constants = {k: v.detach() for k, v in tensors.items()}
        results = scan(**constants | {name: x})
        cotangents = [torch.cos(torch.arange(r.numel()).view(r.shape)).to(r) for r in results]
        assert_equal(torch.autograd.grad(results, x, cotangents), [gradient])


# What must not spread. Five sequences of eleven features lie in vectors side by side.
SIDE_BY_SIDE = (5, 6, 11, 4)


@SCANS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_bad_numbers_stay_in_their_sequence(scan, make, value):
    arrays = make(SIDE_BY_SIDE)
    others = [0, 1, 3, 4]
    clean = results_and_gradients(scan, leaves(arrays))
    arrays["inputs"][2, 1, 3] = arrays["initial_state"][2, 4, 1] = value
    bad = results_and_gradients(scan, leaves(arrays))
    for b, c in zip(bad, clean, strict=True):
        if c.shape[0] == 5:  # of each sequence; the others are sums over them
            assert_equal([b[others]], [c[others]])
    assert not bad[0][2].isfinite().all() or value == 1e30


X86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="subnormal numbers are flushed on x86"
)
SUBNORMAL = 1e-40


@X86
@pytest.mark.parametrize("flush", [False, True])
@SCANS
def test_the_mode_for_subnormal_numbers_is_restored(scan, make, flush):
    arrays = make((3, 6, 5, 2))
    arrays["inputs"][:] = 0
    arrays["initial_state"][:] = SUBNORMAL
    subnormal = torch.tensor(SUBNORMAL)
    torch.set_flush_denormal(flush)
    try:
        results = results_and_gradients(scan, leaves(arrays))
        assert (subnormal * 0.5 == 0) == flush
    finally:
        torch.set_flush_denormal(False)
    # In the kernels they are zeros.
    assert not results[0].any() and not results[1].any()


@X86
@SCANS
def test_adjoints_fade_away_to_zero(scan, make):
    arrays = make((2, 4000, 3, 2), input_scale=1.0)
    if scan is coffee_scan:
        arrays |= {"transition": np.full((3, 2), -1.0), "gate": 0.1 * arrays["gate"]}
    tensors = leaves(arrays)
    _, final_state = scan(**tensors)
    (gradient,) = torch.autograd.grad(final_state.sum(), tensors["inputs"])
    assert gradient[:, -1].all()
    fading = gradient[gradient.abs() < torch.finfo().tiny]
    assert fading.numel() > 2 * 3000 and not fading.any()


@pytest.mark.parametrize(
    ("dtype", "arguments"),
    [("float32", [30, -40, -60, -80, -87]), ("float64", [300, -80, -300, -500, -700])],
    ids=["float32", "float64"],
)
def test_small_gates_to_all_their_digits(dtype, arguments):
    # σ of these is far below the unit of rounding, but nothing here is added to it.
    arrays = coffee_arrays((1, 1, len(arguments), 1))
    arrays["inputs"][:] = arrays["transition"][:] = 0
    arrays["initial_state"][:] = 1
    arrays["output_gate"][:, 0] = arguments
    check_coffee(arrays, dtype)


# The operators for PyTorch's own tools.


def coffee_sample(dtype, keep, masked, requires_grad=False):
    arrays = coffee_arrays((2, 4, 3, 2))
    names = "transition", "gate", "readout", "input_matrix", "output_gate"
    tensors = [
        torch.tensor(x, dtype=dtype)
        for x in (arrays["inputs"], np.stack([arrays[n] for n in names]), arrays["initial_state"])
    ]
    inputs, weights, state = (x.requires_grad_(requires_grad) for x in tensors)
    mask = torch.ones(2, 4, dtype=dtype).tril() if masked else None
    options = {"feedback": "sigmoid", "has_input_matrix": True, "has_output_gate": True}
    return (inputs, mask, weights, state), {**options, "keep": keep}


def selective_sample(dtype, keep, fixed, requires_grad=False):
    arrays = selective_arrays((2, 4, 3, 2), varying=(True, not fixed))
    tensors = [torch.tensor(x, dtype=dtype) for x in arrays.values()]
    tensors = tuple(x.requires_grad_(requires_grad) for x in tensors)
    return tensors, {"discretization": "zoh", "keep": keep}


OPERATORS = {
    "coffee": (coffee_sample, operators.coffee_forward, operators.coffee_backward),
    "selective": (selective_sample, operators.selective_forward, operators.selective_backward),
}


@pytest.mark.parametrize(
    ("dtype", "keep", "variant"),
    [(torch.float32, 0, False), (torch.float64, 1, True), (torch.float32, 3, False)],
    ids=str,
)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_pass_the_checks_of_pytorch(name, dtype, keep, variant):
    sample, forward, backward = OPERATORS[name]
    args, options = sample(dtype, keep, variant, requires_grad=keep > 0)
    torch.library.opcheck(forward, args, options)
    if keep:
        args, options = sample(dtype, keep, variant)
        outputs, final_state, kept = forward(*args, **options)
        args = outputs, final_state, kept, *args[:-1]
        torch.library.opcheck(backward, args, options)


@SCANS
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_compiled_scans_are_one_graph_of_any_batch_and_length(scan, make, recompute):
    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager")
    for shape in ((2, 6, 3, 2), (3, 9, 3, 2)):
        tensors = leaves(make(shape))
        actual = results_and_gradients(compiled, tensors, recompute=recompute)
        assert_equal(actual, results_and_gradients(scan, tensors, recompute=recompute))
    with torch.no_grad():
        assert_equal(compiled(**tensors), scan(**tensors))


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # PyTorch's own
def test_the_default_compiler_of_pytorch():
    tensors = leaves(coffee_arrays((2, 6, 3, 2)))

    def scan(inputs, **others):
        outputs, final_state = coffee_scan(torch.sin(inputs), **others)
        return torch.cos(outputs), final_state

    actual = results_and_gradients(torch.compile(scan, fullgraph=True), tensors)
    for a, e in zip(actual, results_and_gradients(scan, tensors), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


def test_a_compiled_layer_is_one_graph():
    layer = CoffeeLayer(4, output_filter=True, use_input_matrix=True)
    layer.build((2, 6, 3))
    inputs = torch.tensor(coffee_arrays((2, 6, 3, 4))["inputs"], requires_grad=True)
    weights = [w.value for w in layer.trainable_weights]
    results = []
    for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        outputs = call(inputs)
        results.append([outputs, *torch.autograd.grad((outputs**2).sum(), [inputs, *weights])])
    assert_equal(*results)


def test_exported_programs_do_without_the_operators():
    layer = CoffeeLayer(4)
    layer.build((2, 6, 3))
    inputs = torch.tensor(coffee_arrays((2, 6, 3, 4))["inputs"])
    program = torch.export.export(layer, (inputs,))
    assert "keras_coffee" not in str(program.graph)
    torch.testing.assert_close(program.module()(inputs), layer(inputs))


# PyTorch's own operators where there are no kernels.

CACHES = [
    getattr(compiler, name) for name in ("compiler", "is_available", "library", "_folder", "_warn")
]


def forget():
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def new_process():
    """As if nothing had looked for a compiler yet."""
    forget()
    yield
    forget()


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(fused, "implementation", lambda inputs: "eager")


@SCANS
def test_without_a_compiler_the_results_are_the_same_and_a_warning_says_so(
    scan, make, new_process, monkeypatch
):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    tensors = leaves(make((2, 6, 3, 2)), torch.float64)
    with pytest.warns(UserWarning, match=r"three to thirty times slower.*keras-coffee\[cpu\]"):
        without = results_and_gradients(scan, tensors)
    assert fused.implementation(tensors["inputs"]) == "eager"
    without_again = results_and_gradients(scan, tensors)  # and no second warning
    monkeypatch.undo()
    forget()
    assert fused.implementation(tensors["inputs"]) == "kernel"
    with_kernels = results_and_gradients(scan, tensors)
    assert_equal(without_again, without)
    for a, b in zip(without, with_kernels, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_compiler_that_fails_is_as_good_as_none(new_process, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.warns(UserWarning, match="because false failed"):
        assert fused.implementation(torch.zeros(1)) == "eager"


@pytest.mark.parametrize("optional", [False, True], ids=["", "optional"])
@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_coffee_by_operators(feedback, optional, eager):
    arrays = coffee_arrays((2, 17, 3, 2), optional=optional)
    if feedback == "linear":
        gentle = {"gate_scale": 0.05, "input_scale": 1.0}
        arrays = coffee_arrays((2, 17, 3, 2), optional=optional, **gentle)
        arrays |= {name: abs(arrays[name]) for name in ("gate", "initial_state")}
    check_coffee(arrays, feedback=feedback, recompute=optional)


@VARYING
@pytest.mark.parametrize("discretization", ["zoh", "euler"])
def test_selective_by_operators(discretization, varying, eager):
    arrays = selective_arrays((2, 17, 3, 2), varying=varying)
    if discretization == "euler":
        arrays["delta"] /= arrays["delta"].max()
    check_selective(arrays, discretization=discretization, recompute=varying[0])


def test_masks_by_operators(monkeypatch):
    arrays = coffee_arrays((3, 9, 5, 2), gate_scale=0.5, input_scale=1.0)
    tensors = leaves(arrays, torch.float64)
    mask = torch.ones(3, 9, dtype=torch.float64)
    mask[0, 4:6] = mask[1, :2] = mask[2, 8] = 0

    def scan(recompute, **tensors):
        options = {"mask": mask, "feedback": "sigmoid", "recompute": recompute}
        return fused.coffee_scan(**tensors, **options)

    by_kernel = [results_and_gradients(scan, tensors, recompute=r) for r in (False, True)]
    monkeypatch.setattr(fused, "implementation", lambda inputs: "eager")
    by_operators = results_and_gradients(scan, tensors, recompute=False)
    for results in by_kernel:
        for a, b in zip(results, by_operators, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
