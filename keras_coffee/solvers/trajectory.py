"""Trajectories by any solver: windows in order, and their gradients."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.cells.masked import masked
from keras_coffee.solvers.algebra import BY_STRUCTURE, Algebra
from keras_coffee.solvers.residual import previous_states
from keras_coffee.solvers.solution import Solution
from keras_coffee.solvers.solver import Solver
from keras_coffee.solvers.windows import in_windows, needs_padding


def solve(solver: Solver, cell: Cell, initial_state: Tensor, inputs: Any) -> Solution:
    """The trajectory of a cell, differentiable by its weights, the inputs and the initial state."""
    _, (states,), report = backend.without_gradient(
        lambda: _run(solver, cell, initial_state, inputs, lambda states: [states])
    )
    return Solution(_attached(solver, cell, initial_state, inputs, states), *report)


def outputs(
    solver: Solver,
    cell: Cell,
    initial_state: Tensor,
    inputs: Any,
    read: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Outputs `read(states)` and the final state, differentiable.

    Where no gradient is asked for, no trajectory is kept: outputs are read window by window.
    """
    if backend.may_be_differentiated():
        solution = solve(solver, cell, initial_state, inputs)
        return read(solution.states), solution.states[:, -1]
    final_state, (result,), _ = _run(
        solver, cell, initial_state, inputs, lambda states: [read(states)]
    )
    return result, final_state


def _attached(solver, cell, initial_state, inputs, states):
    """The states with their gradient, by implicit differentiation.

    At the solution x(k) = f(x(k-1), u(k)), so a change of f at step k changes x(k) by itself and
    later states by the Jacobians. The gradient by f at every step is one reversed linear
    recurrence; the framework carries it on from there, through one call of f for all steps.
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
        body, [zeros], [following, grads], solver.steps_at_a_time, lambda like: [like], reverse=True
    )
    return drive, algebra.apply(first, drive[:, 0])


def _run(solver, cell, initial_state, inputs, emit):
    """The final state, what `emit` makes of the states, and the other fields of a solution."""
    first = keras.tree.flatten(inputs)[0]
    if needs_padding(first.shape[1], solver.steps_at_a_time):
        # Windows are filled up with zeros, here with False: the state is held.
        cell, inputs = masked(cell, inputs, ops.ones(ops.shape(first)[:2], dtype="bool"))

    def body(carry, slices):
        state, *report = carry
        found = solver.find(cell, state, keras.tree.pack_sequence_as(inputs, list(slices)))
        merged = (ops.maximum, ops.maximum, ops.logical_and)
        report = [merge(a, b) for merge, a, b in zip(merged, report, found[1:], strict=True)]
        return [found.states[:, -1], *report], emit(found.states)

    # Of each sequence, in the real dtype of a residual.
    zeros = ops.sum(
        ops.zeros_like(ops.abs(initial_state)), axis=tuple(range(1, len(initial_state.shape)))
    )
    report = [ops.zeros_like(zeros, dtype="int32"), zeros, ops.ones_like(zeros, dtype="bool")]
    (final_state, *report), emitted = in_windows(
        body, [initial_state, *report], keras.tree.flatten(inputs), solver.steps_at_a_time, emit
    )
    return final_state, emitted, report
