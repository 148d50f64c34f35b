"""Scans for JAX: one `lax.scan` forward, one reversed `lax.scan` for the gradient.

A recurrence is given by its `step(weights, state, inputs_t) -> (state, outputs_t)`. Everything
below the public functions is time-major, because `lax.scan` slices the first axis.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from keras_coffee._conversion import is_onnx_converter_calling


@functools.partial(jax.jit, static_argnames=("feedback", "recompute"))
def coffee_scan(
    inputs,
    transition,
    gate,
    readout,
    input_matrix,
    output_gate,
    initial_state,
    mask,
    *,
    feedback,
    recompute,
):
    """COFFEE over inputs `(B, T, D)`: outputs `(B, T, D)` and the final state `(B, D, n)`."""
    weights = (transition, gate, readout, input_matrix, output_gate)
    sequences = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (inputs, mask))
    run = _recomputed if recompute else _scan
    final_state, outputs = run(_coffee_step(feedback), weights, initial_state, sequences)
    return jnp.swapaxes(outputs, 0, 1), final_state


@functools.partial(jax.jit, static_argnames=("discretization", "recompute"))
def selective_scan(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    recompute,
):
    """Selective state-space model over inputs `(B, T, D)`: outputs and the final state.

    An input or output matrix of rank 3 is `(B, T, n)`, one of rank 2 is `(D, n)`.
    """
    fixed, varying = [None, None], [None, None]
    for i, matrix in enumerate((input_matrix, output_matrix)):
        (varying if matrix.ndim == 3 else fixed)[i] = matrix
    sequences = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (inputs, delta, *varying))
    run = _recomputed if recompute else _scan
    final_state, outputs = run(
        _selective_step(discretization), (transition, *fixed), initial_state, sequences
    )
    return jnp.swapaxes(outputs, 0, 1), final_state


@functools.partial(jax.jit, static_argnames="reverse")
def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    states = _linear_scan(
        reverse, jnp.swapaxes(decay, 0, 1), jnp.swapaxes(inputs, 0, 1), initial_state
    )
    return jnp.swapaxes(states, 0, 1)


def is_converted_to_onnx():
    """Whether the model is traced for a converter to ONNX."""
    return is_onnx_converter_calling()


# Steps. Cached, so that `lax.scan` sees one function per recurrence and traces it once.


@functools.cache
def _coffee_step(feedback):
    def step(weights, state, inputs_t):
        transition, gate, readout, input_matrix, output_gate = weights
        source, mask = inputs_t[0][..., None], inputs_t[1]
        drive = source if input_matrix is None else input_matrix * source
        delta = gate * (source if feedback is None else state)
        if feedback != "linear":
            delta = jax.nn.sigmoid(delta)
        if mask is not None:
            delta = mask[:, None, None] * delta
        state = state + delta * (transition * state + drive)
        outputs = jnp.sum(readout * state, -1)
        if output_gate is not None:
            outputs = outputs * jax.nn.sigmoid(jnp.sum(output_gate * state, -1))
        return state, outputs

    return step


@functools.cache
def _selective_step(discretization):
    discretize = {"zoh": _zero_order_hold, "euler": _forward_euler}[discretization]

    def step(weights, state, inputs_t):
        transition, *fixed = weights
        source, delta, *varying = inputs_t
        input_matrix, output_matrix = (
            v[:, None, :] if f is None else f for f, v in zip(fixed, varying, strict=True)
        )
        decay, gain = discretize(transition, delta[..., None])
        state = decay * state + gain * input_matrix * source[..., None]
        return state, jnp.sum(output_matrix * state, -1)

    return step


def _forward_euler(transition, delta):
    return 1 + transition * delta, delta


def _zero_order_hold(transition, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, right through z = 0 with their derivatives."""
    exponent = transition * delta
    small = jnp.abs(exponent) < 0.1
    # Each branch gets numbers that suit it: what overflows in an unused one makes its gradient NaN.
    near, far = jnp.where(small, exponent, 0.0), jnp.where(small, 1.0, exponent)
    series = jnp.ones_like(near)
    for k in range(11, 1, -1):  # what is left out, and its derivative, is below 1e-17
        series = 1 + series * near / k
    gain = delta * jnp.where(small, series, jnp.expm1(far) / far)
    return jnp.exp(exponent), gain


# The driver.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(step, weights, state, inputs):
    return lax.scan(lambda x, u: step(weights, x, u), state, inputs)


def _scan_forward(step, weights, state, inputs):
    def body(x, u):
        new, outputs = step(weights, x, u)
        return new, (outputs, x)

    final_state, (outputs, states) = lax.scan(body, state, inputs)
    return (final_state, outputs), (weights, states, inputs)


def _scan_backward(step, residuals, cotangents):
    weights, states, inputs = residuals
    grad_final, grad_outputs = cotangents
    batch = grad_final.shape[0]

    # One copy of the weights per sequence: their gradients are then added elementwise over time
    # and summed over the batch once, not at every step.
    def per_sequence(weights):
        return jax.tree.map(lambda w: jnp.broadcast_to(w, (batch, *w.shape)), weights)

    def body(carry, slices):
        grad_state, grad_weights = carry
        state, inputs_t, grad_outputs_t = slices
        _, vjp = jax.vjp(step, per_sequence(weights), state, inputs_t)
        grad_weights_t, grad_state, grad_inputs = vjp((grad_state, grad_outputs_t))
        return (grad_state, jax.tree.map(jnp.add, grad_weights, grad_weights_t)), grad_inputs

    zeros = jax.tree.map(jnp.zeros_like, per_sequence(weights))
    (grad_state, grad_weights), grad_inputs = lax.scan(
        body, (grad_final, zeros), (states, inputs, grad_outputs), reverse=True
    )
    return jax.tree.map(lambda g: g.sum(0), grad_weights), grad_state, grad_inputs


_scan.defvjp(_scan_forward, _scan_backward)


def _recomputed(step, weights, state, inputs):
    """`_scan` in about √T chunks: the gradient stores a state per chunk, and then one chunk."""
    length = jax.tree.leaves(inputs)[0].shape[0]
    if not isinstance(length, int):  # a symbol, in an export, which trains nothing
        return _scan(step, weights, state, inputs)
    size = max(1, round(length**0.5))
    whole = length - length % size
    chunk = jax.checkpoint(functools.partial(_scan, step, weights))
    head = jax.tree.map(lambda x: x[:whole].reshape(whole // size, size, *x.shape[1:]), inputs)
    state, outputs = lax.scan(chunk, state, head)
    outputs = outputs.reshape(whole, *outputs.shape[2:])
    if whole == length:
        return state, outputs
    state, rest = chunk(state, jax.tree.map(lambda x: x[whole:], inputs))
    return state, jnp.concatenate([outputs, rest])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _linear_scan(reverse, decay, inputs, initial_state):
    def body(state, slices):
        state = slices[0] * state + slices[1]
        return state, state

    return lax.scan(body, initial_state, (decay, inputs), reverse=reverse)[1]


def _linear_forward(reverse, decay, inputs, initial_state):
    states = _linear_scan(reverse, decay, inputs, initial_state)
    return states, (decay, states, initial_state)


def _linear_backward(reverse, residuals, grad_states):
    decay, states, initial_state = residuals
    # The adjoint of a linear scan is a linear scan the other way, with decays one step later.
    one = jnp.zeros_like(decay[:1])
    if reverse:
        following = jnp.concatenate([one, decay[:-1]])
        previous = jnp.concatenate([states[1:], initial_state[None]])
        first = -1
    else:
        following = jnp.concatenate([decay[1:], one])
        previous = jnp.concatenate([initial_state[None], states[:-1]])
        first = 0
    grads = _linear_scan(not reverse, following, grad_states, jnp.zeros_like(initial_state))
    return grads * previous, grads, decay[first] * grads[first]


_linear_scan.defvjp(_linear_forward, _linear_backward)
