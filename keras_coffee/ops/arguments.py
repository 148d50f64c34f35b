"""Checks and conversions that the recurrences share."""

from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor

_LOW_PRECISION = ("bfloat16", "float16")
_REAL = (*_LOW_PRECISION, "float32", "float64")  # not float8


def as_sequences(inputs: Any, name: str = "inputs") -> Tensor:
    """A floating tensor `(B, T, D)` with at least one step."""
    inputs = as_tensor(inputs, name)
    dtype = dtype_of(inputs)
    if dtype not in _REAL:
        raise TypeError(
            f"`{name}` must be floating-point, received dtype {dtype}. Cast it first, "
            'for example with keras.ops.cast(x, "float32").'
        )
    check_shape(inputs, (None, None, None), name, "(batch, time, features)")
    if inputs.shape[2] is None:
        raise ValueError(
            f"The features of `{name}` must be known, received shape {tuple(inputs.shape)}. Give "
            "the last axis its length, for example with keras.ops.reshape."
        )
    check_time(inputs, f"`{name}`")
    return inputs


def as_tensor(value: Any, name: str, like: str | None = None) -> Tensor:
    """A backend tensor; `keras.KerasTensor`s are refused.

    Python numbers, alone or in lists, take the precision of the dtype `like`, float32 at least.
    """
    if isinstance(value, keras.KerasTensor):
        raise TypeError(
            f"`{name}` is a symbolic KerasTensor, but the functions of keras_coffee.ops compute. "
            "Use the layer of the recurrence, or call this function inside a layer's `call`."
        )
    if value is None:
        raise TypeError(f"`{name}` is required, received None.")
    value = value.value if isinstance(value, keras.Variable) else value
    return ops.convert_to_tensor(value, like and _dtype_of_numbers(value, like))


def _dtype_of_numbers(value: Any, like: str) -> str | None:
    """The dtype of Python numbers that are real or complex. None if the value has its own dtype."""
    if not isinstance(value, float | complex | list | tuple):
        return None
    numbers = keras.tree.flatten(value)
    is_wide = like in ("float64", "complex128")
    if any(isinstance(x, complex) for x in numbers):
        return "complex128" if is_wide else "complex64"
    if any(isinstance(x, float) for x in numbers):
        return "float64" if is_wide else "float32"
    return None


def as_parameter(value: Any, name: str, shape: tuple[int | None, ...], dtype: str) -> Tensor:
    """A tensor of the given shape and dtype."""
    tensor = as_tensor(value, name, like=dtype)
    check_shape(tensor, shape, name)
    return in_dtype(tensor, name, dtype)


def in_dtype(tensor: Tensor, name: str, dtype: str) -> Tensor:
    """A tensor in the given dtype, unless a cast would drop an imaginary part."""
    own = dtype_of(tensor)
    if own == dtype:
        return tensor
    if own.startswith("complex") and not dtype.startswith("complex"):
        raise TypeError(
            f"`{name}` must be real, received dtype {own}. Pass its real or imaginary part, or "
            "complex inputs to linear_scan."
        )
    return ops.cast(tensor, dtype)


def as_transition(value: Any, inputs: Tensor, dtype: str) -> Tensor:
    """The diagonal of A, `(D, n)` with at least one state per feature."""
    transition = as_parameter(value, "transition", (inputs.shape[2], None), dtype)
    if transition.shape[1] == 0:
        raise ValueError(
            f"`transition` must have shape (features, n) with n of at least 1, received "
            f"{tuple(transition.shape)}."
        )
    return transition


def as_initial_state(value: Any, like: Tensor, transition: Tensor) -> Tensor:
    """The state before the first step, `(B, D, n)`: the given one, or zeros."""
    batch, _, dim = like.shape
    if value is not None:
        shape = (batch, dim, transition.shape[-1])
        return as_parameter(value, "initial_state", shape, dtype_of(like))
    return ops.zeros_like(like[:, 0, :, None] * transition)


def check_shape(
    x: Tensor, shape: tuple[int | None, ...], name: str, expected: str | None = None
) -> None:
    """Raises unless `x` has the given shape; None, on either side, matches anything."""
    actual = tuple(x.shape)
    same = len(actual) == len(shape) and all(
        a is None or e is None or a == e for a, e in zip(actual, shape, strict=True)
    )
    if not same:
        expected = expected or str(shape).replace("None", "any")
        raise ValueError(f"`{name}` must have shape {expected}, received {actual}.")


def check_time(x: Tensor, name: str) -> None:
    """Raises if there are no steps."""
    if x.shape[1] == 0:
        raise ValueError(
            f"{name} has no steps: its shape is {tuple(x.shape)}, and a recurrence needs at "
            "least one. Leave empty sequences out of the batch."
        )


def accumulation_dtype(x: Tensor) -> str:
    """The dtype a recurrence runs in: float32 for lower precision, else the tensor's own."""
    return "float32" if is_low_precision(x) else dtype_of(x)


def common_dtype(decay: Tensor, inputs: Tensor) -> str:
    """The dtype of a linear recurrence: that of the inputs, complex if the decay is."""
    for x, name in ((decay, "decay"), (inputs, "inputs")):
        dtype = dtype_of(x)
        if dtype not in _REAL and not dtype.startswith("complex"):
            raise TypeError(
                f"`{name}` must be floating-point or complex, received dtype {dtype}. Cast it "
                'first, for example with keras.ops.cast(x, "float32").'
            )
    if not any(dtype_of(x).startswith("complex") for x in (decay, inputs)):
        return accumulation_dtype(inputs)
    return "complex128" if dtype_of(inputs) in ("float64", "complex128") else "complex64"


def as_dtype(x: Tensor, name: str, like: Tensor) -> Tensor:
    """`x` in the dtype of another tensor, unless a cast would drop an imaginary part."""
    own, dtype = dtype_of(x), dtype_of(like)
    if own.startswith("complex") and not dtype.startswith("complex"):
        raise TypeError(f"{name} is {own}, but the state is {dtype}. Give a complex initial state.")
    return cast(x, dtype)


def is_low_precision(x: Tensor) -> bool:
    """Whether a recurrence over `x` must be accumulated in a wider dtype."""
    return dtype_of(x) in _LOW_PRECISION


def dtype_of(x: Tensor) -> str:
    """The name of a tensor's dtype."""
    # `keras.backend.standardize_dtype` would take as long as a small operation.
    return getattr(x.dtype, "name", None) or str(x.dtype).rpartition(".")[2]


def cast(x: Any, dtype: str) -> Tensor:
    """A tensor or a weight in a dtype: the tensor itself, if it has this one."""
    x = x.value if isinstance(x, keras.Variable) else x
    return x if ops.is_tensor(x) and dtype_of(x) == dtype else ops.cast(x, dtype)
