"""Scans for PyTorch, and which implementation runs one."""

import torch

from keras_coffee.backend.torch import cpu_kernels, eager, export, gpu_kernels, operators


def _is_exported(recurrence, x):
    return torch.compiler.is_exporting()


def _has_kernel(recurrence, x):
    """Whether kernels know the recurrence: in C for a CPU, in Triton for a GPU.

    A program that is traced must run where this package is not.
    """
    if recurrence.kernel is None or torch.jit.is_tracing():
        return False
    is_there = {
        "cpu": cpu_kernels.is_available,
        "cuda": gpu_kernels.is_available,
        "meta": lambda: True,
    }
    return is_there.get(x.device.type, lambda: False)()


# What runs a recurrence, given its first tensor; the first that holds. Which of several kernels
# runs on a GPU, `gpu_kernels` says.
IMPLEMENTATIONS = {
    "export": (_is_exported, export.recurrence),
    "kernel": (_has_kernel, operators.recurrence),
    "eager": (lambda recurrence, x: True, eager.recurrence),
}


def implementation(recurrence, x):
    """The name of what runs a recurrence."""
    return next(name for name, (holds, _) in IMPLEMENTATIONS.items() if holds(recurrence, x))


def recurrence(recurrence, *tensors, recompute):
    """Outputs `(B, T, ...)` and the final state of any recurrence; `numpy.py` says of what."""
    export.refuse_to_fix_the_length()
    _, run = IMPLEMENTATIONS[implementation(recurrence, tensors[0])]
    return run(recurrence, *tensors, recompute=recompute)


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    export.refuse_to_fix_the_length()
    if torch.compiler.is_exporting():
        return export.linear_scan(decay, inputs, initial_state, reverse=reverse)
    return operators.linear_scan(decay, inputs, initial_state, reverse=reverse)
