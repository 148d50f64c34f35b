"""Trajectories by any solver: windows in order, and their gradients."""

import functools
from typing import Any

import keras
from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.affine import AffineCell
from keras_coffee.cells.cell import Cell
from keras_coffee.cells.masked import MaskedCell, marked
from keras_coffee.solvers.affine import affine_scan
from keras_coffee.solvers.algebra import BY_STRUCTURE, Algebra, Diagonal
from keras_coffee.solvers.recurrence import Recurrence, tensors_of
from keras_coffee.solvers.residual import previous_states
from keras_coffee.solvers.solution import Solution
from keras_coffee.solvers.solver import Solver
from keras_coffee.solvers.windows import in_windows, needs_padding


def solve(
    solver: Solver,
    cell: Cell,
    initial_state: Tensor,
    inputs: Any,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
) -> Solution:
    """The trajectory of a cell, differentiable by its weights, the inputs and the initial state."""
    recurrence, tensors = tensors_of(cell, inputs, mask, reset, initial_state, may_use_kernel=False)
    _check_one_state(recurrence)
    return Solution(*backend.compiled(_solve, (solver, recurrence), *tensors))


def outputs(solver: Solver, recurrence: Recurrence, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Outputs and the final state, differentiable.

    Where no gradient is asked for, no trajectory is kept: outputs are read window by window.
    """
    _check_one_state(recurrence)
    return backend.compiled(_outputs, (solver, recurrence), *tensors)


def _check_one_state(recurrence: Recurrence) -> None:
    if not recurrence.has_one_state:
        raise ValueError(
            "Parallel solvers and `nonlinear_scan` need a state that is one tensor. Join its "
            'parts, or run the cell by `cell_scan` with solver="sequential".'
        )


def solve_linear(solver: Solver, decay: Tensor, drive: Tensor, initial_state: Tensor) -> Tensor:
    """All states of x(k) = a(k) x(k-1) + b(k), elementwise, by a parallel scan; differentiable."""
    (states,) = backend.without_gradient(
        lambda: [affine_scan(Diagonal, decay, drive, initial_state)]
    )
    return _attached(solver, AffineCell(), initial_state, (decay, drive), states)


def _solve(solver, recurrence, *tensors):
    cell, inputs, initial_state = _unpacked(recurrence, tensors)
    _, (states,), report = backend.without_gradient(
        lambda: _run(solver, cell, initial_state, inputs, lambda states, slices: [states])
    )
    return _attached(solver, cell, initial_state, inputs, states), *report


def _outputs(solver, recurrence, *tensors):
    cell, inputs, initial_state = _unpacked(recurrence, tensors)
    if backend.may_be_differentiated():
        states = _solve(solver, recurrence, *tensors)[0]
        return recurrence.checked_outputs(cell.read(states, inputs), states), states[:, -1]

    def read(states, slices):
        found = cell.read(states, keras.tree.pack_sequence_as(inputs, list(slices)))
        return [recurrence.checked_outputs(found, states)]

    final_state, (result,), _ = _run(solver, cell, initial_state, inputs, read)
    return result, final_state


def _unpacked(recurrence, tensors):
    sequences, weights, (initial_state,) = recurrence.split(tensors)
    inputs, *marks = recurrence.unmarked(sequences)
    cell, inputs = marked(recurrence.cell(weights), recurrence.pack_inputs(inputs), *marks)
    return cell, inputs, initial_state


def _attached(solver, cell, initial_state, inputs, states):
    """The states with their gradient, by implicit differentiation.

    At the solution x(k) = f(x(k-1), u(k)), so a change of f at step k changes x(k) directly and
    later states by the Jacobians. The gradient by f at every step is one reversed linear
    recurrence; the framework continues from there, through one call of f for all steps.
    """
    if not backend.may_be_differentiated():
        return states
    previous = backend.without_gradient(lambda: [previous_states(initial_state, states)])[0]
    jacobian = backend.without_gradient(lambda: [cell.jacobian(previous, inputs)])[0]
    adjoint = functools.partial(_adjoint, solver, BY_STRUCTURE[cell.structure])
    drive = cell.step(previous, inputs)
    return backend.implicit_states(adjoint, states, jacobian, drive, initial_state)


def _adjoint(solver: Solver, algebra: Algebra, jacobian: Tensor, grads: Tensor):
    """Gradients by f at every step, and by the initial state.

    l(k) = g(k) + J(k+1)ᵀ l(k+1), from the last step to the first.
    """
    transposed = algebra.transpose(jacobian)
    first, following = transposed[:, 0], transposed[:, 1:]
    following = ops.concatenate([following, ops.zeros_like(transposed[:, :1])], axis=1)

    def body(carry, slices):
        jacobian, drive = slices
        last = drive[:, -1:] + algebra.apply(jacobian[:, -1:], carry[0][:, None])
        drive = ops.concatenate([drive[:, :-1], last], axis=1)
        states = solver.linear(algebra, jacobian, drive)
        return [states[:, 0]], [states]

    zeros = ops.zeros_like(grads[:, 0])
    _, (drive,) = in_windows(
        body,
        [zeros],
        [following, grads],
        solver.steps_at_a_time,
        lambda like, slices: [like],
        reverse=True,
    )
    return drive, algebra.apply(first, drive[:, 0])


def _run(solver, cell, initial_state, inputs, emit):
    """The final state, what `emit` makes of the states, and the other fields of a solution."""
    leaves = keras.tree.flatten(inputs)
    structure = inputs
    if needs_padding(leaves[0].shape[1], solver.steps_at_a_time):
        # Windows are filled up with zeros, here with False: the state is held.
        structure = inputs, ops.ones(ops.shape(leaves[0])[:2], dtype="bool")
        cell, leaves = MaskedCell(cell), keras.tree.flatten(structure)

    count = len(keras.tree.flatten(inputs))  # without the mask of the padding

    def body(carry, slices):
        state, *report = carry
        found = solver.find(cell, state, keras.tree.pack_sequence_as(structure, list(slices)))
        merged = (ops.maximum, ops.maximum, ops.logical_and)
        report = [merge(a, b) for merge, a, b in zip(merged, report, found[1:], strict=True)]
        return [found.states[:, -1], *report], emit(found.states, slices[:count])

    # Of each sequence, in the real dtype of a residual.
    zeros = ops.sum(
        ops.zeros_like(ops.abs(initial_state)), axis=tuple(range(1, len(initial_state.shape)))
    )
    report = [ops.zeros_like(zeros, dtype="int32"), zeros, ops.ones_like(zeros, dtype="bool")]
    (final_state, *report), emitted = in_windows(
        body,
        [initial_state, *report],
        leaves,
        solver.steps_at_a_time,
        lambda states, slices: emit(states, slices[:count]),
    )
    return final_state, emitted, report
