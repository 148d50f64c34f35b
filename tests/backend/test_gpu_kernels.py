"""Which of the kernels in Triton runs. Neither a GPU nor Triton is needed to ask."""

import types

import keras
import pytest

if keras.config.backend() != "torch":
    pytest.skip("kernels of PyTorch", allow_module_level=True)

import torch

from keras_coffee.backend.torch import gpu_kernels


@pytest.mark.parametrize(
    ("recurrence", "length", "pairs", "n", "expected"),
    [
        ("coffee", 1024, 256, 8, "parallel"),
        ("coffee", 1023, 256, 8, "sequential"),
        ("coffee", 1024, 257, 8, "sequential"),
        ("coffee", 1024, 2048, 1, "parallel"),
        ("selective", 512, 256, 16, "parallel"),
        ("selective", 511, 256, 16, "sequential"),
        ("selective", 512, 257, 1, "sequential"),
        ("coffee", 1, 1, 1, "sequential"),
        ("selective", 1, 1, 1, "sequential"),
    ],
)
def test_parallel_in_time_for_few_channels_and_many_steps(recurrence, length, pairs, n, expected):
    assert gpu_kernels.kind(recurrence, length, pairs, n) == expected


# The shapes lie between the two rules: what is parallel for the one is not for the other.
@pytest.mark.parametrize(
    ("shape", "coffee", "selective"),
    [
        ((2, 600, 4), "triton_coffee", "triton_chunked_selective"),
        ((2, 2000, 200), "triton_newton", "triton_selective"),
        ((2, 2000, 4), "triton_newton", "triton_chunked_selective"),
        ((2, 5, 4), "triton_coffee", "triton_selective"),
    ],
)
def test_the_gradient_is_computed_by_what_kept_the_states(monkeypatch, shape, coffee, selective):
    def load(name):
        module = name.removeprefix("keras_coffee.backend.torch.")
        names = [f"{x}_{y}" for x in ("coffee", "selective") for y in ("forward", "backward")]
        return types.SimpleNamespace(**{x: lambda *_, x=x, **__: (module, x) for x in names})

    monkeypatch.setattr(gpu_kernels.importlib, "import_module", load)
    inputs, weights, transition = torch.zeros(shape), torch.zeros(3, shape[2], 2), torch.zeros(4, 2)
    forward = gpu_kernels.coffee_forward(inputs, None, weights, None, keep=1)
    backward = gpu_kernels.coffee_backward(None, None, None, inputs, None, weights, keep=1)
    assert forward == (coffee, "coffee_forward") and backward == (coffee, "coffee_backward")
    forward = gpu_kernels.selective_forward(inputs, None, transition, None, keep=1)
    backward = gpu_kernels.selective_backward(None, None, None, inputs, None, transition, None)
    assert forward == (selective, "selective_forward")
    assert backward == (selective, "selective_backward")
