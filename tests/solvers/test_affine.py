"""Affine recurrences in parallel, and the Kalman smoother, against plain loops and solves."""

import itertools

import keras
import numpy as np
import pytest
from gradients import compiled
from keras import ops
from nightly import IS_THOROUGH
from scans import precision

from keras_coffee.solvers.affine import affine_scan
from keras_coffee.solvers.algebra import Dense, Diagonal
from keras_coffee.solvers.kalman import smoothed_means

DIRECTIONS = pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
ALGEBRAS = pytest.mark.parametrize("algebra", [Diagonal, Dense], ids=["diagonal", "dense"])


def run(function, *arrays, dtype="float64"):
    with precision(dtype):
        arrays = [ops.convert_to_tensor(x.astype(np.result_type(x, dtype))) for x in arrays]
        return ops.convert_to_numpy(compiled(function)(*arrays))


def loop(jacobian, drive, state, reverse=False):
    states, times = np.empty_like(drive), range(drive.shape[1])
    for t in reversed(times) if reverse else times:
        if jacobian.ndim > drive.ndim:
            state = np.einsum("...ij,...j->...i", jacobian[:, t], state) + drive[:, t]
        else:
            state = jacobian[:, t] * state + drive[:, t]
        states[:, t] = state
    return states


def arrays(algebra, length, width=3):
    generator = np.random.default_rng(length)
    shape = (2, length, width, width) if algebra is Dense else (2, length, width)
    jacobian = generator.normal(size=shape) / (width**0.5 if algebra is Dense else 1)
    return jacobian, generator.normal(size=(2, length, width)), generator.normal(size=(2, width))


# Lengths on both sides of a power of two, and of where PyTorch takes another algorithm. Where each
# is compiled, one direction of each.
PAIRS = [(1, False), (2, True), (33, False), (64, True), (65, False)]
if IS_THOROUGH:
    PAIRS = list(itertools.product([1, 2, 33, 64, 65], [False, True]))


@pytest.mark.parametrize(("length", "reverse"), PAIRS)
@ALGEBRAS
def test_affine_scan(algebra, length, reverse):
    jacobian, drive, state = arrays(algebra, length)
    actual = run(lambda *args: affine_scan(algebra, *args, reverse=reverse), jacobian, drive, state)
    expected = loop(jacobian, drive, state, reverse)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@DIRECTIONS
def test_affine_scan_of_complex_numbers(reverse):
    generator = np.random.default_rng(0)
    parts = generator.normal(size=(2, 2, 2, 40, 3))
    jacobian, drive = parts[0] + 1j * parts[1]
    jacobian /= abs(jacobian) * 1.01
    actual = run(lambda *args: affine_scan(Diagonal, *args, reverse=reverse), jacobian, drive)
    expected = loop(jacobian, drive, 0 * drive[:, 0], reverse)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


RANGE = {
    # Products of decays pass the largest float32, while the states stay zero.
    "overflow before anything moves": ([1e30] * 5, [0, 0, 0, 0, 0], 0.0),
    "overflow, then a reset": ([1e30, 1e30, 1e30, 0, 0.5], [0, 0, 0, 1, 1], 0.0),
    "overflow of the product, not of the state": ([1e20] * 3, [0, 0, 0], 1e-30),
    "underflow and back": ([1e-20] * 3 + [1e20] * 3, [0] * 6, 1e30),
    "underflow, then forgotten": ([1e-30] * 4 + [1], [0, 0, 0, 1, 1], 1.0),
    "the smallest and the largest numbers": ([2e-38, 1e38, 1e38, 2e-38], [0] * 4, 1.0),
    "zero times past the range": ([1e30, 1e30, 0, 1e30, 1e30], [0] * 5, 1e-30),
    "signs": ([-1e25, 1e25, -1e-25, -1e-25], [0, 0, 0, 0], -1e-20),
}


@DIRECTIONS
@ALGEBRAS
def test_products_past_the_range_of_the_dtype(algebra, reverse):
    # One batch, since each shape is compiled; short sequences hold their state at the end.
    decay, drive = np.ones((len(RANGE), 6, 1)), np.zeros((len(RANGE), 6, 1))
    for b, (decays, drives, _) in enumerate(RANGE.values()):
        decay[b, : len(decays), 0], drive[b, : len(drives), 0] = decays, drives
    start = np.array([[state] for _, _, state in RANGE.values()])
    decay, drive = (x[:, ::-1] if reverse else x for x in (decay, drive))
    matrices = decay[..., None] if algebra is Dense else decay
    found = run(
        lambda *args: affine_scan(algebra, *args, reverse=reverse),
        *(matrices, drive, start),
        dtype="float32",
    )
    # In float64 nothing here passes the range.
    exact = loop(decay, drive, start, reverse)
    for name, actual, expected in zip(RANGE, found, exact, strict=True):
        inside = abs(expected) < np.finfo("float32").max
        assert inside.any(), name
        np.testing.assert_allclose(
            actual[inside], expected[inside], rtol=1e-6, atol=1e-37, err_msg=name
        )
        assert np.isinf(actual[~inside]).all(), name


def test_zeros_stay_zeros_whatever_the_products():
    jacobian = np.full((1, 100, 2), 3.0)
    jacobian[:, :, 1] = 0.1
    drive = np.zeros((1, 100, 2))
    drive[:, -1] = 1
    actual = run(lambda *args: affine_scan(Diagonal, *args), jacobian, drive, dtype="float32")
    np.testing.assert_array_equal(actual, drive)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_from_where_they_are_on(value):
    jacobian, drive, state = arrays(Diagonal, 20)
    drive[0, 7, 1] = value
    actual = run(lambda *args: affine_scan(Diagonal, *args), jacobian, drive, state)
    expected = loop(jacobian, drive, state)
    assert not np.isfinite(actual[0, 7:, 1]).any()
    expected[0, 7:, 1] = actual[0, 7:, 1] = 0
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="unknown lengths, of TensorFlow")
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "XLA"])
@ALGEBRAS
def test_unknown_length(algebra, jit_compile):
    import tensorflow as tf

    tensors = [tf.constant(x) for x in arrays(algebra, 37)]
    specs = [tf.TensorSpec([None, None, *x.shape[2:]], x.dtype) for x in tensors[:2]]
    specs.append(tf.TensorSpec([None, 3], tensors[2].dtype))

    @tf.function(input_signature=specs, jit_compile=jit_compile)
    def scan(*args):
        states = affine_scan(algebra, *args)
        assert states.shape.rank == 3
        assert states.shape[2] == 3
        return states

    expected = loop(*(x.numpy() for x in tensors))
    np.testing.assert_allclose(scan(*tensors), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(keras.config.backend() != "torch", reason="devices and dtypes, of PyTorch")
def test_dtype_and_device_are_kept():
    import torch

    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        x = torch.ones(1, 70, 2, dtype=dtype)
        states = affine_scan(Diagonal, x, x, reverse=True)
        assert (states.dtype, states.device) == (x.dtype, x.device)
        assert states[0, 0, 0] == 70


@pytest.mark.parametrize("length", [1, 2, 7])
@ALGEBRAS
def test_smoothed_means_are_the_least_squares(algebra, length):
    # Each damping for both sequences.
    dampings = np.repeat([1e-6, 0.3, 100.0], 2)
    jacobian, drive = (np.tile(x, (3, *[1] * (x.ndim - 1))) for x in arrays(algebra, length)[:2])
    scale = np.broadcast_to(dampings[:, None, None], (6, 1, 3 if algebra is Diagonal else 1))
    actual = run(lambda *args: smoothed_means(algebra, *args), jacobian, drive, scale)
    full = jacobian if algebra is Dense else jacobian[..., None] * np.eye(3)
    for b, damping in enumerate(dampings):
        # |D δ - b|² + μ |δ|² with D = I minus the Jacobians one step below the diagonal.
        matrix = np.eye(3 * length)
        for t in range(1, length):
            matrix[3 * t : 3 * t + 3, 3 * t - 3 : 3 * t] = -full[b, t]
        normal = matrix.T @ matrix + damping * np.eye(3 * length)
        expected = np.linalg.solve(normal, matrix.T @ drive[b].ravel()).reshape(length, 3)
        np.testing.assert_allclose(actual[b], expected, rtol=1e-8, atol=1e-10)
