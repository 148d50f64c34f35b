"""Checks that the layers share."""

from typing import Any

import keras

from keras_coffee._typing import Shape, Tensor, is_integer


def positive_integer(name: str, value: Any) -> int:
    """The value as an int, if it is an integer above zero; booleans are none."""
    if not is_integer(value) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer, received {value!r} of type "
            f"{type(value).__name__}."
        )
    return int(value)


def at_least_float32(*tensors: Tensor) -> str:
    """Names float64 if one of the tensors has it, float32 otherwise."""
    # keras.backend.result_type would name float32 for float64 on JAX and PyTorch.
    dtypes = {keras.backend.standardize_dtype(tensor.dtype) for tensor in tensors}
    return "float64" if "float64" in dtypes else "float32"


def check_real(name: str, tensor: Tensor) -> None:
    """Raises if a tensor is complex, since a cast to real numbers would drop a part of it."""
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype.startswith("complex"):
        raise TypeError(
            f"{name} must be real, received dtype {dtype}. Pass keras.ops.real(x) or "
            "keras.ops.imag(x), or both side by side as features."
        )


def check_forwards(layer: Any) -> None:
    """Raises unless a recurrent layer reads forwards, as a stream does."""
    if layer.go_backwards:
        raise ValueError(
            f"{layer.name!r} goes backwards: its first output needs the last input, so it can't "
            "follow a stream."
        )


def sequence_shape(layer: str, shape: Shape) -> tuple[int | None, int | None, int]:
    """Batch, time and features of a shape, if it is one of sequences of known features."""
    if len(shape) == 3 and shape[2] is not None:
        return shape[0], shape[1], shape[2]
    if len(shape) < 3:
        advice = "Add the missing axis, for example with keras.layers.Reshape or x[:, :, None]."
    elif len(shape) > 3:
        advice = "Put it in a keras.layers.TimeDistributed, or merge axes by keras.layers.Reshape."
    else:
        advice = "Give the number of features, as in keras.Input((None, features))."
    raise ValueError(
        f"{layer} expects inputs of shape (batch, time, features) with known features, received "
        f"{tuple(shape)}. {advice}"
    )
