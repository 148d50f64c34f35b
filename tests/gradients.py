"""Values and gradients on whichever backend runs, as NumPy arrays."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def value_and_gradients(function: Callable[..., Any], *arrays: np.ndarray) -> tuple[Any, list]:
    """Differentiates a scalar function of tensors in compiled code (torch: eagerly).

    Args:
        function: Maps one tensor for each array to a scalar tensor.
        *arrays: Floating-point arrays, passed on in their own dtype.

    Returns:
        The value and one gradient for each array.
    """
    return differentiated(function)(*arrays)


def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `value_and_gradients` returns, as a function of the arrays: compiled once a shape."""
    differentiate = _DIFFERENTIATE[keras.backend.backend()](function)
    to_numpy = keras.ops.convert_to_numpy

    def run(*arrays):
        value, gradients = differentiate(*arrays)
        return to_numpy(value), [to_numpy(gradient) for gradient in gradients]

    return run


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program on JAX, where each operation would be compiled by itself."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def _jax(function):
    import jax

    @jax.jit
    def differentiate(*tensors):
        return jax.value_and_grad(function, argnums=tuple(range(len(tensors))))(*tensors)

    return differentiate


def _tensorflow(function):
    import tensorflow as tf

    @tf.function
    def differentiate(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        zero = tf.UnconnectedGradients.ZERO
        return value, tape.gradient(value, tensors, unconnected_gradients=zero)

    return lambda *arrays: differentiate(*[tf.constant(array) for array in arrays])


def _torch(function):
    import torch

    def differentiate(*arrays):
        leaves = [keras.ops.convert_to_tensor(array).requires_grad_() for array in arrays]
        value = function(*leaves)
        gradients = torch.autograd.grad(value, leaves, allow_unused=True)
        pairs = zip(gradients, leaves, strict=True)
        return value, [torch.zeros_like(leaf) if g is None else g for g, leaf in pairs]

    return differentiate


_DIFFERENTIATE = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
