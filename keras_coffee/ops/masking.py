"""Masks, as in every recurrence.

A masked step is the identity: Δ = 0 there, so the state is held. Values at a masked step, NaN
included, must not affect a result or a gradient, so they are replaced before use: zero times NaN
would be NaN.
"""

from typing import Any

from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.functions import align, complex_of
from keras_coffee.ops import arguments


def as_mask(value: Any, inputs: Tensor) -> Tensor | None:
    """A boolean tensor `(B, T)`, True where a step counts, or None."""
    if value is None:
        return None
    mask = arguments.as_tensor(value, "mask")
    arguments.check_shape(mask, tuple(inputs.shape[:2]), "mask", f"{tuple(inputs.shape[:2])}")
    return ops.cast(mask, "bool")


def zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x`, `(B, T, ...)`, with zeros at masked steps."""
    return fill_masked(x, mask, 0.0)


def fill_masked(x: Tensor, mask: Tensor | None, value: float) -> Tensor:
    """`x`, `(B, T, ...)`, with a value of its dtype at masked steps."""
    if mask is None:
        return x
    filling = ops.full_like(x, value) if value else ops.zeros_like(x)
    return backend.where(align(mask, x), x, filling)


def zero_before_first(outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Outputs with zeros before the first step that counts, where there is none to repeat."""
    if mask is None:
        return outputs
    return zero_masked(outputs, ops.cumsum(ops.cast(mask, "int32"), axis=1) > 0)


def repeat_last(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x`, `(B, T, ...)`, with its last value that counts at masked steps; zero before the first.

    The number of the last step that counts comes from a linear scan over `(B, T)`: exporters know
    no running maximum. It is exact up to T = 2^24.
    """
    if mask is None or 0 in x.shape:
        return x
    if "complex" in str(x.dtype):  # PyTorch picks no complex numbers
        return complex_of(*(repeat_last(part, mask) for part in (ops.real(x), ops.imag(x))))
    counts = ops.cast(mask, "float32")
    # No size is asked for, which an exporter may not know.
    steps, rows = (ops.cumsum(ops.ones_like(counts), axis=axis) - 1 for axis in (1, 0))
    last = backend.linear_scan(
        1 - counts, counts * steps, ops.zeros_like(counts[:, 0]), reverse=False
    )
    rows, length, last = (ops.cast(y, "int32") for y in (rows, steps[:, -1:] + 1, last))
    flat = ops.reshape(x, (-1, *x.shape[2:]))
    repeated = ops.take(flat, rows * length + last, axis=0)
    return zero_masked(repeated, ops.cumsum(counts, axis=1) > 0)
