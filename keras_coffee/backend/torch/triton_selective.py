"""The selective scan for the drivers in Triton.

With input u, step Δ, decay rate λ, and matrices B and C, each over time or fixed,

    h' = a h + q B u,    y = Σ C h',    a = e^(λΔ), q = (a - 1) / λ    or    a = 1 + λΔ, q = Δ

by zero-order hold or Euler's method. Let l be the adjoint of h', to which g C has been added from
the output. Then that of h is a l, and

    by C: g h',    by u: Σ l q B,    by B: l q u,
    by Δ: Σ (l h λ + l B u) a        since ∂q/∂Δ = a by zero-order hold (Euler: 1 for both a's),
    by λ: l h Δ a + l B u ∂q/∂λ      (Euler: l h Δ).

The gradients by matrices over time are left for the driver to sum over the features that share
them. Where a step is outside of time Δ and g are zero, so that a = 1 and q = 0 hold state, adjoint
and sums without a selection.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_math import inverse_or_zero, sum_of_states, zero_order_hold
from keras_coffee.backend.torch.triton_recurrence import Functions, Recurrence


class _Settings(NamedTuple):
    discretization: str  # "zoh" or "euler"


@triton.jit
def _step(state, x, shared, weights, is_step, settings):
    decay, gain, _, _ = _discretize(x[1], weights[0], settings)
    return decay * state + gain * (_varying_or_fixed(shared[0], weights[1]) * x[0]), decay


@triton.jit
def _read(state, shared, weights, is_state, settings):
    return sum_of_states(_varying_or_fixed(shared[1], weights[2]) * state, is_state)


@triton.jit
def _varying_or_fixed(varying, fixed):
    if varying is None:
        return fixed
    else:
        return varying


@triton.jit
def _discretize(delta, rate, settings):
    """Decay and gain, the derivative of the gain by λ, and that of the decay by λΔ."""
    if settings.discretization == "zoh":
        # The inverse is taken outside of the loop over time.
        decay, gain, slope = zero_order_hold(rate, inverse_or_zero(rate), delta)
        return decay, gain, slope, decay
    else:
        decay = 1 + rate * delta
        return decay, delta, tl.zeros_like(delta), tl.full(decay.shape, 1.0, decay.dtype)


@triton.jit
def _step_back(adjoint, sums, state, x, shared, grad, weights, is_state, is_step, settings):
    source, delta = x
    rate, fixed_input, fixed_output = weights
    by_rate, by_fixed_input, by_fixed_output = sums
    decay, gain, slope, decay_slope = _discretize(delta, rate, settings)
    write = _varying_or_fixed(shared[0], fixed_input)
    read = _varying_or_fixed(shared[1], fixed_output)

    drive = write * source
    by_read = grad * (decay * state + gain * drive)
    adjoint += grad * read
    by_drive, by_decay, by_gain = adjoint * gain, adjoint * state, adjoint * drive
    by_write = by_drive * source
    by_rate += by_decay * (delta * decay_slope) + by_gain * slope
    by_delta = sum_of_states((by_decay * rate + by_gain) * decay_slope, is_state)
    by_source = sum_of_states(by_drive * write, is_state)
    if fixed_input is not None:
        by_fixed_input += by_write
    if fixed_output is not None:
        by_fixed_output += by_read
    sums = (by_rate, by_fixed_input, by_fixed_output)
    return adjoint * decay, sums, (by_source, by_delta), (by_write, by_read)


RECURRENCE = Recurrence(
    Functions(_step, _read, _step_back, tl.constexpr("linear")),
    ("features", "features", "states", "states"),
    _Settings,
    ahead=(24, 10),
)
