"""The selective scan (S6) as Pallas kernels: one fused pass over time, forward and backward."""

import functools

import jax.numpy as jnp

from keras_coffee.backend.jax import pallas_math
from keras_coffee.backend.jax.portable import forward_euler


def selective_forward(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    keep,
    interpret=False,
):
    """Outputs `(B, T, D)`, the final state `(B, D, n)` and the states before steps 0, k, 2k, ...

    A matrix of rank 3 is `(B, T, n)`, one of rank 2 `(D, n)`. The states are kept for the gradient,
    as one flat array; with `keep=0` none.
    """
    varying, kinds, weights, sequences = _arranged(
        inputs, delta, transition, input_matrix, output_matrix
    )
    return pallas_math.forward(
        _recurrence(discretization, varying),
        weights,
        sequences,
        initial_state,
        kinds=kinds,
        keep=keep,
        interpret=interpret,
    )


def selective_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    *,
    discretization,
    keep,
    interpret=False,
):
    """Gradients by inputs, delta, transition, input and output matrix, and the initial state."""
    varying, kinds, weights, sequences = _arranged(
        inputs, delta, transition, input_matrix, output_matrix
    )
    (grad_inputs, grad_delta, *grads), grad_weights, grad_initial = pallas_math.backward(
        _recurrence(discretization, varying),
        grad_outputs,
        grad_final,
        kept,
        weights,
        sequences,
        kinds=kinds,
        keep=keep,
        interpret=interpret,
    )
    grad_transition, *fixed = grad_weights
    matrices = [grads.pop(0) if over_time else fixed.pop(0) for over_time in varying]
    return grad_inputs, grad_delta, grad_transition, *matrices, grad_initial


def _arranged(inputs, delta, transition, *matrices):
    """Which matrices vary over time, the kinds of sequences, and weights and sequences."""
    varying = tuple(matrix.ndim == 3 for matrix in matrices)
    weights = [transition, *(m for m, v in zip(matrices, varying, strict=True) if not v)]
    sequences = [inputs, delta, *(m for m, v in zip(matrices, varying, strict=True) if v)]
    kinds = ("feature", "feature") + ("state",) * sum(varying)
    return varying, kinds, jnp.stack(weights), sequences


@functools.cache
def _recurrence(discretization, varying):
    discretize = {"zoh": _zero_order_hold, "euler": forward_euler}[discretization]

    def matrices(weights, inputs_t):
        fixed, over_time = iter(weights[1:]), iter(inputs_t[2:])
        return [next(over_time if v else fixed) for v in varying]

    def advance(weights, state, inputs_t):
        source, delta = inputs_t[:2]
        decay, gain = discretize(weights[0], delta)
        return decay * state + gain * matrices(weights, inputs_t)[0] * source

    def read(weights, state, inputs_t):
        return jnp.sum(matrices(weights, inputs_t)[1] * state, 0, keepdims=True)

    return advance, read


def _zero_order_hold(transition, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, right through z = 0 with their derivatives."""
    exponent = transition * delta
    small = jnp.abs(exponent) < 0.1
    # Each branch gets numbers that suit it: what overflows in an unused one makes its gradient NaN.
    near, far = jnp.where(small, exponent, 0.0), jnp.where(small, 1.0, exponent)
    series = jnp.ones_like(near)
    # What is left out, and its derivative, is below the rounding of the dtype.
    for k in range(11 if exponent.dtype == jnp.float64 else 6, 1, -1):
        series = 1 + series * (near * (1 / k))
    gain = delta * jnp.where(small, series, jnp.expm1(far) / far)
    return jnp.exp(exponent), gain
