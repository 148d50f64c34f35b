"""A user's recurrence over whole sequences."""

from typing import Any

import keras
from keras import ops

from keras_coffee import backend, solvers
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell, LinearCell
from keras_coffee.ops import arguments, masking
from keras_coffee.ops.linear_scan import copied_step, linear_states
from keras_coffee.solvers import trajectory
from keras_coffee.solvers.affine import real_dtype
from keras_coffee.solvers.recurrence import leaves_of, tensors_of


def cell_scan(
    cell: Cell,
    inputs: Any,
    initial_state: Any,
    *,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
    solver: str | solvers.Solver = "auto",
    recompute: bool = False,
) -> tuple[Tensor, Any]:
    """Any recurrence, given by one step.

        x(k) = f(x(k-1), u(k)),   y(k) = g(x(k), u(k))

    Differentiable once, in reverse, by the inputs, the initial state and the weights of the cell.
    The gradient comes from the vector-Jacobian product of a step, in one pass back through time: a
    cell needs no Jacobian.

    Args:
        cell: The recurrence f and its output g: a `keras_coffee.cells.Cell`. Its weights are
            tensors of the state's dtype, or of integers or booleans, which have no gradient.
        inputs: u, `(B, T, ...)`, T ≥ 1: a tensor, or a nested tuple, list or dictionary of them.
            float16 and bfloat16 are cast to the dtype of the state.
        initial_state: x(0), `(B, ...)`, likewise; float32, float64 or complex. The recurrence runs
            in its dtype.
        mask: `(B, T)`, False or 0 at steps to skip: the state is held there and the output
            repeated, zero before the first step that counts. Inputs at such a step have no effect,
            not even NaN. None: every step counts.
        reset: `(B, T)`, True or 1 where a new sequence begins: the state is zero before the step,
            whatever came before it, and no gradient goes back past it. A `LinearCell` multiplies by
            zero there: a state that is infinite or NaN stays NaN. None: nowhere.
        solver: `"auto"`, the default, and `"sequential"` run one step after another. Parallel in
            time are `"associative"` for a `LinearCell`, `"newton"` and `"elk"` for a cell with a
            Jacobian; or pass a solver of `keras_coffee.solvers`.
        recompute: If True, keep about √T states for the gradient instead of all T, and compute the
            others again. No effect on values. Needs the sequential solver. Defaults to False.

    Returns:
        Outputs y, `(B, T, ...)`, and the final state x(T), in the dtype of the state.

    Raises:
        ValueError: if a shape does not fit, T is 0, `step` returns a state of another shape or
            dtype, the structure or `solver` is unknown, or `recompute` meets a parallel solver.
        TypeError: if `cell` is no `Cell`, the state has another dtype or is complex for `"elk"`, or
            a tensor is symbolic.

    Example:
        >>> from keras_coffee.cells import ElmanCell
        >>> weights = 0.5 * np.eye(2), np.ones((1, 2)), np.zeros(2)
        >>> cell = ElmanCell(*(keras.ops.convert_to_tensor(w, "float32") for w in weights))
        >>> u = np.ones((3, 100, 1), "float32")
        >>> outputs, final_state = cell_scan(cell, u, np.zeros((3, 2), "float32"))
        >>> outputs.shape, final_state.shape
        ((3, 100, 2), (3, 2))
    """
    inputs, initial_state, mask, reset = prepared(inputs, initial_state, mask, reset)
    # Kernels do not check shapes, and a user's cell may hold weights of other shapes.
    outputs, final_state = run(
        cell, inputs, initial_state, mask, reset, solver, recompute, may_use_kernel=False
    )
    return masking.repeat_last(outputs, mask, reset), final_state


def run(
    cell: Cell,
    inputs: Any,
    state: Any,
    mask: Tensor | None,
    reset: Tensor | None,
    solver: str | solvers.Solver,
    recompute: bool,
    *,
    may_use_kernel: bool = True,
) -> tuple[Tensor, Any]:
    """`cell_scan` without its checks. Outputs at masked steps are read from the held state.

    `may_use_kernel`: all tensors have the shapes and the one dtype that kernels of the cell need.
    """
    is_linear = isinstance(cell, LinearCell)
    first = leaves_of(inputs)[0]
    kind: solvers.Kind = "linear" if is_linear else "nonlinear"
    found = solvers.choose(solver, kind, first, None, recompute=recompute)
    is_sequential = isinstance(found, solvers.Sequential)
    recurrence, tensors = tensors_of(
        cell, inputs, mask, reset, state, may_use_kernel=may_use_kernel
    )
    if is_linear and not (is_sequential and (recurrence.kernel or recompute)):
        return _run_linear(recurrence, tensors, found)
    if not is_sequential:
        return trajectory.outputs(found, recurrence, tensors)
    scan = backend.implementation(recurrence, first)
    outputs, final_state = scan(recurrence, *tensors, recompute=recompute)
    return outputs, recurrence.pack_state(final_state)


def _run_linear(recurrence, tensors, solver):
    """All states by one linear scan, then all outputs at once."""
    sequences, weights, (state,) = recurrence.split(tensors)
    inputs, mask, reset = recurrence.unmarked(sequences)
    cell, inputs = recurrence.cell(weights), recurrence.pack_inputs(inputs)
    decay, drive = (_as_sequence(x, state) for x in cell.affine(inputs))
    drive = ops.broadcast_to(drive, (*ops.shape(tensors[0])[:2], *ops.shape(state)[1:]))
    states = linear_states(decay, drive, state, solver, mask=mask, reset=reset)
    outputs = recurrence.checked_outputs(cell.read(states, inputs), states)
    return outputs, copied_step(states, -1)


def _as_sequence(value, state):
    """Decay or drive in the dtype of the state, with all of its axes and one for time."""
    rank = len(state.shape)
    x = arguments.as_tensor(value, "affine", like=arguments.dtype_of(state))
    x = arguments.as_dtype(x, "What `affine` returns", state)
    if len(x.shape) == rank + 1:
        return x
    if len(x.shape) >= rank:
        raise ValueError(
            "`affine` must return tensors `(B, T, ...)`, or constants of at most the axes of one "
            f"state, {tuple(state.shape[1:])}; received {tuple(x.shape)}."
        )
    return ops.reshape(x, (*(1,) * (rank + 1 - len(x.shape)), *ops.shape(x)))


def prepared(
    inputs: Any, initial_state: Any, mask: Any, reset: Any, *, is_real: bool = False
) -> tuple[Any, Any, Tensor | None, Tensor | None]:
    """Inputs, zero at masked steps, initial state, mask and resets, checked, of one precision."""
    initial_state = keras.tree.map_structure(lambda x: _as_state(x, is_real), initial_state)
    states = keras.tree.flatten(initial_state)
    dtype = real_dtype(states[0])

    def as_input(x):
        x = arguments.as_tensor(x, "inputs")
        return ops.cast(x, dtype) if arguments.is_low_precision(x) else x

    inputs = keras.tree.map_structure(as_input, inputs)
    leaves = keras.tree.flatten(inputs)
    _check_shapes(leaves, states[0].shape[0])
    mask = masking.as_mask(mask, leaves[0])
    reset = masking.as_mask(reset, leaves[0], "reset")
    inputs = keras.tree.map_structure(lambda x: masking.zero_masked(x, mask), inputs)
    return inputs, initial_state, mask, reset


def _as_state(value, is_real):
    state = arguments.as_tensor(value, "initial_state")
    dtype = keras.backend.standardize_dtype(state.dtype)
    allowed = ("float32", "float64", *(() if is_real else ("complex64", "complex128")))
    if dtype not in allowed:
        raise TypeError(
            f"`initial_state` must be one of {', '.join(allowed)}, received dtype {dtype}. Cast it "
            'first, for example with keras.ops.cast(x, "float32").'
        )
    if len(state.shape) < 2:
        raise ValueError(
            f"`initial_state` must have shape (batch, ...), received {tuple(state.shape)}."
        )
    return state


def _check_shapes(inputs, batch):
    length = inputs[0].shape[1] if len(inputs[0].shape) > 1 else None
    for x in inputs:
        shape = tuple(x.shape)
        if len(shape) < 2:
            raise ValueError(f"`inputs` must have shape (batch, time, ...), received {shape}.")
        arguments.check_shape(x, (batch, length, *shape[2:]), "inputs", f"({batch}, {length}, ...)")
    arguments.check_time(inputs[0], "`inputs`")
