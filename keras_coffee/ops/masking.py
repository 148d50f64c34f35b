"""What masks do in every recurrence.

A masked step is the identity: Δ = 0 there, so the state is held. Nothing of what stands at a masked
step may enter a result or a gradient, not even NaN, so it is replaced before it is used: zero times
NaN would be NaN.
"""

from typing import Any

from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.functions import align
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
    if mask is None:
        return x
    return backend.where(align(mask, x), x, ops.zeros_like(x))


def zero_before_first(outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Outputs with zeros until the first step that counts, as there is none yet to repeat."""
    if mask is None:
        return outputs
    return zero_masked(outputs, ops.cumsum(ops.cast(mask, "int32"), axis=1) > 0)


def repeat_last(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x`, `(B, T, ...)`, with its last value that counts at masked steps; zero before the first.

    Sorting puts the steps that count in front, so that the k-th of them stands at place k.
    """
    if mask is None:
        return x
    (batch, length), shape = ops.shape(mask), ops.shape(x)
    counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    steps = ops.cumsum(ops.ones_like(counts), axis=1) - 1
    order = ops.argsort(ops.where(mask, steps, steps + length), axis=1)
    last = ops.take_along_axis(order, ops.maximum(counts - 1, 0), axis=1)
    rows = ops.expand_dims(ops.arange(batch, dtype=last.dtype) * length, 1)
    flat = ops.reshape(x, (batch * length, *shape[2:]))
    repeated = ops.reshape(ops.take(flat, rows + last, axis=0), shape)
    return zero_masked(repeated, counts > 0)
