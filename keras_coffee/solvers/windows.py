"""Sequences cut into windows, which are processed in order."""

from collections.abc import Callable

from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor

Body = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


def in_windows(
    body: Body,
    carry: list[Tensor],
    sequences: list[Tensor],
    window: int | None,
    emit: Callable[[Tensor, list[Tensor]], list[Tensor]],
    *,
    reverse: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Calls `body(carry, slices) -> carry, outputs` for one window after another.

    Args:
        body: Its slices and outputs are `(B, W, ...)`.
        carry: What the first window gets; `carry[0]` is a state `(B, ...)`.
        sequences: `(B, T, ...)`. The last window is filled up with zeros.
        window: W. None: all steps in one.
        emit: Outputs for states `(B, W, ...)` and the slices of a window, to know their shapes.
        reverse: go from the last window to the first.

    Returns:
        The final carry, and the outputs `(B, T, ...)`.
    """
    length = sequences[0].shape[1]
    if window is None or (length is not None and length <= window):
        return body(carry, sequences)
    steps = ops.shape(sequences[0])[1]
    count = (steps + window - 1) // window
    cut = [_cut(_padded(x, count * window - steps), count, window) for x in sequences]
    like = emit(ops.repeat(carry[0][:, None], window, axis=1), [x[0] for x in cut])
    cut = [ops.flip(x, axis=0) for x in cut] if reverse else cut
    carry, outputs = backend.scan(body, carry, cut, like)
    outputs = [ops.flip(x, axis=0) for x in outputs] if reverse else outputs
    return carry, [_joined(x, count * window)[:, :steps] for x in outputs]


def needs_padding(length: int | None, window: int | None) -> bool:
    """Whether the last window is not full, or may not be."""
    if window is None or (length is not None and length <= window):
        return False
    return length is None or length % window != 0


def _padded(x, count):
    if isinstance(count, int) and count == 0:
        return x
    batch, _, *rest = ops.shape(x)
    return ops.concatenate([x, ops.zeros((batch, count, *rest), dtype=x.dtype)], axis=1)


def _cut(x, count, window):
    batch, _, *rest = ops.shape(x)
    return ops.swapaxes(ops.reshape(x, (batch, count, window, *rest)), 0, 1)


def _joined(x, length):
    _, batch, _, *rest = ops.shape(x)
    return ops.reshape(ops.swapaxes(x, 0, 1), (batch, length, *rest))
