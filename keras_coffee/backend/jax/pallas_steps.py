"""The steps of the recurrences that have a Pallas kernel, on tiles; `pallas_driver` runs them.

The driver differentiates a step as it is written here, so each one is written such that its
derivative is right too: where a branch is not taken, its arguments are kept in its range.
"""

import jax
import jax.numpy as jnp
from jax import lax

from keras_coffee.backend.jax.pallas_driver import Recurrence


def _coffee_advance(weights, state, inputs_t, feedback):
    """The state x becomes x + Δ (λ x + b u).

    Its Δ is σ(w x + v + β) for sigmoid feedback, w x + v + β for linear, σ(w u + v + β) for none.
    """
    transition, gate, _, input_matrix, _, gate_bias = weights
    source, gate_inputs, mask = inputs_t
    drive = source if input_matrix is None else input_matrix * source
    delta = gate * (source if feedback is None else state)
    for summand in (gate_inputs, gate_bias):
        if summand is not None:
            delta = delta + summand
    if feedback != "linear":
        delta = jax.nn.sigmoid(delta)
    after = state + delta * (transition * state + drive)
    # Selected, not multiplied: zero times an infinite state is NaN.
    return after if mask is None else jnp.where(mask != 0, after, state)


def _coffee_read(weights, state, inputs_t):
    _, _, readout, _, output_gate, _ = weights
    outputs = jnp.sum(readout * state, 0, keepdims=True)
    if output_gate is not None:
        outputs *= jax.nn.sigmoid(jnp.sum(output_gate * state, 0, keepdims=True))
    return outputs


def _selective_advance(weights, state, inputs_t, discretization, delta_softplus):
    """The state x becomes e^(λΔ) x + (e^(λΔ) - 1)/λ B u, or (1 + λΔ) x + Δ B u for Euler.

    Mamba has the decay of the first and the gain of the second.
    """
    (transition, fixed, _, _), (source, delta, varying, _) = weights, inputs_t
    delta = _softplus(delta) if delta_softplus else delta
    decay, gain = _DISCRETIZE[discretization](transition, delta)
    return decay * state + gain * (fixed if varying is None else varying) * source


def _selective_read(weights, state, inputs_t):
    (_, _, fixed, skip), (source, _, _, varying) = weights, inputs_t
    terms = (fixed if varying is None else varying) * state
    if skip is not None:  # Once: the first state takes it along.
        is_first = lax.broadcasted_iota(jnp.int32, terms.shape, 0) == 0
        terms += jnp.where(is_first, skip * source, 0)
    return jnp.sum(terms, 0, keepdims=True)


def _softplus(x):
    # Selections, whose derivatives add up to the sigmoid at 0 too, where max and |x| have none.
    is_positive = x > 0
    return jnp.where(is_positive, x, 0) + jnp.log1p(jnp.exp(jnp.where(is_positive, -x, x)))


def _forward_euler(transition, delta):
    return 1 + transition * delta, delta


def _mamba(transition, delta):
    return jnp.exp(transition * delta), delta


def _zero_order_hold(transition, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, right through z = 0 with their derivatives."""
    exponent = transition * delta
    small = jnp.abs(exponent) < 0.1
    # Each branch gets numbers in its range: an overflow in the unused one would make the gradient
    # NaN.
    near, far = jnp.where(small, exponent, 0.0), jnp.where(small, 1.0, exponent)
    series = jnp.ones_like(near)
    # The omitted terms and their derivatives are below the rounding of the dtype.
    for k in range(11 if exponent.dtype == jnp.float64 else 6, 1, -1):
        series = 1 + series * (near * (1 / k))
    gain = delta * jnp.where(small, series, jnp.expm1(far) / far)
    return jnp.exp(exponent), gain


_DISCRETIZE = {"zoh": _zero_order_hold, "euler": _forward_euler, "mamba": _mamba}

COFFEE = Recurrence(("feature", "feature", "mask", "mask"), _coffee_advance, _coffee_read)
SELECTIVE = Recurrence(
    ("feature", "feature", "state", "state", "mask"), _selective_advance, _selective_read
)
