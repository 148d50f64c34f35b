"""The elementwise linear recurrence."""

import math

from keras import ops

from keras_coffee import backend, solvers
from keras_coffee._typing import Tensor
from keras_coffee.cells.functions import align
from keras_coffee.ops import arguments, masking
from keras_coffee.solvers import trajectory


def linear_scan(
    decay: Tensor,
    inputs: Tensor,
    *,
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    solver: str | solvers.Solver = "auto",
) -> tuple[Tensor, Tensor]:
    """All states of h(k) = a(k) h(k-1) + b(k), elementwise, real or complex.

    Differentiable once, in reverse, by every tensor argument.

    Args:
        decay: a, of a shape that broadcasts to that of the inputs. One decay for all steps or
            sequences, of length 1 in that axis, is not copied for each.
        inputs: b, `(B, T, ...)`, floating-point or complex, T ≥ 1. float16 and bfloat16 are
            accumulated in float32.
        initial_state: h before the first step, `(B, ...)`. None: zeros.
        reset: `(B, T)`, True or 1 where a new sequence begins: a is zero there, so that nothing
            finite of what is run before the step reaches it. An initial state may even be infinite
            or NaN. None: nowhere.
        reverse: If True, run from the last step to the first: h(k) = a(k) h(k+1) + b(k). Defaults
            to False.
        solver: `"auto"`, the default, `"sequential"`, `"associative"` (parallel in time), or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.

    Returns:
        States `(B, T, ...)`, in the dtype of the inputs, or complex if the decay is; and the state
        after the last step that is run, `(B, ...)`, in float32 at least.

    Raises:
        ValueError: if a shape does not fit, T is 0, or `solver` is unknown.
        TypeError: if the inputs are neither floating-point nor complex, or symbolic.

    Example:
        >>> states, final_state = linear_scan(0.5, np.ones((1, 4), "float32"))
        >>> np.array(states)
        array([[1.   , 1.5  , 1.75 , 1.875]], dtype=float32)
    """
    inputs = arguments.as_tensor(inputs, "inputs")
    decay = arguments.as_tensor(decay, "decay", like=arguments.dtype_of(inputs))
    dtype = arguments.common_dtype(decay, inputs)
    if len(inputs.shape) < 2:
        raise ValueError(
            f"`inputs` must have shape (batch, time, ...), received {tuple(inputs.shape)}."
        )
    arguments.check_time(inputs, "`inputs`")
    widths = tuple(inputs.shape[2:])
    found = solvers.choose(solver, "linear", inputs, None if None in widths else math.prod(widths))
    sequences = ops.cast(inputs, dtype)
    state = _initial_state(initial_state, sequences, dtype)
    states = linear_states(
        ops.cast(decay, dtype),
        sequences,
        state,
        found,
        reset=masking.as_mask(reset, inputs, "reset"),
        reverse=reverse,
    )
    final_state = copied_step(states, 0 if reverse else -1)
    is_low = arguments.is_low_precision(inputs) and dtype == "float32"
    return ops.cast(states, inputs.dtype) if is_low else states, final_state


def copied_step(sequences: Tensor, step: int) -> Tensor:
    """States or outputs at a step. On PyTorch a slice alone would keep all of them in memory."""
    return ops.copy(sequences[:, step])


def linear_states(
    decay: Tensor,
    drive: Tensor,
    state: Tensor,
    solver: solvers.Solver,
    *,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """The states, given tensors of one dtype. Decay and drive broadcast to `(B, T, ...)`.

    A step that the boolean mask `(B, T)` leaves out holds the state; where `reset` says so the
    state is zero before the step.
    """
    shape = (*ops.shape(drive)[:2], *ops.shape(state)[1:])
    if tuple(drive.shape[2:]) != tuple(state.shape[1:]):
        drive = ops.broadcast_to(drive, shape)
    decay = _broadcast(decay, drive)
    if mask is not None:
        decay = ops.broadcast_to(decay, shape)
        decay = backend.where(align(mask, decay), decay, ops.ones_like(decay))
        drive = masking.zero_masked(drive, mask)
    if reset is not None:
        goes_on = ops.logical_not(reset)
        decay = masking.zero_masked(ops.broadcast_to(decay, shape), goes_on)
        # What is carried in may be infinite or NaN, and zero times that is NaN.
        first = goes_on[:, -1:] if reverse else goes_on[:, :1]
        state = masking.zero_masked(state[:, None], first)[:, 0]
    if isinstance(solver, solvers.Sequential):
        return backend.linear_scan(decay, drive, state, reverse=reverse)
    decay = ops.broadcast_to(decay, shape)
    if not reverse:
        return trajectory.solve_linear(solver, decay, drive, state)
    decay, drive = ops.flip(decay, axis=1), ops.flip(drive, axis=1)
    return ops.flip(trajectory.solve_linear(solver, decay, drive, state), axis=1)


def _broadcast(decay: Tensor, inputs: Tensor) -> Tensor:
    """The decay with all axes of the inputs, and their length in all but the first two."""
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
    decay = ops.reshape(decay, (*(1,) * (len(target) - len(own)), *ops.shape(decay)))
    if decay.shape[2:] == inputs.shape[2:]:
        return decay
    return ops.broadcast_to(decay, (*ops.shape(decay)[:2], *ops.shape(inputs)[2:]))


def _initial_state(value: Tensor | None, inputs: Tensor, dtype: str) -> Tensor:
    if value is None:
        return ops.zeros_like(inputs[:, 0])
    shape = (inputs.shape[0], *inputs.shape[2:])
    return arguments.as_parameter(value, "initial_state", shape, dtype)
