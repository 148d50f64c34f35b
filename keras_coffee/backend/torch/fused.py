"""Scans for PyTorch, and which implementation runs one."""

import torch

from keras_coffee.backend.torch import cpu_kernels, eager, export, gpu_kernels, operators


def _is_exported(recurrence, x):
    return torch.compiler.is_exporting()


def _has_kernel(recurrence, x):
    """Whether kernels know the recurrence: in C for a CPU, in Triton for a GPU.

    A program that is traced must run where this package is not.
    """
    kernels = {"cpu": cpu_kernels, "meta": cpu_kernels, "cuda": gpu_kernels}.get(x.device.type)
    if kernels is None or torch.jit.is_tracing():
        return False
    if recurrence.kernel not in kernels.RECURRENCES or recurrence.kernel not in operators.SCANS:
        return False
    return x.is_meta or kernels.is_available()


# What runs a recurrence on tensors like the first of them: the first that holds. Which of several
# kernels runs on a GPU, `gpu_kernels` says.
IMPLEMENTATIONS = (
    (_is_exported, export.scan_cell),
    (_has_kernel, operators.scan_cell),
    (lambda recurrence, x: True, eager.scan_cell),
)


def implementation(recurrence, x):
    """What runs a recurrence on tensors like `x`."""
    export.refuse_to_fix_the_length()
    return next(run for holds, run in IMPLEMENTATIONS if holds(recurrence, x))


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    export.refuse_to_fix_the_length()
    if torch.compiler.is_exporting():
        return export.linear_scan(decay, inputs, initial_state, reverse=reverse)
    if torch.jit.is_tracing():
        return operators.linear_loop(decay, inputs, initial_state, reverse=reverse)
    operators.refuse_forward_derivatives(decay, inputs, initial_state)
    return operators.linear_scan(decay, inputs, initial_state, reverse=reverse)
