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
    return ops.where(align(mask, x), x, ops.zeros_like(x))


def zero_before_first(outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Outputs with zeros until the first step that counts, as there is none yet to repeat."""
    if mask is None:
        return outputs
    return zero_masked(outputs, ops.cumsum(ops.cast(mask, "int32"), axis=1) > 0)


def repeat_last(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x`, `(B, T, n)`, with its last value that counts at masked steps; zero before the first."""
    if mask is None:
        return x
    x = zero_masked(x, mask)
    held = ops.cast(ops.logical_not(mask), x.dtype)[..., None]
    return backend.linear_scan(
        ops.broadcast_to(held, ops.shape(x)), x, ops.zeros_like(x[:, 0]), reverse=False
    )
