"""The kernels in Pallas, loaded when they are first lowered: no other platform needs Pallas."""

import importlib


def is_available():
    """Whether this JAX has what they are written with."""
    return _module("math").is_available()


def coffee_forward(inputs, weights, *mask_and_state, **options):
    *mask, initial_state = mask_and_state
    tensors = inputs, mask[0] if mask else None, weights, initial_state
    return _module("coffee").coffee_forward(*tensors, **options)


def coffee_backward(grad_outputs, grad_final, kept, inputs, weights, *mask_and_state, **options):
    *mask, _ = mask_and_state
    tensors = grad_outputs, grad_final, kept, inputs, mask[0] if mask else None, weights
    *grads, grad_initial = _module("coffee").coffee_backward(*tensors, **options)
    return [*grads, *(x * 0 for x in mask), grad_initial]


def selective_forward(*tensors, **options):
    return _module("selective").selective_forward(*tensors, **options)


def selective_backward(*tensors, **options):
    return _module("selective").selective_backward(*tensors[:-1], **options)


def _module(name):
    return importlib.import_module(f"keras_coffee.backend.jax.pallas_{name}")
