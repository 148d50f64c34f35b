"""The kernels in Pallas, for a GPU."""

import functools
import warnings

import jax

from keras_coffee.backend.jax import pallas_driver, pallas_linear, pallas_steps


@functools.cache
def is_available():
    """Whether this JAX has Pallas with the parts of its Triton backend that the kernels use.

    JAX deprecates that backend from 0.11 on. If it is gone, a warning says so once.
    """
    try:
        from jax.experimental.pallas import triton
    except ImportError:
        triton = None
    found = all(hasattr(triton, name) for name in ("CompilerParams", "debug_barrier", "load"))
    if not found:
        warnings.warn(
            "keras_coffee runs its recurrences without compiled kernels on a GPU, by a slower loop "
            f"of XLA, because JAX {jax.__version__} has no Triton backend of Pallas. JAX 0.10 has "
            "it; the PyTorch backend of Keras has kernels of its own.",
            stacklevel=2,
        )
    return found


# The steps of each recurrence that has kernels. Adding one adds a row.
RECURRENCES = {"coffee": pallas_steps.COFFEE, "selective": pallas_steps.SELECTIVE}


def scan(direction, name, *tensors, keep, **options):
    """What `"forward"` or `"backward"` of a recurrence returns, as `cpu.kernels.scan` says."""
    recurrence = RECURRENCES[name]
    grads, own = ([], tensors[:-1]) if direction == "forward" else (tensors[:3], tensors[3:])
    sequences, weights = list(own[: len(recurrence.kinds)]), list(own[len(recurrence.kinds) :])
    if direction == "forward":
        state, options = tensors[-1], options | {"keep": keep}
        return list(pallas_driver.forward(recurrence, sequences, weights, state, **options))
    grad_outputs, grad_final, kept = grads
    results = pallas_driver.backward(
        recurrence, grad_outputs, grad_final, kept, sequences, weights, keep=keep, **options
    )
    return [grad for grad in (*results[0], *results[1], results[2]) if grad is not None]


linear_forward = pallas_linear.linear_forward
linear_backward = pallas_linear.linear_backward
