"""The kernels of `backend/cpu` as custom calls of XLA."""

import pathlib

import jax
import numpy as np

from keras_coffee.backend.cpu import compiler, kernels

RECURRENCES = kernels.RECURRENCES

_XLA = compiler.Caller("FOR_XLA", jax.ffi.include_dir(), ("xla/ffi/api/c_api.h",))


def is_available():
    """Whether there is a compiler for them."""
    return kernels.is_available(_XLA)


def scan(direction, name, *tensors, keep, **options):
    """What `"forward"` or `"backward"` of a recurrence returns, as `cpu.kernels.scan` says."""
    shapes = tuple(None if x is None else x.shape for x in tensors)
    options |= {"dtype": tensors[0].dtype.name, "caller": _XLA, "keep": keep}
    results = _call(kernels.scan(direction, name, shapes, **options), tensors)
    return [x for x in results if x is not None]


def linear_forward(decay, inputs, state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex.

    The decay may have one sequence, or one step, for all.
    """
    (states,) = _call(_linear("forward", decay, inputs, reverse), [decay, inputs, state])
    return states


def linear_backward(grad_states, states, decay, state, *, reverse):
    """Gradients by decay, inputs and the initial state: conjugates of JAX's own."""
    kernel = _linear("backward", decay, states, reverse)
    return _call(kernel, [grad_states, states, decay, state])


def _linear(direction, decay, inputs, reverse):
    options = {"dtype": inputs.dtype.name, "caller": _XLA, "reverse": reverse}
    return kernels.linear(direction, decay.shape, inputs.shape, **options)


def _call(kernel, arguments):
    dtypes = {x.dtype for x in arguments if x is not None}
    if len(dtypes) > 1:  # they would be read as numbers of another size
        raise TypeError(f"Kernels need one dtype, received {sorted(map(str, dtypes))}.")
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
