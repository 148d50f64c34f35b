"""Which of the kernels in Triton runs a scan on a GPU. They are loaded when they are first needed.

TensorFlow must not be imported before Triton, and a machine without a GPU needs neither.
"""

import importlib
import importlib.util

import torch


@torch.compiler.assume_constant_result
def is_available():
    """Whether there is an NVIDIA GPU that Triton knows, and Triton, as with PyTorch on Linux."""
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability() >= (7, 0)


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
    modules = {"sequential": "triton_coffee", "parallel": "triton_newton"}
    return _module("coffee", modules, inputs, weights)


def _selective_kernels(inputs, transition):
    modules = {"sequential": "triton_selective", "parallel": "triton_chunked_selective"}
    return _module("selective", modules, inputs, transition)


def _module(recurrence, modules, inputs, weights):
    batch, length, dim = inputs.shape
    name = modules[kind(recurrence, length, batch * dim, weights.shape[-1])]
    return importlib.import_module(f"keras_coffee.backend.torch.{name}")


def kind(recurrence, length, pairs, n):
    """`"sequential"` in time, or `"parallel"`, for pairs of sequence and feature with n states.

    Parallel kernels do more work, so they pay where there is too little of it to fill a card, and
    where time is long enough to be cut up. The bounds are estimates, from counting instructions:
    nothing was timed on a card yet. The gradient must be computed by the kind that kept the states,
    so only what both passes know may decide.
    """
    if recurrence == "coffee":
        # Newton's method takes some passes over the states, and their number counts.
        is_parallel = length >= 1024 and pairs * n <= 2048
    else:
        # One pass more, whatever the data.
        is_parallel = length >= 512 and pairs <= 256
    return "parallel" if is_parallel else "sequential"
