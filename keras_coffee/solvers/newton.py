"""Newton's method on a whole trajectory."""

import dataclasses

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.solvers.affine import affine_scan
from keras_coffee.solvers.algebra import Algebra
from keras_coffee.solvers.iterative import Iterative


@keras.saving.register_keras_serializable(package="keras_coffee")
@dataclasses.dataclass(frozen=True)
class Newton(Iterative):
    """DEER and quasi-DEER, in windows: Newton's method on all steps of a window at once.

        r(k) = x(k) - f(x(k-1), u(k))
        δ(k) = J(k) δ(k-1) - r(k),   x ← x + δ,   J(k) = ∂f/∂x at x(k-1)

    Each iteration is one parallel prefix scan. After j iterations the first j steps of a window
    are exact, so a window of W steps needs W iterations at most, and far fewer if the dynamics
    forget. If they do not, iterates of many steps may overflow: hence the windows. Iteration stops
    when the residual of a sequence is within the tolerance. If that takes too many iterations, or a
    number is not finite, the window runs step by step. The result is right in any case.

    Args:
        jacobian: `"full"`, the default, is DEER; `"diagonal"` is quasi-DEER, which takes the
            diagonal of a dense Jacobian: more iterations, each with H instead of H² numbers per
            step. The same for cells whose Jacobian is diagonal, as COFFEE's. Gradients use the full
            one either way.
        window: Steps that are solved at a time. None: all of them, as in the papers. Defaults to
            32.
        tolerance: Largest residual |r(k)| / max(1, |x(k)|) of a solution. None, the default: eight
            units of rounding, 9.5e-7 in float32 and complex64, 1.8e-15 in float64 and complex128.
            With 0 it iterates until the equations hold exactly.
        max_iterations: Budget of each window. Defaults to 100.
        initial_guess: `"hold"`, the default, starts from the state before the window, at every
            step; `"step"` from one step f(x, u(k)) after it; `"zeros"` from zeros, the safest
            choice for a whole trajectory.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> from keras_coffee.solvers import Newton
        >>> layer = CoffeeLayer(n=8, solver=Newton(window=64))

    Reference:
        Y. H. Lim et al., "Parallelizing non-linear sequential models over the sequence length",
        2024 (DEER); X. Gonzalez et al., "Towards Scalable and Stable Parallelization of Nonlinear
        RNNs", 2024 (quasi-DEER); "Context-Selective State Space Models: Feedback is All You Need",
        section "Parallelization" and the appendix of the same name.
    """

    def correction(
        self, algebra: Algebra, jacobian: Tensor, residuals: Tensor, damping: Tensor
    ) -> Tensor:
        return affine_scan(algebra, jacobian, -residuals)

    def judge(self, before: Tensor, after: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        # Always accepted: the first steps become exact one after the other in any case.
        return ops.ones_like(after, dtype="bool"), damping
