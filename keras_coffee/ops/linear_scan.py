"""The elementwise linear recurrence."""

import math

from keras import ops

from keras_coffee import backend, solvers
from keras_coffee._typing import Tensor
from keras_coffee.cells.affine import AffineCell
from keras_coffee.ops import arguments
from keras_coffee.solvers import trajectory


def linear_scan(
    decay: Tensor,
    inputs: Tensor,
    *,
    initial_state: Tensor | None = None,
    reverse: bool = False,
    solver: str | solvers.Solver = "auto",
) -> Tensor:
    """All states of h(k) = a(k) h(k-1) + b(k), elementwise, real or complex.

    Differentiable once, in reverse, by every tensor argument.

    Args:
        decay: a, a shape that broadcasts to that of the inputs.
        inputs: b, `(B, T, ...)`, floating-point or complex, T ≥ 1. float16 and bfloat16 are
            accumulated in float32.
        initial_state: h before the first step, `(B, ...)`. None: zeros.
        reverse: run from the last step to the first: h(k) = a(k) h(k+1) + b(k).
        solver: `"auto"`, `"sequential"`, `"associative"` (parallel in time), or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.

    Returns:
        States `(B, T, ...)`, in the dtype of the inputs, or complex if the decay is.

    Raises:
        ValueError: if a shape does not fit, T is 0, or `solver` is unknown.
        TypeError: if the inputs are neither floating-point nor complex, or symbolic.

    Example:
        >>> states = linear_scan(0.5, np.ones((1, 4), "float32"))
        >>> np.array(states)
        array([[1.   , 1.5  , 1.75 , 1.875]], dtype=float32)
    """
    inputs = arguments.as_tensor(inputs, "inputs")
    decay = arguments.as_tensor(decay, "decay")
    dtype = arguments.common_dtype(decay, inputs)
    if len(inputs.shape) < 2:
        raise ValueError(
            f"`inputs` must have shape (batch, time, ...), received {tuple(inputs.shape)}."
        )
    arguments.check_time(inputs, "inputs")
    sequences = ops.cast(inputs, dtype)
    decay = _broadcast(ops.cast(decay, dtype), sequences)
    state = _initial_state(initial_state, sequences, dtype)
    widths = tuple(inputs.shape[2:])
    found = solvers.choose(solver, "linear", inputs, None if None in widths else math.prod(widths))
    if isinstance(found, solvers.Sequential):
        states = backend.linear_scan(decay, sequences, state, reverse=reverse)
    else:
        pair = [ops.flip(x, axis=1) if reverse else x for x in (decay, sequences)]
        states = trajectory.solve(found, AffineCell(), state, tuple(pair)).states
        states = ops.flip(states, axis=1) if reverse else states
    is_low = arguments.is_low_precision(inputs) and dtype == "float32"
    return ops.cast(states, inputs.dtype) if is_low else states


def _broadcast(decay: Tensor, inputs: Tensor) -> Tensor:
    own, target = tuple(decay.shape), tuple(inputs.shape)
    fits = len(own) <= len(target) and all(
        d in (None, 1) or i is None or d == i
        for d, i in zip(reversed(own), reversed(target), strict=False)
    )
    if not fits:
        raise ValueError(
            f"`decay` must broadcast to the inputs' shape {target}, received {own}. Give it one "
            "axis for each of theirs, of the same length or 1."
        )
    return ops.broadcast_to(decay, ops.shape(inputs))


def _initial_state(value: Tensor | None, inputs: Tensor, dtype: str) -> Tensor:
    if value is None:
        return ops.zeros_like(inputs[:, 0])
    shape = (inputs.shape[0], *inputs.shape[2:])
    return arguments.as_parameter(value, "initial_state", shape, dtype)
