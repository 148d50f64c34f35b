"""Which of the kernels in Triton runs. Neither a GPU nor Triton is needed to ask."""

import types

import keras
import pytest

if keras.config.backend() != "torch":
    pytest.skip("kernels of PyTorch", allow_module_level=True)

import torch

from keras_coffee.backend.torch import gpu_kernels


# The shapes lie around and between the two rules: what is parallel for the one may not be for the
# other. `n` is 2.
@pytest.mark.parametrize(
    ("shape", "coffee", "selective"),
    [
        ((2, 5, 4), "sequential", "sequential"),
        ((2, 600, 4), "sequential", "parallel"),
        ((2, 2000, 200), "parallel", "sequential"),
        ((2, 2000, 4), "parallel", "parallel"),
        ((2, 2000, 2000), "sequential", "sequential"),
    ],
)
def test_forward_and_backward_are_run_by_the_same_kernels(monkeypatch, shape, coffee, selective):
    def load(name):
        module = name.removeprefix("keras_coffee.backend.torch.")
        return types.SimpleNamespace(
            forward=lambda *_, **__: (module, "forward"),
            backward=lambda *_, **__: ([module], ["backward"], None),
            RECURRENCE=module,
        )

    monkeypatch.setattr(gpu_kernels.importlib, "import_module", load)
    inputs, weight = torch.zeros(shape), torch.zeros(shape[2], 2)
    for recurrence, kind in (("coffee", coffee), ("selective", selective)):
        absent = [None] * (len(gpu_kernels.RECURRENCES[recurrence].sequences) - 1)
        tensors = [inputs, *absent, weight, None]
        module = f"triton_{kind}"
        results = gpu_kernels.scan("forward", recurrence, *tensors, None, keep=1)
        assert results == (module, "forward")
        grads = gpu_kernels.scan("backward", recurrence, None, None, None, *tensors, keep=1)
        assert grads == (module, "backward")
    state = inputs[:, 0]
    states = gpu_kernels.linear_forward(inputs, inputs, state, reverse=False)
    assert states == ("triton_linear", "forward")
    grads = gpu_kernels.linear_backward(inputs, inputs, inputs, state, reverse=False)
    assert grads == (["triton_linear"], ["backward"], None)


def test_every_recurrence_has_a_kernel_for_every_shape():
    shapes = [gpu_kernels.Shape(*s) for s in ((0, 0, 1), (1, 1, 1), (10**6, 10**6, 10**3))]
    for recurrence in {kernel.recurrence for kernel in gpu_kernels.KERNELS}:
        for shape in shapes:
            kernels = [k for k in gpu_kernels.KERNELS if k.recurrence == recurrence]
            assert any(kernel.suits(shape) for kernel in kernels)
