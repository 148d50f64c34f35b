"""What masks and resets do in every recurrence.

A masked step is the identity: Δ = 0 there, so the state is held. Values at a masked step, NaN
included, must not affect a result or a gradient, so they are replaced before use: zero times NaN
would be NaN.

A reset makes the state zero before its step, and then the step is taken, or the zeros are held if
it is masked. Outputs that masked steps repeat are those of the same sequence.
"""

from typing import Any

from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.functions import align
from keras_coffee.ops import arguments


def as_mask(value: Any, inputs: Tensor, name: str = "mask") -> Tensor | None:
    """A mask or resets as a boolean tensor `(B, T)`, or None."""
    if value is None:
        return None
    mask = arguments.as_tensor(value, name)
    shape = tuple(inputs.shape[:2])
    arguments.check_shape(mask, shape, name, f"(batch, time) = {shape}")
    return ops.cast(mask, "bool")


def backwards(reset: Tensor) -> Tensor:
    """Resets of the same sequences where time runs backwards: each begins at its last step."""
    later = ops.concatenate([reset[:, 1:], ops.zeros_like(reset[:, :1])], axis=1)
    return ops.flip(later, axis=1)


def zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x`, `(B, T, ...)`, with zeros at masked steps."""
    return fill_masked(x, mask, 0.0)


def fill_masked(x: Tensor, mask: Tensor | None, value: float) -> Tensor:
    """`x`, `(B, T, ...)`, with a value of its dtype at masked steps."""
    if mask is None:
        return x
    filling = ops.full_like(x, value) if value else ops.zeros_like(x)
    return backend.where(align(mask, x), x, filling)


def zero_before_first(outputs: Tensor, mask: Tensor | None, reset: Tensor | None = None) -> Tensor:
    """Outputs with zeros before the first step that counts, where there is none to repeat."""
    if mask is None:
        return outputs
    if reset is None:  # a sum is quicker than a scan
        return zero_masked(outputs, ops.cumsum(ops.cast(mask, "int32"), axis=1) > 0)
    return zero_masked(outputs, last_that_counts(mask, reset) > 0)


def hold_before_first(
    x: Tensor, held: Tensor, mask: Tensor | None, reset: Tensor | None = None
) -> Tensor:
    """`x`, `(B, T, ...)`, with `held`, `(B, ...)`, before the first step that counts or begins."""
    if mask is None:
        return x
    begins = ops.cast(mask, "bool")
    if reset is not None:
        begins = ops.logical_or(begins, ops.cast(reset, "bool"))
    has_begun = ops.cumsum(ops.cast(begins, "int32"), axis=1) > 0
    return backend.where(align(has_begun, x), x, held[:, None])


def repeat_last(x: Tensor, mask: Tensor | None, reset: Tensor | None = None) -> Tensor:
    """`x`, `(B, T, ...)`, with its last value that counts at masked steps, or zero."""
    if mask is None or 0 in x.shape:
        return x
    return at_steps(x, last_that_counts(mask, reset))


def at_steps(x: Tensor, steps: Tensor) -> Tensor:
    """`x`, `(B, T, ...)`, at steps `(B, S)` of the same sequences: 1 is the first, 0 is zeros."""
    if "complex" in str(x.dtype):  # PyTorch picks no complex numbers
        return backend.complex_of(*(at_steps(part, steps) for part in (ops.real(x), ops.imag(x))))
    # No size is asked for, which an exporter may not know.
    ones = ops.ones_like(x[(slice(None), slice(None), *[0] * (len(x.shape) - 2))], dtype="int32")
    rows, length = ops.cumsum(ones[:, :1], axis=0) - 1, ops.cumsum(ones[:1], axis=1)[:, -1:]
    at = rows * length + ops.cast(ops.maximum(steps - 1, 0), "int32")
    flat = ops.reshape(x, (-1, *x.shape[2:]))
    return zero_masked(ops.take(flat, at, axis=0), steps > 0)


def last_that_counts(mask: Tensor, reset: Tensor | None) -> Tensor:
    """The number from 1 on of the last step of the same sequence that counts, `(B, T)`, or 0.

    By a linear scan: exporters know no running maximum. It is exact up to T = 2^24.
    """
    counts = ops.cast(mask, "float32")
    steps = ops.cumsum(ops.ones_like(counts), axis=1)
    held = 1 - counts
    held = held if reset is None else held * (1 - ops.cast(reset, "float32"))
    return backend.linear_scan(held, counts * steps, ops.zeros_like(counts[:, 0]), reverse=False)
