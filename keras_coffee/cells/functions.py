"""Functions of tensors that Keras lacks, or computes in too low a precision."""

from keras import ops

from keras_coffee._typing import Tensor


def align(x: Tensor, like: Tensor) -> Tensor:
    """`x`, whose axes are the first ones of `like`, with axes of length 1 for the others."""
    return x[(..., *(None,) * (len(like.shape) - len(x.shape)))]


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent in the dtype of its argument; Keras' own is float32 on JAX."""
    return 2 * ops.sigmoid(2 * x) - 1


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x). Keras' own is x above 20 on PyTorch, too imprecise for float64."""
    return -ops.log_sigmoid(-x)
