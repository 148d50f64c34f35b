"""Runs a scan of the package on named arrays, and differentiates it by all of them."""

import contextlib

import keras
import numpy as np
from gradients import value_and_gradients


def differentiate(scan, arrays, cotangents):
    """What `scan` returns, and its gradients, by name.

    Args:
        scan: Takes the arrays by name and returns a tensor or a tuple of tensors.
        arrays: NumPy arrays by name.
        cotangents: One array for each result of the scan.

    Returns:
        The results, from the very run that is differentiated: each is the gradient of the loss
        sum(result * cotangent) by its cotangent. And the gradients of the loss by the arrays.
    """
    names = list(arrays)

    def loss(*tensors):
        results = scan(**dict(zip(names, tensors, strict=False)))
        results = results if isinstance(results, tuple) else (results,)
        pairs = zip(results, tensors[len(names) :], strict=True)
        return sum(_inner(result, cotangent) for result, cotangent in pairs)

    _, gradients = value_and_gradients(loss, *arrays.values(), *cotangents)
    # JAX's gradient by a + ib is dL/da - i dL/db, the conjugate of the others'.
    if keras.backend.backend() == "jax":
        gradients = [np.conj(gradient) for gradient in gradients]
    return gradients[len(names) :], dict(zip(names, gradients, strict=False))


def _inner(result, cotangent):
    if "complex" not in keras.backend.standardize_dtype(result.dtype):
        return keras.ops.sum(result * cotangent)
    return keras.ops.sum(keras.ops.real(result * keras.ops.conj(cotangent)))


@contextlib.contextmanager
def precision(dtype):
    """Lets JAX compute in float64 where `dtype` asks for it; the other backends always can."""
    if keras.backend.backend() != "jax" or dtype not in ("float64", "complex128"):
        yield
        return
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)
