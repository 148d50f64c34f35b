"""Which of the kernels in Triton runs a scan on a GPU. They are loaded when they are first needed.

TensorFlow must not be imported before Triton, and a machine without a GPU needs neither.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch

from keras_coffee.backend.cpu.kernels import RECURRENCES


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


def scan(direction, name, *tensors, keep, **options):
    """What `"forward"` or `"backward"` of a recurrence returns, as `cpu.kernels.scan` says.

    Args:
        direction: `"forward"` or `"backward"`.
        name: `"coffee"` or `"selective"`.
        *tensors: Sequences, weights and the initial state; or the gradients of outputs and final
            state, what was kept, sequences and weights. None where one is absent.
        keep: How many steps lie between two states that are kept for the gradient, 0 for none.
        **options: `feedback`; or `discretization` and `delta_softplus`.
    """
    grads, own = ((), tensors[:-1]) if direction == "forward" else (tensors[:3], tensors[3:])
    count = len(RECURRENCES[name].sequences)
    sequences, weights = own[:count], own[count:]
    batch, length, dim = sequences[0].shape
    driver, definition = _kernel(name, Shape(length, batch * dim, weights[0].shape[-1]))
    options |= {"keep": keep}
    if direction == "forward":
        return driver.forward(definition, sequences, weights, tensors[-1], **options)
    of_sequences, of_weights, of_state = driver.backward(
        definition, *grads, sequences, weights, **options
    )
    return tuple(x for x in (*of_sequences, *of_weights, of_state) if x is not None)


def linear_forward(decay, inputs, state, *, reverse):
    """All states of h_t = a_t h_{t-1} + b_t, as `triton_linear` says."""
    kernels, _ = _kernel("linear", Shape(inputs.shape[1], state.numel(), 1))
    return kernels.forward(decay, inputs, state, reverse=reverse)


def linear_backward(grad_states, states, decay, state, *, reverse):
    """Gradients by decay, inputs and initial state."""
    kernels, _ = _kernel("linear", Shape(states.shape[1], state.numel(), 1))
    return kernels.backward(grad_states, states, decay, state, reverse=reverse)


def _kernel(recurrence, shape):
    """The module that runs it, and what defines the recurrence, which a general driver needs."""
    name = next(k.module for k in KERNELS if k.recurrence == recurrence and k.suits(shape))
    return _load(name), getattr(_load(f"triton_{recurrence}"), "RECURRENCE", None)


def _load(name):
    return importlib.import_module(f"keras_coffee.backend.torch.{name}")
