"""The selective scan for the drivers in Triton.

With input u, step Δ, decay rate λ, matrices B and C, each over time or fixed, and skip s,

    h' = a h + q B u,    y = Σ C h' + s u,

    a = e^(λΔ), q = (a - 1) / λ    or    a = 1 + λΔ, q = Δ    or    a = e^(λΔ), q = Δ

by zero-order hold, Euler's method or Mamba's. Let l be the adjoint of h', to which g C has been
added from the output. With a' the derivative of a by λΔ, and q' that of q by Δ (both a by
zero-order hold, 1 by Euler's method, a and 1 by Mamba's), that of h is a l, and

    by C: g h',    by s: g u,    by u: Σ l q B + g s,    by B: l q u,
    by Δ: Σ (l h λ a' + l B u q'),    by λ: l h Δ a' + l B u ∂q/∂λ    (0 but by zero-order hold).

The gradients by matrices over time are left for the driver to sum over the features that share
them. Where a step is outside of time Δ and g are zero, so that a = 1 and q = 0 hold state, adjoint
and sums without a selection.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_math import (
    exponential,
    inverse_or_zero,
    softplus,
    sum_of_states,
    zero_order_hold,
)
from keras_coffee.backend.torch.triton_recurrence import Functions, Recurrence


class _Settings(NamedTuple):
    discretization: str  # "zoh", "euler" or "mamba"
    delta_softplus: bool


@triton.jit
def _step(state, x, shared, weights, is_step, settings):
    delta, _ = _step_size(x[1], is_step, settings)
    decay, gain, _, _, _ = _discretize(delta, weights[0], settings)
    return decay * state + gain * (_varying_or_fixed(shared[0], weights[1]) * x[0]), decay


@triton.jit
def _read(state, x, shared, weights, is_state, settings):
    outputs = sum_of_states(_varying_or_fixed(shared[1], weights[2]) * state, is_state)
    if weights[3] is not None:
        outputs += weights[3] * x[0]
    return outputs


@triton.jit
def _varying_or_fixed(varying, fixed):
    if varying is None:
        return fixed
    else:
        return varying


@triton.jit
def _step_size(given, is_step, settings):
    """Δ and its derivative by what is given, both zero outside of time."""
    if settings.delta_softplus:
        delta, slope = softplus(given)
        return tl.where(is_step, delta, 0.0), tl.where(is_step, slope, 0.0)
    else:
        return given, 1.0


@triton.jit
def _discretize(delta, rate, settings):
    """Decay and gain; the derivatives of the gain by λ, of the decay by λΔ, of the gain by Δ."""
    one = tl.full((rate * delta).shape, 1.0, delta.dtype)
    if settings.discretization == "zoh":
        # The inverse is taken outside of the loop over time.
        decay, gain, slope = zero_order_hold(rate, inverse_or_zero(rate), delta)
        return decay, gain, slope, decay, decay
    elif settings.discretization == "mamba":
        decay = exponential(rate, delta)
        return decay, delta, tl.zeros_like(delta), decay, one
    else:
        return 1 + rate * delta, delta, tl.zeros_like(delta), one, one


@triton.jit
def _step_back(adjoint, sums, state, x, shared, grad, weights, is_state, is_step, settings):
    rate, fixed_input, fixed_output, skip = weights
    by_rate, by_fixed_input, by_fixed_output, by_skip = sums
    source = x[0]
    delta, delta_slope = _step_size(x[1], is_step, settings)
    decay, gain, slope, decay_slope, gain_slope = _discretize(delta, rate, settings)
    write = _varying_or_fixed(shared[0], fixed_input)
    read = _varying_or_fixed(shared[1], fixed_output)

    drive = write * source
    by_read = grad * (decay * state + gain * drive)
    adjoint += grad * read
    by_drive, by_decay, by_gain = adjoint * gain, adjoint * state, adjoint * drive
    by_write = by_drive * source
    by_decay *= decay_slope
    by_rate += by_decay * delta + by_gain * slope
    by_delta = sum_of_states(by_decay * rate + by_gain * gain_slope, is_state) * delta_slope
    by_source = sum_of_states(by_drive * write, is_state)
    if fixed_input is not None:
        by_fixed_input += by_write
    if fixed_output is not None:
        by_fixed_output += by_read
    if skip is not None:
        by_skip += grad * source
        by_source += grad * skip
    sums = (by_rate, by_fixed_input, by_fixed_output, by_skip)
    return adjoint * decay, sums, (by_source, by_delta, None), (by_write, by_read)


RECURRENCE = Recurrence(
    Functions(_step, _read, _step_back, tl.constexpr("linear")),
    ("features", "features", "states", "states", ""),
    _Settings,
    ahead=(24, 10),
)
