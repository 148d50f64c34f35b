"""How far a trajectory is from satisfying the recurrence."""

import math
from typing import Any

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.solvers.solution import Solution


def previous_states(initial_state: Tensor, states: Tensor) -> Tensor:
    """x(0), …, x(T-1)."""
    return ops.concatenate([initial_state[:, None], states[:, :-1]], axis=1)


def residuals(cell: Cell, initial_state: Tensor, states: Tensor, inputs: Any) -> Tensor:
    """x(k) - f(x(k-1), u(k)), of the shape of the states."""
    return states - cell.step(previous_states(initial_state, states), inputs)


def found_directly(cell: Cell, initial_state: Tensor, states: Tensor, inputs: Any) -> Solution:
    """States that no iteration was needed for, and how well they fit."""
    residual = error(states, residuals(cell, initial_state, states, inputs))
    nothing = ops.zeros_like(residual, dtype="int32")
    return Solution(states, nothing, residual, ops.ones_like(residual, dtype="bool"))


def error(states: Tensor, residuals: Tensor) -> Tensor:
    """The largest residual of each sequence, `(B,)`, relative where the state is above 1.

    Infinite if there is a NaN or an infinity anywhere.
    """
    relative = ops.abs(residuals) / ops.maximum(1, ops.abs(states))
    # Checked per element: XLA's maximum over many elements may ignore NaN on a CPU.
    relative = ops.where(relative < math.inf, relative, math.inf)
    return ops.max(relative, axis=tuple(range(1, len(states.shape))), initial=0)
