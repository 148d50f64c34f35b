"""The kernels for a CPU, on PyTorch, where tests/ops do not reach."""

import concurrent.futures
import platform
import types

import keras
import numpy as np
import pytest
from scans import coffee_arrays, selective_arrays

if keras.config.backend() != "torch":
    pytest.skip("kernels of PyTorch", allow_module_level=True)

import torch
from torch_scans import (
    SCANS,
    VARYING,
    assert_equal,
    check_coffee,
    check_selective,
    leaves,
    results_and_gradients,
)

from keras_coffee.backend.cpu import blocks
from keras_coffee.backend.torch import cpu_kernels, fused, operators
from keras_coffee.ops import coffee_scan


@pytest.fixture(autouse=True)
def memory_that_is_not_written_is_nan(monkeypatch):
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda x, s: new_empty(x, s).fill_(np.nan))


def test_kernels_are_what_runs():
    recurrence = types.SimpleNamespace(kernel="coffee")
    assert fused.implementation(recurrence, torch.zeros(1)) is operators.scan_cell


# Blocks. More features than a block has lanes are cut into columns, the last of them narrower;
# fewer are worked on for several sequences at a time, the last time for fewer.
CUT = [(2, 6, 131, 2), (9, 6, 16, 8), (7, 6, 11, 3), (0, 6, 131, 2), (2, 6, 0, 2)]


@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize("shape", CUT, ids=str)
def test_coffee_in_blocks_that_do_not_come_out_even(shape, recompute):
    check_coffee(coffee_arrays(shape), recompute=recompute)
    check_coffee(coffee_arrays(shape, gated=True), recompute=recompute)


@VARYING
@pytest.mark.parametrize("shape", CUT, ids=str)
def test_selective_in_blocks_that_do_not_come_out_even(shape, varying):
    check_selective(selective_arrays(shape, varying=varying), recompute=varying[0])


@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize("shape", CUT, ids=str)
def test_skip_and_bias_in_blocks_that_do_not_come_out_even(shape, recompute):
    arrays = selective_arrays(shape, skip=True, delta_bias=True, delta_softplus=True)
    check_selective(arrays, "float64", "mamba", True, recompute=recompute)


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


# More blocks than there are parts of a sum: in one column, the last block with other lanes; in two.
@pytest.mark.parametrize("shape", [(261, 2, 16, 8), (130, 2, 131, 2)], ids=str)
@SCANS
def test_several_blocks_add_to_one_part_of_a_sum(scan, make, shape, monkeypatch):
    check = check_coffee if scan is coffee_scan else check_selective
    check(make(shape))
    tensors = leaves(make(shape))
    alone = results_and_gradients(scan, tensors)
    monkeypatch.setattr(blocks, "_STATES_PER_THREAD", 1)
    try:
        torch.set_num_threads(7)
        assert_equal(results_and_gradients(scan, tensors), alone)
    finally:
        torch.set_num_threads(1)


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


# The kernels themselves.


def test_absent_arrays_and_masks_have_no_gradients():
    inputs, mask, state = torch.ones(2, 3, 4), torch.ones(2, 3), torch.ones(2, 4, 5)
    arguments = inputs, None, mask, mask, *torch.ones(3, 4, 5).unbind(), None, state[0], None
    options = {"keep": 1, "feedback": "sigmoid"}
    *_, kept = cpu_kernels.scan("forward", "coffee", *arguments, state, **options)
    grads = cpu_kernels.scan("backward", "coffee", inputs, state, kept, *arguments, **options)
    assert [x.shape for x in grads] == [(2, 3, 4), *[(4, 5)] * 4, (2, 4, 5)]


def test_another_number_of_arrays_is_an_error():
    arguments = torch.ones(2, 3, 4), None, None, torch.ones(4, 5), torch.ones(2, 4, 5)
    with pytest.raises(ValueError, match="shorter|longer"):
        cpu_kernels.scan("forward", "coffee", *arguments, keep=0, feedback=None)
