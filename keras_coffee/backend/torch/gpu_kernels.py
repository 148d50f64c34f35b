"""Which of the kernels in Triton runs a scan on a GPU. They are loaded when they are first needed.

TensorFlow must not be imported before Triton, and a machine without a GPU needs neither.
"""

import importlib
import importlib.util


def is_available():
    """Whether Triton is installed, as it is with PyTorch for GPUs on Linux."""
    return importlib.util.find_spec("triton") is not None


def coffee_forward(inputs, mask, weights, *rest, **options):
    return _coffee_kernels(inputs, weights).coffee_forward(inputs, mask, weights, *rest, **options)


def coffee_backward(grad_outputs, grad_final, kept, inputs, mask, weights, **options):
    kernels = _coffee_kernels(inputs, weights)
    return kernels.coffee_backward(grad_outputs, grad_final, kept, inputs, mask, weights, **options)


def selective_forward(inputs, delta, transition, *rest, **options):
    kernels = _selective_kernels(inputs, transition)
    return kernels.selective_forward(inputs, delta, transition, *rest, **options)


def selective_backward(grad_outputs, grad_final, kept, inputs, delta, transition, *rest, **options):
    return _selective_kernels(inputs, transition).selective_backward(
        grad_outputs, grad_final, kept, inputs, delta, transition, *rest, **options
    )


def _coffee_kernels(inputs, weights):
    return _module({"sequential": "triton_coffee", "parallel": "triton_newton"}, inputs, weights)


def _selective_kernels(inputs, transition):
    modules = {"sequential": "triton_selective", "parallel": "triton_chunked_selective"}
    return _module(modules, inputs, transition)


def _module(modules, inputs, weights):
    batch, length, dim = inputs.shape
    name = modules[kind(length, batch * dim * weights.shape[-1])]
    return importlib.import_module(f"keras_coffee.backend.torch.{name}")


def kind(length, states):
    """`"sequential"` in time, or `"parallel"`, for a length and the states of all features."""
    return "sequential"
