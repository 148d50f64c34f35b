"""What `"auto"` stands for, and what is run where a parallel solver can't be."""

import keras
import pytest
from keras import ops

from keras_coffee import backend, solvers
from keras_coffee.solvers import Associative, Newton, Sequential
from keras_coffee.solvers.choice import fastest


@pytest.mark.parametrize("kind", ["linear", "nonlinear"])
@pytest.mark.parametrize(("length", "states"), [(10, 10), (10**6, 4), (None, None)])
def test_on_a_cpu_always_sequential(kind, length, states):
    assert fastest(kind, "cpu", length, states) == Sequential()


@pytest.mark.parametrize("device", ["gpu", "tpu"])
@pytest.mark.parametrize(("length", "states"), [(10, 10), (10**6, 4), (None, None)])
def test_nonlinear_recurrences_always_sequential(device, length, states):
    assert fastest("nonlinear", device, length, states) == Sequential()


@pytest.mark.parametrize("device", ["gpu", "tpu"])
@pytest.mark.parametrize(
    ("length", "states", "expected"),
    [
        (2047, 64, Sequential()),
        (2048, 64, Associative()),
        (10**6, 2**13, Associative()),
        (10**6, 2**13 + 1, Sequential()),
        (None, 64, Sequential()),
        (2048, None, Sequential()),
    ],
)
def test_linear_recurrences_on_accelerators(device, length, states, expected):
    assert fastest("linear", device, length, states) == expected


def test_auto_here():
    # The suite runs on CPUs.
    x = ops.zeros((2, 5000, 3))
    assert backend.device_kind(x) == "cpu"
    assert solvers.choose("auto", "linear", x, 4) == Sequential()
    assert solvers.choose("auto", "nonlinear", x, None) == Sequential()


def test_the_named_solver_is_run():
    x = ops.zeros((2, 5, 3))
    assert solvers.choose("newton", "nonlinear", x, 4) == Newton()
    assert solvers.choose("associative", "linear", x, 4) == Associative()


def test_a_single_step_is_sequential():
    assert solvers.choose("newton", "nonlinear", ops.zeros((2, 1, 3)), 4) == Sequential()


def test_recompute_is_sequential():
    x = ops.zeros((2, 5, 3))
    assert solvers.choose("auto", "nonlinear", x, 4, recompute=True) == Sequential()


@pytest.mark.skipif(keras.config.backend() != "torch", reason="tensors without data, of PyTorch")
def test_tensors_without_data_are_sequential():
    import torch

    x = torch.empty((2, 5, 3), device="meta")
    assert solvers.choose("newton", "nonlinear", x, 4) == Sequential()
