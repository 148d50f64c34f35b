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


def _kernel(direction, name, sequences, weights, keep, options):
    shapes = map(_shapes, (sequences, weights))
    dtype = _NAMES[sequences[0].dtype]
    return kernels.scan(direction, name, *shapes, dtype=dtype, keep=keep, **options)


_NAMES = {torch.float32: "float32", torch.float64: "float64"}


def _shapes(tensors):
    return tuple(None if x is None else x.shape for x in tensors)


def _call(kernel, arguments):
    results = [x if x is None else arguments[0].new_empty(x.shape) for x in kernel.results]
    pointers = [None if x is None else x.data_ptr() for x in (*arguments, *results)]
    kernel.run(pointers, torch.get_num_threads())
    return kernel.summed(results)
