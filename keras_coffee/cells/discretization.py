"""From a continuous-time diagonal system dx/dt = λ x + b u and a step Δ to one discrete step.

Each function maps λ `(D, n)` and Δ `(..., D, 1)` to decay and gain `(..., D, n)` of
x(k) = decay x(k-1) + gain b u(k).
"""

from keras import ops

from keras_coffee._typing import Tensor


def zero_order_hold(transition: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Exact for inputs constant over the step: decay e^(λΔ), gain (e^(λΔ) - 1) / λ.

    Accurate with its derivatives through λΔ = 0, where the gain is Δ.

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations (disc_ZOH)
        and (S6_model).
    """
    exponent = transition * delta
    decay, one = ops.exp(exponent), ops.ones_like(exponent)
    small = ops.abs(exponent) < 0.5
    # Each branch gets numbers in its range: an overflow in the unused one would make the gradient
    # NaN.
    near, far = ops.where(small, exponent, ops.zeros_like(one)), ops.where(small, one, exponent)
    series = one
    # The omitted terms and their derivatives are below the rounding of the dtype.
    for k in range(17 if "float64" in str(exponent.dtype) else 10, 1, -1):
        series = 1 + series * (near * (1 / k))
    # Far from 0 the difference loses no relevant digit, and ONNX has no expm1.
    return decay, delta * ops.where(small, series, (decay - 1) / far)


def mamba(transition: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """The decay of zero-order hold with the gain of Euler's method: e^(λΔ) and Δ.

    Reference:
        A. Gu and T. Dao, "Mamba", 2023: what its code computes, in `selective_scan_ref`.
    """
    return ops.exp(transition * delta), delta


def forward_euler(transition: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """First order in Δ: decay 1 + λΔ, gain Δ.

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", step 1, equation
        (linearized_model).
    """
    return 1 + transition * delta, delta
