"""Which of the kernels in Triton runs a scan on a GPU. They are loaded when they are first needed.

TensorFlow must not be imported before Triton, and a machine without a GPU needs neither.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch


class Shape(NamedTuple):
    """The steps of a scan, its pairs of sequence and feature, and the states of each."""

    length: int
    pairs: int
    n: int


class Kernel(NamedTuple):
    """What runs a recurrence if a scan's shape satisfies `suits`."""

    recurrence: str
    suits: Callable[[Shape], bool]
    module: str


# The first that suits is taken. Parallel kernels do more work, so they pay where there is too
# little of it to fill a card, and where time is long enough to be cut up. COFFEE takes some passes
# over the states by Newton's method, and their number counts; the selective scan one pass more,
# whatever the data. The bounds are estimates, from counting instructions: nothing was timed on a
# card yet. The gradient must be computed by what kept the states, so only what both passes know
# may decide.
KERNELS = (
    Kernel("coffee", lambda s: s.length >= 1024 and s.pairs * s.n <= 2048, "triton_parallel"),
    Kernel("coffee", lambda s: True, "triton_sequential"),
    Kernel("selective", lambda s: s.length >= 512 and s.pairs <= 256, "triton_parallel"),
    Kernel("selective", lambda s: True, "triton_sequential"),
    Kernel("linear", lambda s: True, "triton_linear"),
)


@torch.compiler.assume_constant_result
def is_available():
    """Whether there is an NVIDIA GPU that Triton knows, and Triton, as with PyTorch on Linux."""
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability() >= (7, 0)


def forward(recurrence, sequences, weights, state, *, keep, **options):
    """Outputs `(B, T, D)`, the final state `(B, D, n)`, and the states before every `keep`-th step.

    Args:
        recurrence: `"coffee"` or `"selective"`.
        sequences: `[inputs, mask]`, `mask` `(B, T)` or None; or `[inputs, delta, input_matrix,
            output_matrix]`, matrices over time `(B, T, n)` or None.
        weights: `[transition, gate, readout, input_matrix, output_gate]`, the last two or None; or
            `[transition, input_matrix, output_matrix]`, None where it is a sequence. All `(D, n)`.
        state: The initial state.
        keep: How many steps lie between two states that are kept for `backward`, 0 for none.
        **options: `feedback` or `discretization`.
    """
    driver, definition = _kernel(recurrence, _shape(sequences, weights))
    return driver.forward(definition, sequences, weights, state, keep=keep, **options)


def backward(recurrence, grad_outputs, grad_final, kept, sequences, weights, *, keep, **options):
    """Gradients by the sequences and the weights, lists like these, and by the initial state."""
    driver, definition = _kernel(recurrence, _shape(sequences, weights))
    tensors = grad_outputs, grad_final, kept, sequences, weights
    return driver.backward(definition, *tensors, keep=keep, **options)


def linear_forward(decay, inputs, state, *, reverse):
    """All states of h_t = a_t h_{t-1} + b_t, as `triton_linear` says."""
    kernels, _ = _kernel("linear", Shape(inputs.shape[1], state.numel(), 1))
    return kernels.forward(decay, inputs, state, reverse=reverse)


def linear_backward(grad_states, states, decay, state, *, reverse):
    """Gradients by decay, inputs and initial state."""
    kernels, _ = _kernel("linear", Shape(states.shape[1], state.numel(), 1))
    return kernels.backward(grad_states, states, decay, state, reverse=reverse)


def _shape(sequences, weights):
    batch, length, dim = sequences[0].shape
    return Shape(length, batch * dim, weights[0].shape[-1])


def _kernel(recurrence, shape):
    """The module that runs it, and what defines the recurrence, which a general driver needs."""
    name = next(k.module for k in KERNELS if k.recurrence == recurrence and k.suits(shape))
    return _load(name), getattr(_load(f"triton_{recurrence}"), "RECURRENCE", None)


def _load(name):
    return importlib.import_module(f"keras_coffee.backend.torch.{name}")
