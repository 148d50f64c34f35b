"""The means of a Kalman smoother, in parallel over time.

docs/theory.md says why a smoother solves a damped Newton step. Its system is

    δ(k) = J(k) δ(k-1) + b(k) + v(k),  v ~ N(0, I)
    0 = δ(k) + w(k),                   w ~ N(0, I/μ)

Filter: a step is an element (A, b, C, η, Ĵ). Given δ(k-1), the state δ(k) has mean A δ(k-1) + b and
covariance C once its observation is known, whose likelihood in δ(k-1) has information matrix Ĵ and
vector η. The predicted covariance, given δ(k-1), is I and the innovation's I + I/μ, so the gain is
the number g = μ/(1 + μ), and

    A = (1-g) J,  (1-g) b instead of b,  C = (1-g) I,  η = -g Jᵀ b,  Ĵ = g Jᵀ J.

Elements 1 (earlier) and 2 (later) combine, with D = (I + C₁ Ĵ₂)⁻¹, to

    A = A₂ D A₁                          η = A₁ᵀ Dᵀ (η₂ - Ĵ₂ b₁) + η₁
    b = A₂ D (b₁ + C₁ η₂) + b₂           Ĵ = A₁ᵀ Dᵀ Ĵ₂ A₁ + Ĵ₁
    C = A₂ D C₁ A₂ᵀ + C₂

which is associative. Since δ(0) = 0 is known, b and C of the prefixes are the filter's means m(k)
and covariances P(k).

Smoother: backwards from δ(T) = m(T), the mean is an affine recurrence,

    δ(k) = m(k) + E (δ(k+1) - J(k+1) m(k) - b(k+1))
    E = P(k) J(k+1)ᵀ (J(k+1) P(k) J(k+1)ᵀ + I)⁻¹
"""

from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.solvers.affine import affine_scan
from keras_coffee.solvers.algebra import Algebra


def smoothed_means(algebra: Algebra, jacobian: Tensor, drive: Tensor, damping: Tensor) -> Tensor:
    """The δ that minimizes Σ |δ(k) - J(k) δ(k-1) - b(k)|² + μ Σ |δ(k)|², with δ(0) = 0.

    These are the smoothed means of δ(k) = J(k) δ(k-1) + b(k) + noise of variance 1, of which each
    step was seen to be 0 with noise of variance 1/μ.

    Args:
        algebra: What kind of matrices the Jacobians are.
        jacobian: J, `(B, T, ...)`.
        drive: b, `(B, T, ...)`.
        damping: μ, `(B, 1, ...)`, one for each vector.

    Reference:
        S. Särkkä and Á. García-Fernández, "Temporal Parallelization of Bayesian Smoothers", 2021.
    """
    means, covariances = _filtered(algebra, jacobian, drive, damping)
    # Backwards each smoothed mean is affine in the one after it: δ(k) = E δ(k+1) + g.
    following = jacobian[:, 1:]
    spread = algebra.compose(following, covariances[:, :-1])
    predicted = algebra.plus_identity(algebra.compose(spread, algebra.transpose(following)))
    gain = algebra.compose(algebra.transpose(spread), algebra.inverse(predicted))
    expected = algebra.apply(following, means[:, :-1]) + drive[:, 1:]
    rest = means[:, :-1] - algebra.apply(gain, expected)
    last = ops.zeros_like(jacobian[:, :1]), means[:, -1:]
    gain, rest = (ops.concatenate(pair, axis=1) for pair in zip((gain, rest), last, strict=True))
    return affine_scan(algebra, gain, rest, reverse=True)


def _filtered(algebra, jacobian, drive, damping):
    """Means and covariances of each step, given what was seen until then."""
    gain = damping / (1 + damping)
    matrix_gain = algebra.of_matrices(gain)
    transposed = algebra.transpose(jacobian)
    unit = algebra.plus_identity(ops.zeros_like(jacobian))
    elements = [
        (1 - matrix_gain) * jacobian,
        (1 - gain) * drive,
        (1 - matrix_gain) * unit,
        -gain * algebra.apply(transposed, drive),
        matrix_gain * algebra.compose(transposed, jacobian),
    ]
    _, means, covariances, _, _ = backend.associative_scan(_combine(algebra), elements)
    return means, covariances


def _combine(algebra):
    apply, compose, transpose = algebra.apply, algebra.compose, algebra.transpose

    def combine(earlier, later):
        a_1, b_1, c_1, eta_1, j_1 = earlier
        a_2, b_2, c_2, eta_2, j_2 = later
        between = algebra.inverse(algebra.plus_identity(compose(c_1, j_2)))
        ahead = compose(a_2, between)
        back = compose(transpose(a_1), transpose(between))
        return [
            compose(ahead, a_1),
            apply(ahead, b_1 + apply(c_1, eta_2)) + b_2,
            compose(compose(ahead, c_1), transpose(a_2)) + c_2,
            apply(back, eta_2 - apply(j_2, b_1)) + eta_1,
            compose(compose(back, j_2), a_1) + j_1,
        ]

    return combine
