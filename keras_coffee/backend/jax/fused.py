"""Scans for JAX, with their gradients. What runs one on which platform is said in kernels.py."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from keras_coffee._conversion import is_onnx_converter_calling
from keras_coffee.backend.jax import kernels, portable


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
    weights = [transition, gate, readout, input_matrix, output_gate]
    tensors = [jnp.stack([w for w in weights if w is not None]), mask, initial_state]
    options = (
        ("feedback", feedback),
        ("has_input_matrix", input_matrix is not None),
        ("has_output_gate", output_gate is not None),
    )
    tensors = [inputs, *(x for x in tensors if x is not None)]
    return _run("coffee", options, recompute, *tensors)


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
    tensors = inputs, delta, transition, input_matrix, output_matrix, initial_state
    return _run("selective", (("discretization", discretization),), recompute, *tensors)


def _run(recurrence, options, recompute, *tensors):
    run = _portable if is_converted_to_onnx() else _compiled
    return run(recurrence, options, recompute, *tensors)


def _portable(recurrence, options, recompute, *tensors):
    """Without primitives, of which converters to ONNX know JAX's own only. For inference."""
    forward = getattr(portable, f"{recurrence}_forward")
    outputs, final_state, _ = forward(*tensors, keep=0, **dict(options))
    return outputs, final_state


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled(recurrence, options, recompute, *tensors):
    return _scan(recurrence, options, recompute, *_alike(*tensors))


def _alike(*tensors):
    """Under `shard_map`: each as different from device to device as any of them.

    So gradients of weights that are everywhere the same are summed over the devices.
    """
    # Empty elsewhere, and where JAX is too old to tell.
    axes = [_varying_axes(x) for x in tensors]
    union = frozenset().union(*axes)
    pairs = zip(tensors, axes, strict=True)
    return [
        lax.pcast(x, tuple(union - own), to="varying") if union - own else x for x, own in pairs
    ]


def _varying_axes(x):
    kind = getattr(x.aval, "manual_axis_type", None)
    return getattr(kind, "varying", frozenset())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _scan(recurrence, options, recompute, *tensors):
    outputs, final_state, _ = kernels.forward[recurrence].bind(*tensors, keep=0, **dict(options))
    return outputs, final_state


def _scan_forward(recurrence, options, recompute, *tensors):
    keep = _steps_between_kept_states(tensors[0], recompute)
    results = kernels.forward[recurrence].bind(*tensors, keep=keep, **dict(options))
    outputs, final_state, kept = results
    return (outputs, final_state), (kept, *tensors)


def _scan_backward(recurrence, options, recompute, residuals, grads):
    keep = _steps_between_kept_states(residuals[1], recompute)
    return kernels.backward[recurrence].bind(*grads, *residuals, keep=keep, **dict(options))


_scan.defvjp(_scan_forward, _scan_backward)


def _steps_between_kept_states(inputs, recompute):
    length = inputs.shape[1]
    if not isinstance(length, int):  # a symbol, in an export, which trains nothing
        return 1
    return max(1, math.isqrt(length)) if recompute else kernels.usual_keep()


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
