"""The kernels of `backend/cpu` on tensors. All tensors are contiguous and of one dtype."""

import torch

from keras_coffee.backend.cpu import kernels


@torch.compiler.assume_constant_result
def is_available():
    """Whether there is a compiler for them."""
    return kernels.is_available()


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
    """Gradients by decay, inputs and the initial state: conjugates of derivatives."""
    kernel = _linear_kernel("backward", decay, states, reverse)
    return _call(kernel, [grad_states, states, decay, state])


def _linear_kernel(direction, decay, inputs, reverse):
    dtype = _NAMES[inputs.dtype]
    return kernels.linear(direction, decay.shape, inputs.shape, dtype=dtype, reverse=reverse)


def _kernel(direction, name, sequences, weights, keep, options):
    shapes = map(_shapes, (sequences, weights))
    dtype = _NAMES[sequences[0].dtype]
    return kernels.scan(direction, name, *shapes, dtype=dtype, keep=keep, **options)


_NAMES = {getattr(torch, name): name for name in ("float32", "float64", "complex64", "complex128")}


def _shapes(tensors):
    return tuple(None if x is None else x.shape for x in tensors)


def _call(kernel, arguments):
    results = [x if x is None else arguments[0].new_empty(x.shape) for x in kernel.results]
    pointers = [None if x is None else x.data_ptr() for x in (*arguments, *results)]
    kernel.run(pointers, torch.get_num_threads())
    return kernel.summed(results)
