"""The kernels in Pallas, for a GPU."""

from keras_coffee.backend.jax import pallas_driver, pallas_linear, pallas_steps


def is_available():
    """Whether this JAX has Pallas with the parts of its Triton backend that the kernels use."""
    try:
        from jax.experimental.pallas import triton
    except ImportError:
        return False
    return all(hasattr(triton, name) for name in ("CompilerParams", "debug_barrier", "load"))


# The steps of each recurrence that has kernels. Adding one adds a row.
RECURRENCES = {"coffee": pallas_steps.COFFEE, "selective": pallas_steps.SELECTIVE}


def forward(name, *arguments, **options):
    """Outputs, final state and what `backward` needs, from sequences, weights and state."""
    return pallas_driver.forward(RECURRENCES[name], *arguments, **options)


def backward(name, *arguments, **options):
    """Gradients by sequences, weights and state."""
    return pallas_driver.backward(RECURRENCES[name], *arguments, **options)


linear_forward = pallas_linear.linear_forward
linear_backward = pallas_linear.linear_backward
