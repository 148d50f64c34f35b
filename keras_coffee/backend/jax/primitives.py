"""What solvers are built from, for JAX. `numpy.py` says what each function does."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from keras_coffee.backend.jax.fused import is_converted_to_onnx


def associative_scan(combine, elements, *, reverse=False):
    return lax.associative_scan(combine, elements, reverse=reverse, axis=1)


def scan(body, carry, sequences, like):
    return lax.scan(body, carry, sequences)


@functools.partial(jax.jit, static_argnums=(0, 1))
def compiled(function, constants, *tensors):
    return function(*constants, *tensors)


def without_gradient(function):
    return jax.tree.map(lax.stop_gradient, function())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def implicit_states(adjoint, states, jacobian, drive, initial_state):
    return states


def _implicit_forward(adjoint, states, jacobian, drive, initial_state):
    # Of the drive only that it is differentiated: the Jacobian is a constant.
    return states, (jacobian, drive[:, :0])


def _implicit_backward(adjoint, residuals, grad_states):
    jacobian, witness = residuals
    nothing = jnp.zeros_like(grad_states), jnp.zeros_like(jacobian)
    return *nothing, *_differentiated_once(witness, *adjoint(jacobian, grad_states))


@jax.custom_jvp
def _differentiated_once(witness, *grads):
    return grads


@_differentiated_once.defjvp
def _refuse_second_derivatives(primals, tangents):
    raise NotImplementedError(
        "Parallel solvers of keras_coffee have no second derivatives. Use solver='sequential', "
        "which has them on JAX."
    )


implicit_states.defvjp(_implicit_forward, _implicit_backward)


def exponent(x):
    # From the bits: jnp.frexp takes forty times as long.
    bits, bias, shift, mask = _layout(x.dtype)
    field = (lax.bitcast_convert_type(x, bits) >> shift) & mask
    return jnp.where((field > 0) & (field < mask), field - (bias - 1), 0).astype(jnp.int32)


def power_of_two(exponent, dtype):
    # Put together from bits: XLA rounds its exp2 and power even where the result is exact.
    bits, bias, shift, _ = _layout(dtype)
    return lax.bitcast_convert_type((exponent.astype(bits) + bias) << shift, jnp.dtype(dtype))


def _layout(dtype):
    """Integers of the same size, and the position of the exponent in them."""
    return (jnp.int64, 1023, 52, 0x7FF) if dtype == "float64" else (jnp.int32, 127, 23, 0xFF)


def may_be_differentiated():
    return True


def can_iterate(x):
    return not is_converted_to_onnx()


def device_kind(x):
    if isinstance(x, jax.core.Tracer):
        return jax.default_backend()
    (device, *_) = x.devices()
    return device.platform


def complex_of(real, imaginary):
    return lax.complex(real, imaginary)


def where(mask, x, y):
    return jnp.where(mask, x, y)
