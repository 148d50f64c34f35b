"""COFFEE for the drivers in Triton.

With input u, gate input v, mask m (1 without one), and weights λ, w, C, b (1 without one), w_γ, β,

    h' = h + m Δ c,    c = λ h + b u,    Δ = σ(a) or a,    a = w h or w u, + v + β,    y = γ Σ C h',

where γ = σ(Σ w_γ h'), or 1. With Δ' the derivative of Δ by a, which is Δ - Δ² for the sigmoid and 1
for the linear gate, and l the adjoint of h', to which the output has been added,

    ∂h'/∂h = 1 + m (λ Δ + w Δ' c)      (without the second term where the gate sees u),

    by λ: l m Δ h,    by b: l m Δ u,    by β: l m Δ' c,    by w: l m Δ' c h (or u),
    by u: Σ (l m Δ b [+ l m Δ' c w]),    by v: Σ l m Δ' c.

The output adds g γ C to l, and g (Σ C h') (γ - γ²) w_γ. Nothing is divided by Δ or by w.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_math import sigmoid, sigmoid_of_product, sum_of_states
from keras_coffee.backend.torch.triton_recurrence import Functions, Recurrence


class _Settings(NamedTuple):
    feedback: str | None  # "sigmoid" or "linear"; None: the gate sees the input


@triton.jit
def _step(state, x, shared, weights, is_step, settings):
    transition, gate = weights[0], weights[1]
    delta, change, slope = _gate_and_change(state, x, weights, settings)
    derivative = 1 + transition * delta
    if settings.feedback is not None:
        derivative += gate * slope
    new = state + delta * change
    if x[2] is not None:
        # Selected, not multiplied: zero times an infinite state is NaN.
        is_step = is_step & (x[2] != 0)
    return tl.where(is_step, new, state), tl.where(is_step, derivative, 1.0)


@triton.jit
def _gate_and_change(state, x, weights, settings):
    """Δ, the change c = λ h + b u, and the derivative of Δ c by the argument of Δ; both masked."""
    transition, gate, _, input_matrix, _, gate_bias = weights
    source, gate_inputs, mask, _ = x
    if settings.feedback == "sigmoid":
        delta = sigmoid_of_product(gate, state, gate_inputs, gate_bias)
    elif settings.feedback == "linear":
        delta = gate * state
        if gate_inputs is not None:
            delta += gate_inputs
        if gate_bias is not None:
            delta += gate_bias
    else:
        delta = sigmoid_of_product(gate, source, gate_inputs, gate_bias)
    drive = source
    if input_matrix is not None:
        drive = input_matrix * source
    change = transition * state + drive
    slope = change
    if settings.feedback != "linear":
        slope = (delta - delta * delta) * change
    if mask is not None:
        delta *= mask
        slope *= mask
    return delta, change, slope


@triton.jit
def _read(state, x, shared, weights, is_state, settings):
    _, _, readout, _, output_gate, _ = weights
    outputs = sum_of_states(readout * state, is_state)
    if output_gate is not None:
        outputs *= sigmoid(sum_of_states(output_gate * state, is_state))
    return outputs


@triton.jit
def _step_back(adjoint, sums, state, x, shared, grad, weights, is_state, is_step, settings):
    transition, gate, readout, input_matrix, output_gate, gate_bias = weights
    by_transition, by_gate, by_readout, by_input, by_output, by_bias = sums
    delta, change, slope = _gate_and_change(state, x, weights, settings)
    source, by_after = x[0], adjoint

    after = state + delta * change
    if output_gate is not None:
        total = sum_of_states(readout * after, is_state)
        opening = sigmoid(sum_of_states(output_gate * after, is_state))
        grad_opening = grad * total * (opening - opening * opening)
        grad *= opening
        by_output += grad_opening * after
        by_after += grad_opening * output_gate
    by_readout += grad * after
    by_after += grad * readout

    grad_change, grad_argument = by_after * delta, by_after * slope
    by_transition += grad_change * state
    grad_drive = grad_change
    if input_matrix is not None:
        by_input += grad_change * source
        grad_drive = grad_change * input_matrix
    by_before = by_after + transition * grad_change
    if settings.feedback is None:
        by_gate += grad_argument * source
        grad_drive += grad_argument * gate
    else:
        by_gate += grad_argument * state
        by_before += grad_argument * gate
    if gate_bias is not None:
        by_bias += grad_argument
    sums = (by_transition, by_gate, by_readout, by_input, by_output, by_bias)
    by_source = sum_of_states(grad_drive, is_state)
    # Where nothing stores it the compiler leaves it out.
    by_gate_inputs = sum_of_states(grad_argument, is_state)
    return tl.where(is_step, by_before, adjoint), sums, (by_source, by_gate_inputs, None, None), ()


RECURRENCE = Recurrence(
    Functions(_step, _read, _step_back, tl.constexpr("nonlinear")),
    ("features", "features", "", ""),
    _Settings,
    ahead=(24, 28),
)
