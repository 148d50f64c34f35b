"""JAX: what compiles a function, and the simplest scans one would write.

Sigmoid feedback only, no options and no checks. COFFEE's steps are written out, forward and
backward, where the package differentiates one definition of the step. S6 is a plain loop that JAX
differentiates, Mamba's recurrence `lax.associative_scan`, which it differentiates too.
"""

import jax
import jax.numpy as jnp
from jax import lax

VERSION = f"jax {jax.__version__}"
LOOP = "lax.scan, gradient by hand"


def use_threads(threads):
    """The flags of XLA do it."""


def inference(scan):
    """`scan`, compiled and waited for."""
    run = jax.jit(scan)
    return lambda *tensors: jax.block_until_ready(run(*tensors))


def training(scan):
    """What `scan` returns, and the gradients by its tensors from those of what it returns."""

    @jax.jit
    def run(grads, *tensors):
        outputs, pull_back = jax.vjp(scan, *tensors)
        return *outputs, *pull_back(tuple(grads))

    return lambda grads, *tensors: jax.block_until_ready(run(grads, *tensors))


@jax.custom_vjp
def coffee_scan(inputs, transition, gate, readout, initial_state):
    return _forward(inputs, transition, gate, readout, initial_state)[0]


def _forward(inputs, transition, gate, readout, initial_state):
    def step(state, source):
        delta = jax.nn.sigmoid(gate * state)
        new = state + delta * (transition * state + source[..., None])
        return new, (jnp.sum(readout * new, -1), state)

    sources = jnp.swapaxes(inputs, 0, 1)
    final_state, (outputs, states) = lax.scan(step, initial_state, sources)
    residuals = sources, transition, gate, readout, states
    return (jnp.swapaxes(outputs, 0, 1), final_state), residuals


def _backward(residuals, grads):
    sources, transition, gate, readout, states = residuals
    grad_outputs, grad_final_state = grads

    def step(carry, slices):
        grad_state, grad_transition, grad_gate, grad_readout = carry
        state, source, grad_output = slices
        delta = jax.nn.sigmoid(gate * state)
        change = transition * state + source[..., None]
        adjoint = grad_state + grad_output[..., None] * readout
        grad_change = adjoint * delta
        grad_argument = grad_change * (1 - delta) * change
        carry = (
            adjoint + grad_change * transition + grad_argument * gate,
            grad_transition + grad_change * state,
            grad_gate + grad_argument * state,
            grad_readout + grad_output[..., None] * (state + delta * change),
        )
        return carry, jnp.sum(grad_change, -1)

    start = (grad_final_state, *[jnp.zeros_like(states[0])] * 3)
    slices = (states, sources, jnp.swapaxes(grad_outputs, 0, 1))
    (grad_state, *grads), grad_inputs = lax.scan(step, start, slices, reverse=True)
    return jnp.swapaxes(grad_inputs, 0, 1), *(g.sum(0) for g in grads), grad_state


coffee_scan.defvjp(_forward, _backward)


def selective_scan(inputs, delta, transition, input_matrix, output_matrix):
    def step(state, slices):
        source, width, entry, exit_ = slices
        exponent = width[..., None] * transition
        held = jnp.expm1(exponent) / transition * entry[:, None] * source[..., None]
        state = jnp.exp(exponent) * state + held
        return state, jnp.sum(state * exit_[:, None], -1)

    batch, _, dim = inputs.shape
    start = jnp.zeros((batch, dim, transition.shape[1]), inputs.dtype)
    slices = [jnp.swapaxes(x, 0, 1) for x in (inputs, delta, input_matrix, output_matrix)]
    final_state, outputs = lax.scan(step, start, slices)
    return jnp.swapaxes(outputs, 0, 1), final_state


def mamba_scan(inputs, delta, transition, input_matrix, output_matrix, skip):
    def combine(first, second):
        return second[0] * first[0], second[0] * first[1] + second[1]

    decay = jnp.exp(delta[..., None] * transition)
    sources = (delta * inputs)[..., None] * input_matrix[:, :, None]
    _, states = lax.associative_scan(combine, (decay, sources), axis=1)
    outputs = jnp.einsum("btdn,btn->btd", states, output_matrix)
    return outputs + skip * inputs, states[:, -1]
