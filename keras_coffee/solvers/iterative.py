"""Solvers that guess a trajectory and improve all of its steps at once."""

import abc
import dataclasses
import math
from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_coffee import backend
from keras_coffee._checks import as_float, one_of, positive_integer
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.cells.functions import align
from keras_coffee.solvers import sequential
from keras_coffee.solvers.affine import real_dtype
from keras_coffee.solvers.algebra import BY_STRUCTURE, Algebra, Diagonal, diagonal_of
from keras_coffee.solvers.residual import error, previous_states, residuals
from keras_coffee.solvers.solution import Solution
from keras_coffee.solvers.solver import Solver

JacobianKind = Literal["full", "diagonal"]
Guess = Literal["hold", "step", "zeros"]


@dataclasses.dataclass(frozen=True)
class Iterative(Solver):
    """Iterates on all steps of a window at once, until they satisfy the recurrence.

    Windows are solved in order, each from the exact last state of the one before. A window that
    does not reach the tolerance within its budget runs step by step.
    """

    jacobian: JacobianKind = "full"
    window: int | None = 32
    tolerance: float | None = None
    max_iterations: int = 100
    initial_guess: Guess = "hold"

    def __post_init__(self):
        one_of("jacobian", self.jacobian, get_args(JacobianKind))
        one_of("initial_guess", self.initial_guess, get_args(Guess))
        if self.window is not None:
            positive_integer("window", self.window, " or None, for all steps at once")
        positive_integer("max_iterations", self.max_iterations)
        if self.tolerance is not None and not 0 <= as_float(self.tolerance) < math.inf:
            raise ValueError(
                "`tolerance` must be a number of at least 0, or None for the one of the dtype, "
                f"received {self.tolerance!r}."
            )

    @property
    def steps_at_a_time(self) -> int | None:
        return self.window

    @abc.abstractmethod
    def correction(
        self, algebra: Algebra, jacobian: Tensor, residuals: Tensor, damping: Tensor
    ) -> Tensor:
        """What to add to the states, `(B, W, ...)`; `damping` is `(B, 1, ...)` like `merit`."""

    @abc.abstractmethod
    def judge(self, before: Tensor, after: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Whether to take a correction, given Σ residual² of each block, and the next damping."""

    def find(self, cell: Cell, initial_state: Tensor, inputs: Any) -> Solution:
        tolerance = self.tolerance_of(initial_state)
        states, iterations = self._iterate(cell, initial_state, inputs, tolerance)
        residual = error(states, residuals(cell, initial_state, states, inputs))
        converged = residual <= tolerance

        def refuse():
            exact = sequential.run(cell, initial_state, inputs)
            kept = backend.where(align(converged, states), states, exact)
            return kept, error(kept, residuals(cell, initial_state, kept, inputs))

        states, residual = ops.cond(ops.all(converged), lambda: (states, residual), refuse)
        return Solution(states, iterations, residual, converged)

    def tolerance_of(self, state: Tensor) -> float:
        """The tolerance, or eight units of rounding of the dtype of the state."""
        if self.tolerance is not None:
            return float(self.tolerance)
        return 8 * (2.0**-52 if real_dtype(state) == "float64" else 2.0**-23)

    def _iterate(self, cell, initial_state, inputs, tolerance):
        """States `(B, W, ...)` and how many iterations each sequence took."""
        algebra, take = self._algebra(cell)
        guess = self._guess(cell, initial_state, inputs)
        misfit = residuals(cell, initial_state, guess, inputs)
        far = error(guess, misfit)

        def is_active(far):
            # NaN and infinity stay, so further iterations are useless.
            return ops.logical_and(far > tolerance, far < math.inf)

        def goes_on(k, states, misfit, damping, iterations, active):
            return ops.logical_and(k < self.max_iterations, ops.any(active))

        def improve(k, states, misfit, damping, iterations, active):
            jacobian = take(cell.jacobian(previous_states(initial_state, states), inputs))
            new = states + self.correction(algebra, jacobian, misfit, damping)
            new_misfit = residuals(cell, initial_state, new, inputs)
            is_better, damping = self.judge(merit(misfit), merit(new_misfit), damping)
            # A sequence that is done does not change while others iterate.
            taken = ops.logical_and(align(active, is_better), is_better)
            states = backend.where(taken, new, states)
            misfit = backend.where(taken, new_misfit, misfit)
            iterations = iterations + ops.cast(active, "int32")
            active = ops.logical_and(active, is_active(error(states, misfit)))
            return k + 1, states, misfit, damping, iterations, active

        def merit(misfit):
            return ops.sum(
                ops.square(misfit), axis=1 if algebra is Diagonal else (1, -1), keepdims=True
            )

        start = self.initial_damping(merit(misfit))
        iterations = ops.zeros_like(far, dtype="int32")
        loop = (ops.convert_to_tensor(0), guess, misfit, start, iterations, is_active(far))
        _, states, _, _, iterations, _ = ops.while_loop(goes_on, improve, loop)
        return states, iterations

    def initial_damping(self, like: Tensor) -> Tensor:
        """The damping of the first iteration."""
        return ops.zeros_like(like)

    def _algebra(self, cell):
        """The algebra of the iteration's Jacobians, and what to take of those of the cell."""
        if cell.structure == "dense" and self.jacobian == "diagonal":
            return Diagonal, diagonal_of
        return BY_STRUCTURE[cell.structure], lambda matrix: matrix

    def _guess(self, cell, initial_state, inputs):
        length = ops.shape(keras.tree.flatten(inputs)[0])[1]
        batch, *rest = ops.shape(initial_state)
        states = ops.broadcast_to(initial_state[:, None], (batch, length, *rest))
        if self.initial_guess == "step":
            return cell.step(states, inputs)
        return states if self.initial_guess == "hold" else ops.zeros_like(states)
