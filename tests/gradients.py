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
    value, gradients = _DIFFERENTIATE[keras.backend.backend()](function, arrays)
    to_numpy = keras.ops.convert_to_numpy
    return to_numpy(value), [to_numpy(gradient) for gradient in gradients]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program on JAX, where each operation would be compiled by itself."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def _jax(function, arrays):
    import jax

    positions = tuple(range(len(arrays)))
    return jax.jit(jax.value_and_grad(function, argnums=positions))(*arrays)


def _tensorflow(function, arrays):
    import tensorflow as tf

    @tf.function
    def differentiate(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        zero = tf.UnconnectedGradients.ZERO
        return value, tape.gradient(value, tensors, unconnected_gradients=zero)

    return differentiate(*[tf.constant(array) for array in arrays])


def _torch(function, arrays):
    import torch

    leaves = [keras.ops.convert_to_tensor(array).requires_grad_() for array in arrays]
    value = function(*leaves)
    gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    pairs = zip(gradients, leaves, strict=True)
    return value, [torch.zeros_like(leaf) if g is None else g for g, leaf in pairs]


_DIFFERENTIATE = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
