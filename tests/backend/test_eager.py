"""PyTorch's own operators where there are no kernels."""

import types

import keras
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

from keras_coffee.backend.cpu import compiler
from keras_coffee.backend.torch import fused
from keras_coffee.backend.torch.eager import scan_cell as eager_scan
from keras_coffee.ops import coffee_scan

CACHES = [
    getattr(compiler, name) for name in ("compiler", "is_available", "library", "_folder", "warn")
]


# A recurrence that has kernels.
KERNEL = types.SimpleNamespace(kernel="coffee")


def forget():
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def new_process(monkeypatch):
    """As if nothing had looked for a compiler yet, and none had come as a package."""
    monkeypatch.setattr(compiler, "_has_packaged_compiler", lambda: False)
    forget()
    yield
    forget()


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(fused, "IMPLEMENTATIONS", fused.IMPLEMENTATIONS[-1:])


@SCANS
def test_without_a_compiler_the_results_are_the_same_and_a_warning_says_so(
    scan, make, new_process, monkeypatch
):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    tensors = leaves(make((2, 6, 3, 2)), torch.float64)
    with pytest.warns(UserWarning, match=r"three to thirty times slower.*keras-coffee\[cpu\]"):
        without = results_and_gradients(scan, tensors)
    assert fused.implementation(KERNEL, tensors["inputs"]) is eager_scan
    without_again = results_and_gradients(scan, tensors)  # and no second warning
    monkeypatch.undo()
    forget()
    assert fused.implementation(KERNEL, tensors["inputs"]) is not eager_scan
    with_kernels = results_and_gradients(scan, tensors)
    assert_equal(without_again, without)
    for a, b in zip(without, with_kernels, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_compiler_that_fails_is_as_good_as_none(new_process, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.warns(UserWarning, match="because false failed"):
        assert fused.implementation(KERNEL, torch.zeros(1)) is eager_scan


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
    check_selective(arrays, "float64", discretization, recompute=varying[0])


def test_masks_by_operators(monkeypatch):
    arrays = coffee_arrays((3, 9, 5, 2), gate_scale=0.5, input_scale=1.0)
    tensors = leaves(arrays, torch.float64)
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[0, 4:6] = mask[1, :2] = mask[2, 8] = 0

    def scan(recompute, **tensors):
        return coffee_scan(**tensors, mask=mask, recompute=recompute)

    by_kernel = [results_and_gradients(scan, tensors, recompute=r) for r in (False, True)]
    monkeypatch.setattr(fused, "IMPLEMENTATIONS", fused.IMPLEMENTATIONS[-1:])
    by_operators = results_and_gradients(scan, tensors, recompute=False)
    for results in by_kernel:
        for a, b in zip(results, by_operators, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
