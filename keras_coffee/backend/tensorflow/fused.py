"""Scans for TensorFlow, and which implementation runs one."""

import tensorflow as tf

from keras_coffee.backend.conversion import is_exporter_calling
from keras_coffee.backend.cpu import kernels
from keras_coffee.backend.tensorflow import cpu_kernels, portable, primitives


def _is_switched_off(x):
    return kernels.is_switched_off()


def _is_compiled_by_xla(x):
    """Whether XLA compiles the function that is traced: it knows no operations but its own."""
    if tf.executing_eagerly():
        return False
    context = getattr(tf.__internal__, "get_enclosing_xla_context", None)
    return context is None or context() is not None


def _is_exported(x):
    """Whether the traced function is saved to a file, for machines without this package."""
    return not tf.executing_eagerly() and is_exporter_calling()


def _is_on_an_accelerator(x):
    return primitives.device_kind(x) != "cpu"


# Where a scan of tensors like the first of them runs in the portable loop. Everywhere else it runs
# in a kernel if there is one for it, as `cpu_kernels` says, which decides when it sees all tensors.
PORTABLE = (_is_switched_off, _is_compiled_by_xla, _is_exported, _is_on_an_accelerator)


def implementation(recurrence, x):
    """What runs a recurrence: the same everywhere. It decides when it sees all tensors."""
    return scan_cell


def scan_cell(recurrence, *given, recompute):
    """Outputs `(B, T, ...)` and the final state of any recurrence; `numpy.py` says of what."""
    # Variables are read out here: a compiled function would treat each as a case of its own.
    tensors = [tf.convert_to_tensor(x) for x in given]
    operations = None
    if not any(holds(tensors[0]) for holds in PORTABLE):
        operations = cpu_kernels.scan_operations(recurrence, len(tensors), tensors[-1].dtype)
    if operations is None:
        return portable.scan_cell(recurrence, *tensors, recompute=recompute)
    return cpu_kernels.scan_cell(operations, recurrence, *tensors, recompute=recompute)


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    decay, *others = (tf.convert_to_tensor(x) for x in (decay, inputs, initial_state))
    operations = None
    if not any(holds(decay) for holds in PORTABLE):
        if None in decay.shape[:2]:  # may be one for all, or not
            decay = tf.broadcast_to(decay, tf.shape(others[0]))
        varies = [size != 1 for size in decay.shape[:2]]
        operations = cpu_kernels.linear_operations(decay.dtype, reverse, *varies)
    if operations is None:
        return portable.linear_scan(decay, *others, reverse=reverse)
    return cpu_kernels.linear_scan(operations, decay, *others)
