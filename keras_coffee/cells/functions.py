"""Functions of tensors that Keras lacks, or computes in too low a precision."""

from keras import ops

from keras_coffee._typing import Tensor


def align(x: Tensor, like: Tensor) -> Tensor:
    """`x`, whose axes are the first ones of `like`, with axes of length 1 for the others."""
    return x[(..., *(None,) * (len(like.shape) - len(x.shape)))]


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent in the dtype of its argument; Keras' own is float32 on JAX."""
    return 2 * ops.sigmoid(2 * x) - 1


def complex_of(real: Tensor, imaginary: Tensor) -> Tensor:
    """A complex tensor of the precision of its parts; Keras' own is always complex64."""
    dtype = "complex128" if "float64" in str(real.dtype) else "complex64"
    return ops.cast(real, dtype) + 1j * ops.cast(imaginary, dtype)


def where(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`x` where the mask is True, else `y`; Keras' own rounds complex128 on TensorFlow."""
    if "complex128" not in str(x.dtype):
        return ops.where(mask, x, y)
    return complex_of(*(ops.where(mask, part(x), part(y)) for part in (ops.real, ops.imag)))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x). Keras' own is x above 20 on PyTorch, too imprecise for float64."""
    return -ops.log_sigmoid(-x)
