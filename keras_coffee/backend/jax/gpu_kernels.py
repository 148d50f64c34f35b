"""The kernels in Pallas: `(forward, backward)` of each recurrence that has them."""

import functools

from keras_coffee.backend.jax import pallas_driver, pallas_linear, pallas_steps


def is_available():
    """Whether this JAX has Pallas with the parts of its Triton backend that the kernels use."""
    try:
        from jax.experimental.pallas import triton
    except ImportError:
        return False
    return all(hasattr(triton, name) for name in ("CompilerParams", "debug_barrier", "load"))


def _driven(recurrence):
    drivers = pallas_driver.forward, pallas_driver.backward
    return tuple(functools.partial(driver, recurrence) for driver in drivers)


KERNELS = {
    "coffee": _driven(pallas_steps.COFFEE),
    "selective": _driven(pallas_steps.SELECTIVE),
    "linear": (pallas_linear.linear_forward, pallas_linear.linear_backward),
}
