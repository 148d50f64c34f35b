"""Arithmetic of the Triton kernels. States are the first axis of a tile, whatever its rank."""

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import JITFunction

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def sigmoid(x):
    return _inverse_of_one_plus_exp2(x * -_LOG2_E)


@triton.jit
def sigmoid_of_product(weight, x, first, second):
    """σ(weight x + first + second), where None is not added."""
    # A weight is scaled outside of the loop over time, x could only be inside.
    exponent = (weight * -_LOG2_E) * x
    if first is not None:
        exponent += first * -_LOG2_E
    if second is not None:
        exponent += second * -_LOG2_E
    return _inverse_of_one_plus_exp2(exponent)


@triton.jit
def _inverse_of_one_plus_exp2(x):
    # Far out 2^x is infinite or zero, and both are right.
    denominator = 1 + tl.exp2(x)
    if _IS_COMPILED and x.dtype == tl.float32:
        # One instruction where `/` takes care of large denominators, whose inverse is zero here.
        return libdevice.fast_dividef(1.0, denominator)
    return 1 / denominator


# The interpreter has no functions of libdevice.
_IS_COMPILED = tl.constexpr(isinstance(_inverse_of_one_plus_exp2, JITFunction))


@triton.jit
def exponential(weight, x):
    """e^(weight x)."""
    return tl.exp2((weight * _LOG2_E) * x)


@triton.jit
def softplus(x):
    """log(1 + e^x) and its derivative, the sigmoid; both to their last digits, however small."""
    # e^-|x| is 2^-k e^-f: the product of x and log2(e) alone would lose digits where |x| is large.
    # From 1000 on it is zero, and a minimum would lose a NaN.
    far = tl.abs(x)
    far = tl.where(far > 1000, 1000.0, far)
    k = tl.floor(far * _LOG2_E + 0.5)
    # ln 2 in two parts, of which the first has so few digits that the product is exact.
    f = (far - k * 0.693359375) + k * 2.121944400546905827679e-4
    e = tl.exp2(-k) * tl.exp2(-f * _LOG2_E)
    # log(1 + e) = 2 artanh(s) with s = e / (2 + e) ≤ 1/3; near zero log(1 + e) would cancel.
    s = e / (2 + e)
    square, series = s * s, tl.zeros_like(x)
    for k in tl.static_range(17 if x.dtype == tl.float64 else 8, 0, -1):
        series = series * square + 1 / (2 * k - 1)
    inverse, is_positive = 1 / (1 + e), x > 0
    slope = tl.where(is_positive, inverse, e * inverse)
    return tl.where(is_positive, x, 0.0) + 2 * s * series, slope


@triton.jit
def zero_order_hold(transition, inverse, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, and the derivative of the gain by λ.

    `inverse` is 1 / λ, or 0 where λ is. By Δ the derivatives are λ e^z and e^z.
    """
    exponent = transition * delta
    decay = exponential(transition, delta)
    # What is left out of the series, and of its derivative, is below the rounding.
    slope = tl.zeros_like(exponent)
    if exponent.dtype == tl.float64:
        series = slope + 1 / 1307674368000
        series, slope = _horner(series, slope, exponent, 1 / 87178291200)
        series, slope = _horner(series, slope, exponent, 1 / 6227020800)
        series, slope = _horner(series, slope, exponent, 1 / 479001600)
        series, slope = _horner(series, slope, exponent, 1 / 39916800)
        series, slope = _horner(series, slope, exponent, 1 / 3628800)
        series, slope = _horner(series, slope, exponent, 1 / 362880)
    else:
        series = slope + 1 / 362880
    series, slope = _horner(series, slope, exponent, 1 / 40320)
    series, slope = _horner(series, slope, exponent, 1 / 5040)
    series, slope = _horner(series, slope, exponent, 1 / 720)
    series, slope = _horner(series, slope, exponent, 1 / 120)
    series, slope = _horner(series, slope, exponent, 1 / 24)
    series, slope = _horner(series, slope, exponent, 1 / 6)
    series, slope = _horner(series, slope, exponent, 1 / 2)
    series, slope = _horner(series, slope, exponent, 1)
    is_near = tl.abs(exponent) < 0.5
    gain = tl.where(is_near, delta * series, (decay - 1) * inverse)
    slope = tl.where(is_near, delta * delta * slope, (delta * decay - gain) * inverse)
    return decay, gain, slope


@triton.jit
def _horner(value, slope, x, coefficient):
    return value * x + coefficient, slope * x + value


@triton.jit
def inverse_or_zero(x):
    return tl.where(x == 0, 0.0, 1 / tl.where(x == 0, 1.0, x))


@triton.jit
def sum_of_states(x, is_state):
    """Sum over the states, without what pads n to a power of two. The axis stays, with length 1."""
    return tl.sum(tl.where(is_state, x, 0.0), 0, keep_dims=True)
