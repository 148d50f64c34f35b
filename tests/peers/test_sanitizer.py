"""Triton's kernels under the sanitizer of triton-viz: no program leaves a tensor.

The sanitizer runs a kernel once, for all programs and lanes, and computes nothing. An address is an
expression, and Z3 looks for a program and a lane for which it lies in no tensor.

The kernels that are parallel in time are left out. The sanitizer knows neither `tl.gather` nor
`tl.associative_scan`, nor for how long a loop runs whose end depends on data.
"""

import contextlib

import keras
import pytest

if keras.config.backend() != "torch":
    pytest.skip("Triton kernels belong to PyTorch", allow_module_level=True)
triton_viz = pytest.importorskip("triton_viz", reason="make .venv/installed-peers")

import torch  # noqa: E402
from triton_viz.clients.sanitizer import sanitizer as symbolic  # noqa: E402
from triton_viz.core import client  # noqa: E402

from keras_coffee.backend.torch import (  # noqa: E402
    triton_coffee,
    triton_linear,
    triton_selective,
    triton_sequential,
)

if torch.cuda.is_available():
    pytest.skip("the sanitizer needs Triton's interpreter", allow_module_level=True)


class Sanitizer(symbolic.SymbolicSanitizer):
    """Sees tensors in tuples too. Of each it takes the number at `end`, if any, for outside."""

    def __init__(self, end):
        super().__init__(abort_on_error=False)
        self.names, self.end = set(), end

    def pre_run_callback(self, fn):
        # By itself it passes over a launch that is like an earlier one of the process.
        return True

    def arg_callback(self, name, arg, converted):
        if isinstance(arg, tuple):
            for i, x in enumerate(arg):
                self.arg_callback(f"{name}.{i}", x, None)
            return
        super().arg_callback(name, arg, converted)
        if not isinstance(arg, torch.Tensor) or not arg.numel():
            return
        self.names.add(name)
        first, last, tensor = self.tensor_addrs.pop()
        first += arg.element_size() * (self.end == "first")
        last -= arg.element_size() * (self.end == "last")
        self.tensor_addrs.append((first, last, tensor))


@pytest.fixture(autouse=True)
def loops_run(monkeypatch):
    """Loops take one step after another.

    By itself the sanitizer takes all steps at once, and then no loop in a function of another file,
    and none in a loop: a step of the outer one may be any number.
    """
    monkeypatch.setattr(client, "patch_for_loop", lambda callbacks: None)
    # What the interpreter asks of a number that bounds a loop.
    wrapper = symbolic.SymbolicExprDataWrapper
    monkeypatch.setattr(wrapper, "squeeze", lambda self: self, raising=False)


@contextlib.contextmanager
def sanitized(module, end=None):
    sanitizer = Sanitizer(end)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_forward", "_backward"):
            kernel = getattr(module, name)
            patch.setattr(module, name, triton_viz.trace(sanitizer)(kernel))
        yield sanitizer
    triton_viz.clear()


def linear(dtype, reverse, decay_shape):
    inputs = torch.zeros(3, 19, 5, 3, dtype=dtype)
    decay, state = torch.zeros(decay_shape, dtype=dtype), torch.zeros(3, 5, 3, dtype=dtype)
    states = triton_linear.forward(decay, inputs, state, reverse=reverse)
    triton_linear.backward(inputs, states, decay, state, reverse=reverse)


def coffee(keep, has_options):
    batch, length, dim, n = SHAPE
    x, mark, w = (batch, length, dim), (batch, length), (dim, n)
    sequences, weights = [x, None, None, None], [w, w, w, None, None, None]
    if has_options:
        sequences, weights = [x, x, mark, mark], [w] * 6
    scan(triton_coffee.RECURRENCE, sequences, weights, keep, feedback="sigmoid")


def selective(keep, has_options, is_varying):
    batch, length, dim, n = SHAPE
    x, w = (batch, length, dim), (dim, n)
    matrices = [(batch, length, n)] * 2 if is_varying else [w] * 2
    varying, fixed = (matrices, [None] * 2) if is_varying else ([None] * 2, matrices)
    reset, by_feature = ((batch, length), (dim, 1)) if has_options else (None, None)
    options = {"discretization": "zoh", "delta_softplus": has_options}
    sequences, weights = [x, x, *varying, reset], [w, *fixed, by_feature, by_feature]
    scan(triton_selective.RECURRENCE, sequences, weights, keep, **options)


# No power of two, no multiple of the steps that are loaded together.
SHAPE = 3, 7, 5, 3


def scan(recurrence, sequences, weights, keep, **options):
    """The sequential kernels, forward and backward; sequences and weights by their shapes."""
    sequences = [None if shape is None else torch.zeros(shape) for shape in sequences]
    weights = [None if shape is None else torch.zeros(shape) for shape in weights]
    batch, length, dim, n = SHAPE
    state, by_final = torch.zeros(batch, dim, n), torch.zeros(batch, dim, n)
    options |= {"keep": keep}
    *_, kept = triton_sequential.forward(recurrence, sequences, weights, state, **options)
    if keep:
        tensors = torch.zeros(batch, length, dim), by_final, kept, sequences, weights
        triton_sequential.backward(recurrence, *tensors, **options)


def assert_clean(sanitizer):
    assert sanitizer.names
    assert not [record.user_code_tracebacks[-1] for record in sanitizer.records]


@pytest.mark.parametrize("end", ["first", "last"])
@pytest.mark.parametrize(
    ("module", "run"),
    [
        (triton_linear, lambda: linear(torch.complex64, False, (3, 19, 5, 3))),
        (triton_sequential, lambda: coffee(2, True)),
        (triton_sequential, lambda: selective(2, True, True)),
    ],
    ids=["linear", "coffee", "selective"],
)
def test_a_number_outside_of_a_tensor_is_reported(module, run, end):
    with sanitized(module, end) as sanitizer:
        run()
    assert {record.tensor_name for record in sanitizer.records} == sanitizer.names


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("decay_shape", [(3, 19, 5, 3), (1, 1, 5, 3)], ids=str)
def test_linear_kernels(dtype, reverse, decay_shape):
    with sanitized(triton_linear) as sanitizer:
        linear(dtype, reverse, decay_shape)
    assert_clean(sanitizer)


@pytest.mark.parametrize("has_options", [False, True])
@pytest.mark.parametrize(("keep", "lanes"), [(0, 2**15), (1, 1), (2, 2**15)])
def test_coffee_kernels(keep, lanes, has_options, monkeypatch):
    monkeypatch.setattr(triton_sequential, "_LANES", lanes)
    with sanitized(triton_sequential) as sanitizer:
        coffee(keep, has_options)
    assert_clean(sanitizer)


@pytest.mark.parametrize(
    ("has_options", "is_varying"), [(False, True), (True, False), (True, True)]
)
@pytest.mark.parametrize(("keep", "lanes"), [(1, 1), (2, 2**15)])
def test_selective_kernels(keep, lanes, has_options, is_varying, monkeypatch):
    monkeypatch.setattr(triton_sequential, "_LANES", lanes)
    with sanitized(triton_sequential) as sanitizer:
        selective(keep, has_options, is_varying)
    assert_clean(sanitizer)
