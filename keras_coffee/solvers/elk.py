"""The Levenberg-Marquardt method on a whole trajectory."""

import dataclasses
import math
from typing import Any

import keras
from keras import ops

from keras_coffee._checks import as_float
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.solvers.algebra import Algebra
from keras_coffee.solvers.iterative import Iterative
from keras_coffee.solvers.kalman import smoothed_means
from keras_coffee.solvers.solution import Solution

# The damping is divided by this after a correction that reduces the residual, else multiplied.
_FACTOR = 10.0
# Above it a correction no longer changes a state, and below it no longer differs from Newton's.
_LARGEST, _SMALLEST = 1e8, 1e-8
# A correction that lets Σ |r(k)|² grow more than this is rejected. On COFFEE the sum grows and
# shrinks again: accepting only decreases took 50 to 100 iterations for 32 steps, this takes 10 to
# 40.
_GROWTH = 1e4


@keras.saving.register_keras_serializable(package="keras_coffee")
@dataclasses.dataclass(frozen=True)
class Elk(Iterative):
    """ELK and quasi-ELK, in windows: Newton's method with a trust region.

    Each iteration minimizes

        Σ |δ(k) - J(k) δ(k-1) + r(k)|² + μ Σ |δ(k)|²,   x ← x + δ

    over all steps at once, which is what a Kalman smoother computes, here a parallel one. The
    damping μ, one for each state that depends on no other, is divided by ten when Σ |r(k)|² gets
    smaller and multiplied by ten when it does not (Levenberg and Marquardt), so that the last
    iterations are Newton's; a correction that increases the sum too much is rejected. On COFFEE,
    `Newton` in windows needs fewer and cheaper iterations: see docs/solvers.md.

    Args:
        jacobian: `"full"`, the default, is ELK, with matrices in the smoother; `"diagonal"` is
            quasi-ELK, with scalars. The same for cells whose Jacobian is diagonal.
        window, tolerance, max_iterations, initial_guess: As for `Newton`.
        damping: μ of the first iteration, positive. Defaults to 0.01.

    Raises:
        ValueError: if an argument is out of its range.
        TypeError: when it runs, if the state is complex.

    Example:
        >>> from keras_coffee.solvers import Elk
        >>> layer = CoffeeLayer(n=8, solver=Elk(window=None))

    Reference:
        X. Gonzalez et al., "Towards Scalable and Stable Parallelization of Nonlinear RNNs", 2024;
        S. Särkkä and Á. García-Fernández, "Temporal Parallelization of Bayesian Smoothers", 2021;
        docs/theory.md.
    """

    damping: float = 1e-2

    def __post_init__(self):
        super().__post_init__()
        if not 0 < as_float(self.damping) < math.inf:
            raise ValueError(f"`damping` must be a positive number, received {self.damping!r}.")

    def find(self, cell: Cell, initial_state: Tensor, inputs: Any) -> Solution:
        # Transposes without conjugates, and sums of squares that are not real, minimize nothing.
        dtype = keras.backend.standardize_dtype(initial_state.dtype)
        if "complex" in dtype:
            raise TypeError(
                f"Elk needs a real state, received {dtype}. Choose the solver 'newton' or "
                "'sequential'."
            )
        return super().find(cell, initial_state, inputs)

    def initial_damping(self, like: Tensor) -> Tensor:
        return ops.full_like(like, self.damping)

    def correction(
        self, algebra: Algebra, jacobian: Tensor, residuals: Tensor, damping: Tensor
    ) -> Tensor:
        return smoothed_means(algebra, jacobian, -residuals, damping)

    def judge(self, before: Tensor, after: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        eased = ops.maximum(damping / _FACTOR, _SMALLEST)
        raised = ops.minimum(damping * _FACTOR, _LARGEST)
        # Comparisons with NaN are false, those with infinity right.
        return after < _GROWTH * before, ops.where(after < before, eased, raised)
