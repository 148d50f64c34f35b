"""Scans on PyTorch: what the tests of its kernels, operators and fallback share."""

import functools

import oracles
import pytest
import torch
from scans import assert_matches, coffee_arrays, cotangents_of, selective_arrays

from keras_coffee.ops import coffee_scan, selective_scan


def check_coffee(arrays, dtype="float64", feedback="sigmoid", **options):
    assert_matches(
        lambda **tensors: coffee_scan(**tensors, feedback=feedback, **options),
        lambda *args: oracles.coffee(*args, feedback=feedback),
        arrays,
        cotangents_of(arrays),
        dtype,
    )


def check_selective(arrays, dtype="float64", *chosen, **options):
    chosen = dict(zip(("discretization", "delta_softplus"), chosen, strict=False))
    assert_matches(
        lambda **tensors: selective_scan(**tensors, **chosen, **options),
        lambda *args: oracles.selective(*args, **chosen),
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
    [
        (coffee_scan, coffee_arrays),
        (coffee_scan, functools.partial(coffee_arrays, gated=True)),
        (selective_scan, selective_arrays),
    ],
    ids=["coffee", "gated", "selective"],
)
VARYING = pytest.mark.parametrize("varying", [(True, True), (True, False), (False, True)], ids=str)
