"""COFFEE as Pallas kernels: one fused pass over time, forward and backward."""

import functools

import jax
import jax.numpy as jnp

from keras_coffee.backend.jax import pallas_math

KINDS = "feature", "mask"


def coffee_forward(
    inputs,
    mask,
    weights,
    initial_state,
    *,
    feedback,
    has_input_matrix,
    has_output_gate,
    keep,
    interpret=False,
):
    """Outputs `(B, T, D)`, the final state `(B, D, n)` and the states before steps 0, k, 2k, ...

    `weights` `(W, D, n)` are transition, gate, readout, and the input matrix and the output gate
    where there are. The states are kept for the gradient, as one flat array; with `keep=0` none.
    """
    return pallas_math.forward(
        _recurrence(feedback, has_input_matrix, has_output_gate),
        weights,
        [inputs] if mask is None else [inputs, mask],
        initial_state,
        kinds=KINDS[: 1 if mask is None else 2],
        keep=keep,
        interpret=interpret,
    )


def coffee_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    mask,
    weights,
    *,
    feedback,
    has_input_matrix,
    has_output_gate,
    keep,
    interpret=False,
):
    """Gradients by the inputs, the stacked weights and the initial state."""
    grads, grad_weights, grad_initial = pallas_math.backward(
        _recurrence(feedback, has_input_matrix, has_output_gate),
        grad_outputs,
        grad_final,
        kept,
        weights,
        [inputs] if mask is None else [inputs, mask],
        kinds=KINDS[: 1 if mask is None else 2],
        keep=keep,
        interpret=interpret,
    )
    return grads[0], grad_weights, grad_initial


@functools.cache
def _recurrence(feedback, has_input_matrix, has_output_gate):
    def advance(weights, state, inputs_t):
        transition, gate, _, *optional = weights
        source, *mask = inputs_t
        drive = optional[0] * source if has_input_matrix else source
        delta = gate * (source if feedback is None else state)
        if feedback != "linear":
            delta = jax.nn.sigmoid(delta)
        if mask:
            delta = mask[0] * delta
        return state + delta * (transition * state + drive)

    def read(weights, state, inputs_t):
        outputs = jnp.sum(weights[2] * state, 0, keepdims=True)
        if has_output_gate:
            outputs *= jax.nn.sigmoid(jnp.sum(weights[-1] * state, 0, keepdims=True))
        return outputs

    return advance, read
