"""The scans as operators: PyTorch's own checks, `torch.compile`, exported programs."""

import keras
import numpy as np
import pytest
from scans import coffee_arrays, selective_arrays

if keras.config.backend() != "torch":
    pytest.skip("kernels of PyTorch", allow_module_level=True)

import torch
from torch_scans import SCANS, assert_equal, leaves, results_and_gradients

from keras_coffee import CoffeeLayer
from keras_coffee.backend.torch import operators
from keras_coffee.ops import coffee_scan


def coffee_sample(dtype, keep, masked, requires_grad=False):
    arrays = coffee_arrays((2, 4, 3, 2))
    names = "transition", "gate", "readout", "input_matrix", "output_gate"
    tensors = [
        torch.tensor(x, dtype=dtype)
        for x in (arrays["inputs"], np.stack([arrays[n] for n in names]), arrays["initial_state"])
    ]
    inputs, weights, state = (x.requires_grad_(requires_grad) for x in tensors)
    mask = torch.ones(2, 4, dtype=dtype).tril() if masked else None
    options = {"feedback": "sigmoid", "has_input_matrix": True, "has_output_gate": True}
    return (inputs, mask, weights, state), {**options, "keep": keep}


def selective_sample(dtype, keep, fixed, requires_grad=False):
    arrays = selective_arrays((2, 4, 3, 2), varying=(True, not fixed))
    tensors = [torch.tensor(x, dtype=dtype) for x in arrays.values()]
    tensors = tuple(x.requires_grad_(requires_grad) for x in tensors)
    return tensors, {"discretization": "zoh", "keep": keep}


OPERATORS = {
    "coffee": (coffee_sample, operators.coffee_forward, operators.coffee_backward),
    "selective": (selective_sample, operators.selective_forward, operators.selective_backward),
}


@pytest.mark.parametrize(
    ("dtype", "keep", "variant"),
    [(torch.float32, 0, False), (torch.float64, 1, True), (torch.float32, 3, False)],
    ids=str,
)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_pass_the_checks_of_pytorch(name, dtype, keep, variant):
    sample, forward, backward = OPERATORS[name]
    args, options = sample(dtype, keep, variant, requires_grad=keep > 0)
    torch.library.opcheck(forward, args, options)
    if keep:
        args, options = sample(dtype, keep, variant)
        outputs, final_state, kept = forward(*args, **options)
        args = outputs, final_state, kept, *args[:-1]
        torch.library.opcheck(backward, args, options)


@SCANS
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_compiled_scans_are_one_graph_of_any_batch_and_length(scan, make, recompute):
    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager")
    for shape in ((2, 6, 3, 2), (3, 9, 3, 2)):
        tensors = leaves(make(shape))
        actual = results_and_gradients(compiled, tensors, recompute=recompute)
        assert_equal(actual, results_and_gradients(scan, tensors, recompute=recompute))
    with torch.no_grad():
        assert_equal(compiled(**tensors), scan(**tensors))


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # PyTorch's own
def test_the_default_compiler_of_pytorch():
    tensors = leaves(coffee_arrays((2, 6, 3, 2)))

    def scan(inputs, **others):
        outputs, final_state = coffee_scan(torch.sin(inputs), **others)
        return torch.cos(outputs), final_state

    actual = results_and_gradients(torch.compile(scan, fullgraph=True), tensors)
    for a, e in zip(actual, results_and_gradients(scan, tensors), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


def test_a_compiled_layer_is_one_graph():
    layer = CoffeeLayer(4, output_filter=True, use_input_matrix=True)
    layer.build((2, 6, 3))
    inputs = torch.tensor(coffee_arrays((2, 6, 3, 4))["inputs"], requires_grad=True)
    weights = [w.value for w in layer.trainable_weights]
    results = []
    for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        outputs = call(inputs)
        results.append([outputs, *torch.autograd.grad((outputs**2).sum(), [inputs, *weights])])
    assert_equal(*results)


def test_exported_programs_do_without_the_operators():
    layer = CoffeeLayer(4)
    layer.build((2, 6, 3))
    inputs = torch.tensor(coffee_arrays((2, 6, 3, 4))["inputs"])
    program = torch.export.export(layer, (inputs,))
    assert "keras_coffee" not in str(program.graph)
    torch.testing.assert_close(program.module()(inputs), layer(inputs))
