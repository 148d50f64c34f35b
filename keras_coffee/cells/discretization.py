"""From a continuous-time diagonal system dx/dt = λ x + b u and a step Δ to one discrete step.

Each function maps λ `(D, n)` and Δ `(..., D, 1)` to decay and gain `(..., D, n)` of
x(k) = decay x(k-1) + gain b u(k).
"""

from keras import ops

from keras_coffee._typing import Tensor


def zero_order_hold(transition: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Exact for inputs constant over the step: decay e^(λΔ), gain (e^(λΔ) - 1) / λ.

    The gain is computed as Δ (e^z - 1)/z with z = λΔ, accurate with its derivatives through z = 0,
    where it is Δ.

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations (disc_ZOH)
        and (S6_model).
    """
    exponent = transition * delta
    return ops.exp(exponent), delta * _expm1_ratio(exponent)


def forward_euler(transition: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """First order in Δ: decay 1 + λΔ, gain Δ.

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", step 1, equation
        (linearized_model).
    """
    return 1 + transition * delta, delta


def _expm1_ratio(x: Tensor) -> Tensor:
    small, one = ops.abs(x) < 0.1, ops.ones_like(x)
    # Each branch gets numbers that suit it: what overflows in an unused one makes its gradient NaN.
    near, far = ops.where(small, x, ops.zeros_like(x)), ops.where(small, one, x)
    series = one
    for k in range(9, 1, -1):  # x^9 / 10! is below float64's rounding for |x| < 0.1
        series = 1 + series * near / k
    return ops.where(small, series, ops.expm1(far) / far)
