"""The baseline on JAX: the simplest fused scan with a gradient of its own.

Sigmoid feedback only, no options and no checks. The steps are written out, forward and backward,
where the package differentiates one definition of the step.
"""

import jax
import jax.numpy as jnp
from jax import lax

VERSION = f"jax {jax.__version__}"
BASELINE = "lax.scan with a gradient written by hand"


def use_one_thread():
    """The flags of XLA do it."""


def inference(scan, tensors, _):
    run = jax.jit(scan)
    return lambda: jax.block_until_ready(run(*tensors))


def training(scan, tensors, grad_outputs):
    @jax.jit
    def run(grad_outputs, *tensors):
        outputs, pull_back = jax.vjp(scan, *tensors)
        return outputs, *pull_back(grad_outputs)

    return lambda: jax.block_until_ready(run(grad_outputs, *tensors))


MODES = {"training": training, "recompute": training, "inference": inference}


@jax.custom_vjp
def coffee_scan(inputs, transition, gate, readout, initial_state):
    return _forward(inputs, transition, gate, readout, initial_state)[0]


def _forward(inputs, transition, gate, readout, initial_state):
    def step(state, source):
        delta = jax.nn.sigmoid(gate * state)
        new = state + delta * (transition * state + source[..., None])
        return new, (jnp.sum(readout * new, -1), state)

    sources = jnp.swapaxes(inputs, 0, 1)
    _, (outputs, states) = lax.scan(step, initial_state, sources)
    return jnp.swapaxes(outputs, 0, 1), (sources, transition, gate, readout, states)


def _backward(residuals, grad_outputs):
    sources, transition, gate, readout, states = residuals

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

    zeros = jnp.zeros_like(states[0])
    slices = (states, sources, jnp.swapaxes(grad_outputs, 0, 1))
    (grad_state, *grads), grad_inputs = lax.scan(step, (zeros,) * 4, slices, reverse=True)
    return jnp.swapaxes(grad_inputs, 0, 1), *(g.sum(0) for g in grads), grad_state


coffee_scan.defvjp(_forward, _backward)
