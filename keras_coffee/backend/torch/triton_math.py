"""What the Triton kernels share: device functions, and how the work is divided."""

import contextlib

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import JITFunction

_LOG2_E = tl.constexpr(1.4426950408889634)

# Hopper's 132 multiprocessors have 16,896 lanes; two warps for each scheduler hide latencies.
_LANES = 2**15

# With more states a lane of a backward kernel would not get by with 255 registers.
_STATES_IN_LANE = 8


def tiling(pairs, n, narrowest=1, widest=32):
    """How to divide the work of n states for each pair of sequence and feature.

    A program's tile is [N, P], P pairs of N states, the power of two from n on. Triton deals it out
    to the lanes along P first: with P = 32 a lane has all states of a pair, and sums over them stay
    in its registers. Where pairs are too few to fill the card, P is smaller and the states of a
    pair lie in several lanes: a step then takes fewer instructions, which is what bounds it.

    Returns:
        N, P, how many states of a pair a lane has, and the number of warps.
    """
    states = triton.next_power_of_2(n)
    tile = max(narrowest, 32 // states)
    while tile < widest and tile * states < 32 * _STATES_IN_LANE and 16 * pairs >= _LANES * tile:
        tile *= 2
    in_lane = min(max(1, tile * states // 32), _STATES_IN_LANE)
    return states, tile, in_lane, max(1, tile * states // (32 * in_lane))


@triton.jit
def rows(N: tl.constexpr):
    """The numbers of a tile's rows, a column.

    Triton would deal out states that it sees to be neighbours in memory to neighbouring lanes.
    """
    return tl.max_contiguous(tl.arange(0, N)[:, None], (1, 1))


def device_of(tensor):
    """The context in which kernels on `tensor` are launched."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


@triton.jit
def sigmoid(x):
    return _inverse_of_one_plus_exp2(x * -_LOG2_E)


@triton.jit
def sigmoid_of_product(weight, x):
    # A weight is scaled outside of the loop over time, x could only be inside.
    return _inverse_of_one_plus_exp2((weight * -_LOG2_E) * x)


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
def zero_order_hold(transition, inverse, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, and the derivative of the gain by λ.

    `inverse` is 1 / λ, or 0 where λ is. By Δ the derivatives are λ e^z and e^z.
    """
    exponent = transition * delta
    decay = tl.exp2((transition * _LOG2_E) * delta)
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
    """Sum over the first axis, leaving out what pads n to a power of two."""
    return tl.sum(tl.where(is_state, x, 0.0), 0)


@triton.jit
def load_steps(
    pointers,
    first,
    stop,
    stride,
    is_in,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    IS_WANTED: tl.constexpr = True,
):
    """A tuple of the loads at `first`, `first` + STEP, ...; those from `stop` on are zero."""
    group = ()
    for i in tl.static_range(GROUP):
        if IS_WANTED:
            t = first + STEP * i
            is_step = is_in & ((t < stop) if STEP > 0 else (t > stop))
            group = group + (tl.load(pointers + t * stride, mask=is_step, other=0.0),)
        else:
            group = group + (tl.full((), 0, tl.float32),)
    return group
