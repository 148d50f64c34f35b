"""Scans for JAX, with their gradients. kernels.py says which platform runs what."""

import functools
import math

import jax
from jax import lax

from keras_coffee.backend.conversion import is_onnx_converter_calling
from keras_coffee.backend.jax import kernels, portable


def implementation(recurrence, x):
    """What runs a recurrence: the primitives, except in a conversion to ONNX."""
    return _scan_portably if is_converted_to_onnx() else scan_cell


@functools.partial(jax.jit, static_argnames=("recurrence", "recompute"))
def scan_cell(recurrence, *tensors, recompute):
    """Outputs `(B, T, ...)` and the final state of any recurrence; `numpy.py` says of what."""
    outputs, *final_state = _scan(recurrence, recompute, *_alike(*tensors))
    return outputs, final_state


def _scan_portably(recurrence, *tensors, recompute):
    # Converters know JAX's own primitives only, and want no gradient.
    outputs, *final_state = portable.forward(*tensors, recurrence=recurrence, keep=0)
    return outputs, final_state[: recurrence.state_count]


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(recurrence, recompute, *tensors):
    results = kernels.forward.bind(*tensors, recurrence=recurrence, keep=0)
    return results[: 1 + recurrence.state_count]


def _scan_forward(recurrence, recompute, *tensors):
    keep = _steps_between_kept_states(recurrence, tensors[0], recompute)
    results = kernels.forward.bind(*tensors, recurrence=recurrence, keep=keep)
    count = 1 + recurrence.state_count
    return results[:count], (results[count:], tensors)


def _scan_backward(recurrence, recompute, residuals, grads):
    kept, tensors = residuals
    keep = _steps_between_kept_states(recurrence, tensors[0], recompute)
    results = iter(kernels.backward.bind(*grads, *kept, *tensors, recurrence=recurrence, keep=keep))
    return tuple(next(results) if portable.is_differentiable(x) else None for x in tensors)


_scan.defvjp(_scan_forward, _scan_backward)


def _steps_between_kept_states(recurrence, inputs, recompute):
    length = inputs.shape[1]
    if not isinstance(length, int):  # a symbol, in an export, which trains nothing
        return 1
    return max(1, math.isqrt(length)) if recompute else kernels.usual_keep(recurrence)


def is_converted_to_onnx():
    """Whether the model is traced for a converter to ONNX."""
    return is_onnx_converter_calling()


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    # Asked outside of `jax.jit`, which would keep the answer for later calls.
    if is_converted_to_onnx():
        return portable.linear_forward(decay, inputs, initial_state, reverse=reverse)[0]
    return _compiled_linear_scan(decay, inputs, initial_state, reverse=reverse)


@functools.partial(jax.jit, static_argnames="reverse")
def _compiled_linear_scan(decay, inputs, initial_state, *, reverse):
    return _linear_scan(reverse, *_alike(decay, inputs, initial_state))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _linear_scan(reverse, decay, inputs, initial_state):
    return kernels.linear_forward.bind(decay, inputs, initial_state, reverse=reverse)[0]


def _linear_forward(reverse, decay, inputs, initial_state):
    (states,) = kernels.linear_forward.bind(decay, inputs, initial_state, reverse=reverse)
    return states, (states, decay, initial_state)


def _linear_backward(reverse, residuals, grad_states):
    return tuple(kernels.linear_backward.bind(grad_states, *residuals, reverse=reverse))


_linear_scan.defvjp(_linear_forward, _linear_backward)
