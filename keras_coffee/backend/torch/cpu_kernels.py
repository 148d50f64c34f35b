"""The kernels of `backend/cpu` on tensors. All tensors are contiguous and of one dtype."""

import torch

from keras_coffee.backend.cpu import kernels

RECURRENCES = kernels.RECURRENCES


@torch.compiler.assume_constant_result
def is_available():
    """Whether there is a compiler for them."""
    return kernels.is_available()


def scan(direction, name, *tensors, keep, **options):
    """What `"forward"` or `"backward"` of a recurrence returns, as `cpu.kernels.scan` says."""
    shapes = tuple(None if x is None else x.shape for x in tensors)
    options |= {"dtype": _NAMES[tensors[0].dtype], "keep": keep}
    results = _call(kernels.scan(direction, name, shapes, **options), tensors)
    return tuple(x for x in results if x is not None)


def linear_forward(decay, inputs, state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex.

    The decay may have one sequence, or one step, for all.
    """
    (states,) = _call(_linear("forward", decay, inputs, reverse), [decay, inputs, state])
    return states


def linear_backward(grad_states, states, decay, state, *, reverse):
    """Gradients by decay, inputs and the initial state: conjugates of derivatives."""
    kernel = _linear("backward", decay, states, reverse)
    return tuple(_call(kernel, [grad_states, states, decay, state]))


def _linear(direction, decay, inputs, reverse):
    dtype = _NAMES[inputs.dtype]
    return kernels.linear(direction, decay.shape, inputs.shape, dtype=dtype, reverse=reverse)


_NAMES = {getattr(torch, name): name for name in ("float32", "float64", "complex64", "complex128")}


def _call(kernel, arguments):
    dtypes = {x.dtype for x in arguments if x is not None}
    if len(dtypes) > 1:  # they would be read as numbers of another size
        raise TypeError(f"Kernels need one dtype, received {sorted(map(str, dtypes))}.")
    results = [x if x is None else arguments[0].new_empty(x.shape) for x in kernel.results]
    pointers = [None if x is None else x.data_ptr() for x in (*arguments, *results)]
    kernel.blocks.run(kernel.function, pointers, torch.get_num_threads())
    return kernel.summed(results)
