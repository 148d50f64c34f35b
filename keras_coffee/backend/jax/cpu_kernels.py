"""The kernels of `backend/cpu` as custom calls of XLA."""

import pathlib

import jax
import numpy as np

from keras_coffee.backend.cpu import kernels


def is_available():
    """Whether there is a compiler for them."""
    return kernels.is_available(jax.ffi.include_dir())


def forward(name, sequences, weights, state, *, keep, **options):
    """Outputs `(B, T, D)`, the final state and what `backward` needs."""
    kernel = _kernel("forward", name, sequences, weights, keep, options)
    return _call(kernel, [*sequences, *weights, state])


def backward(name, grad_outputs, grad_final, kept, sequences, weights, *, keep, **options):
    """Gradients by the sequences, the weights and the initial state."""
    kernel = _kernel("backward", name, sequences, weights, keep, options)
    grads = _call(kernel, [grad_outputs, grad_final, kept, *sequences, *weights])
    count = len(sequences)
    return grads[:count], grads[count:-1], grads[-1]


def linear_forward(decay, inputs, state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex.

    The decay may have one sequence, or one step, for all.
    """
    (states,) = _call(_linear_kernel("forward", decay, inputs, reverse), [decay, inputs, state])
    return states


def linear_backward(grad_states, states, decay, state, *, reverse):
    """Gradients by decay, inputs and the initial state: conjugates of JAX's own."""
    kernel = _linear_kernel("backward", decay, states, reverse)
    return _call(kernel, [grad_states, states, decay, state])


def _linear_kernel(direction, decay, inputs, reverse):
    options = {"dtype": inputs.dtype.name, "include": jax.ffi.include_dir(), "reverse": reverse}
    return kernels.linear(direction, decay.shape, inputs.shape, **options)


def _kernel(direction, name, sequences, weights, keep, options):
    shapes = map(_shapes, (sequences, weights))
    options |= {"dtype": sequences[0].dtype.name, "include": jax.ffi.include_dir()}
    return kernels.scan(direction, name, *shapes, keep=keep, **options)


def _shapes(tensors):
    return tuple(None if x is None else x.shape for x in tensors)


def _call(kernel, arguments):
    name = f"{pathlib.Path(kernel.library._name).stem}_{kernel.direction}"
    function = getattr(kernel.library, f"{kernel.direction}_call")
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    everything = [*arguments, *kernel.results]
    attributes = {
        "places": np.array([k for k, x in enumerate(everything) if x is not None], "int64"),
        "sizes": np.array(kernel.blocks.sizes, "int64"),
    }
    arguments = [x for x in arguments if x is not None]
    results = [x for x in kernel.results if x is not None]
    types = [jax.ShapeDtypeStruct(x.shape, arguments[0].dtype) for x in results]
    filled = iter(jax.ffi.ffi_call(name, types)(*arguments, **attributes))
    return kernel.summed([x if x is None else next(filled) for x in kernel.results])
