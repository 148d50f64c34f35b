"""The scans as operators: PyTorch's own checks, `torch.compile`, exported programs."""

import keras
import pytest
from recurrent import COFFEE_OPTIONS
from scans import coffee_arrays, selective_arrays

if keras.config.backend() != "torch":
    pytest.skip("kernels of PyTorch", allow_module_level=True)

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_scans import SCANS, assert_equal, leaves, results_and_gradients

from keras_coffee import CoffeeLayer
from keras_coffee.backend.torch import operators
from keras_coffee.layers import MinGRU
from keras_coffee.ops import coffee_scan, linear_scan


def coffee_sample(dtype, full, requires_grad=False):
    """With a mask, resets, inputs and a bias of the gate, or without."""
    arrays = coffee_arrays((2, 4, 3, 2), gated=full)
    names = "transition", "gate", "readout", "input_matrix", "output_gate", "gate_bias"
    tensors = {k: torch.tensor(x, dtype=dtype) for k, x in arrays.items()}
    tensors = {k: x.requires_grad_(requires_grad) for k, x in tensors.items()}
    marks = [torch.ones(2, 4, dtype=dtype).tril(k) if full else None for k in (0, -2)]
    sequences = tensors["inputs"], tensors.get("gate_inputs"), *marks
    weights = (tensors.get(k) for k in names)
    return (*sequences, *weights, tensors["initial_state"]), {"feedback": "sigmoid"}


def selective_sample(dtype, fixed, requires_grad=False):
    arrays = selective_arrays((2, 4, 3, 2), varying=(True, not fixed), skip=fixed)
    tensors = {k: torch.tensor(x, dtype=dtype) for k, x in arrays.items()}
    tensors = {k: x.requires_grad_(requires_grad) for k, x in tensors.items()}
    names = "inputs", "delta", "input_matrix", "output_matrix"
    sequences = [*(tensors[k] for k in names), None]
    weights = [tensors["transition"], *[None] * 3]
    options = {"discretization": "mamba" if fixed else "zoh", "delta_softplus": fixed}
    if fixed:
        sequences[3], weights[2] = None, sequences[3]
        weights[3] = tensors["skip"].detach()[:, None].requires_grad_(requires_grad)
    return (*sequences, *weights, tensors["initial_state"]), options


SAMPLES = {"coffee": coffee_sample, "selective": selective_sample}


@pytest.mark.parametrize(
    ("dtype", "keep", "variant"),
    [(torch.float32, 0, False), (torch.float64, 1, True), (torch.float32, 3, False)],
    ids=str,
)
@pytest.mark.parametrize("name", SAMPLES)
def test_operators_pass_the_checks_of_pytorch(name, dtype, keep, variant):
    args, options = SAMPLES[name](dtype, variant, requires_grad=keep > 0)
    options["keep"] = keep
    torch.library.opcheck(operators.SCANS[name].forward, args, options)
    if keep:
        args, _ = SAMPLES[name](dtype, variant)
        outputs, final_state, kept = operators.SCANS[name].forward(*args, **options)
        args = outputs, final_state, kept, *args[:-1]
        torch.library.opcheck(operators.SCANS[name].backward, args, options)


@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_the_linear_operators_pass_them_too(dtype, reverse):
    inputs, state = torch.randn(2, 5, 3, dtype=dtype), torch.randn(2, 3, dtype=dtype)
    decay = torch.randn(1, 5, 3, dtype=dtype)
    args = [x.requires_grad_() for x in (decay, inputs, state)]
    torch.library.opcheck(operators.linear_scan.forward, args, {"reverse": reverse})
    decay, inputs, state = (x.detach() for x in args)
    args = inputs, inputs, decay, state
    torch.library.opcheck(operators.linear_scan.backward, args, {"reverse": reverse})


class Operators(TorchDispatchMode):
    """Names of the operators of this package that it has seen."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "keras_coffee":
            self.seen.add(function.name())
        return function(*args, **kwargs or {})


def answers_and_gradients(scan, *tensors):
    tensors = [x.clone().requires_grad_() for x in tensors]
    outputs, state = scan(*tensors)
    (outputs.square().sum() + state.sum()).backward()
    return outputs, state, *(x.grad for x in tensors)


@pytest.mark.parametrize("scan", [coffee_scan, linear_scan])
def test_a_dispatch_mode_sees_operators_with_the_same_answers(scan):
    inputs = torch.randn(2, 5, 3)
    weights = [torch.rand(2, 5, 3)] if scan is linear_scan else [torch.rand(3, 2)] * 3
    tensors = (*weights, inputs) if scan is linear_scan else (inputs, *weights)
    expected = answers_and_gradients(scan, *tensors)
    with Operators() as mode:
        found = answers_and_gradients(scan, *tensors)
    name = "linear" if scan is linear_scan else "coffee"
    assert mode.seen == {f"keras_coffee::{name}_{k}" for k in ("forward", "backward")}
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


SCANS_OF_INPUTS = pytest.mark.parametrize(
    ("name", "scan"),
    [
        ("coffee", lambda x: coffee_scan(x, *[torch.ones(3, 2)] * 3)[0]),
        ("linear", lambda x: linear_scan(torch.full_like(x, 0.5), x)[0]),
    ],
    ids=["coffee", "linear"],
)


@SCANS_OF_INPUTS
def test_who_looks_at_the_backward_pass_only_sees_its_operator(name, scan):
    inputs = torch.rand(2, 5, 3, requires_grad=True)
    outputs = scan(inputs)
    (expected,) = torch.autograd.grad(outputs.sum(), inputs, retain_graph=True)
    with Operators() as mode:
        (found,) = torch.autograd.grad(outputs.sum(), inputs, retain_graph=True)
    assert mode.seen == {f"keras_coffee::{name}_backward"}
    assert torch.equal(found, expected)
    ones = torch.ones_like(outputs)
    (found,) = torch.autograd.grad(outputs, inputs, TwoTensor(ones, ones), retain_graph=True)
    assert torch.equal(found.a, expected)
    assert torch.equal(found.b, expected)
    with FakeTensorMode(allow_non_fake_inputs=True):
        (found,) = torch.autograd.grad(outputs, inputs, torch.ones(2, 5, 3))
    assert isinstance(found, FakeTensor)


@SCANS_OF_INPUTS
def test_tensors_of_zeros_without_memory(name, scan):
    inputs = torch.rand(2, 5, 3, requires_grad=True)
    (found,) = torch.autograd.grad(torch.sgn(scan(inputs)).sum(), inputs)
    assert torch.equal(found, torch.zeros(2, 5, 3))
    assert torch.equal(scan(torch._efficientzerotensor((2, 5, 3))), torch.zeros(2, 5, 3))
    wrapped = scan(torch._to_functional_tensor(torch.rand(2, 5, 3)))
    assert torch._is_functional_tensor(wrapped)


def test_a_batch_of_gradients_of_a_linear_scan():
    inputs = torch.rand(2, 5, 3, requires_grad=True)
    outputs, _ = linear_scan(torch.full((2, 5, 3), 0.5), inputs)
    given = torch.randn(4, 2, 5, 3)
    (found,) = torch.autograd.grad(outputs, inputs, given, retain_graph=True, is_grads_batched=True)
    expected = [torch.autograd.grad(outputs, inputs, x, retain_graph=True)[0] for x in given]
    torch.testing.assert_close(found, torch.stack(expected))


@SCANS_OF_INPUTS
def test_profilers_and_function_modes_see_operators(name, scan):
    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.add(str(function))
            return function(*args, **kwargs or {})

    seen, inputs = set(), torch.rand(2, 5, 3, requires_grad=True)
    with Functions():
        scan(inputs)
    assert f"keras_coffee.{name}_forward.default" in seen
    with torch.autograd.profiler.profile() as profile:
        scan(inputs).sum().backward()
    names = {event.name for event in profile.function_events}
    assert {f"keras_coffee::{name}_{k}" for k in ("forward", "backward")} <= names


@SCANS_OF_INPUTS
def test_errors_and_graphs_of_pytorch_name_the_package(name, scan):
    outputs = scan(torch.rand(2, 5, 3, requires_grad=True))
    assert outputs.grad_fn.name() == "KerasCoffeeScanBackward"


def test_fake_tensors_and_subclasses_reach_operators():
    class Mine(torch.Tensor):
        pass

    tensors = [torch.rand(2, 5, 3), *[torch.rand(3, 2)] * 3]
    with FakeTensorMode() as mode:
        outputs, state = coffee_scan(*map(mode.from_tensor, tensors))
    assert (
        isinstance(outputs, FakeTensor) and outputs.shape == (2, 5, 3) and state.shape == (2, 3, 2)
    )
    outputs, _ = coffee_scan(tensors[0].as_subclass(Mine), *tensors[1:])
    assert isinstance(outputs, Mine)


def test_a_traced_graph_has_operators():
    weights = [torch.rand(3, 2)] * 3
    traced = make_fx(lambda inputs: coffee_scan(inputs, *weights)[0])(torch.rand(2, 5, 3))
    assert "keras_coffee.coffee_forward" in traced.code
    inputs = torch.rand(2, 5, 3)
    assert torch.equal(traced(inputs), coffee_scan(inputs, *weights)[0])


@SCANS_OF_INPUTS
def test_a_graph_traced_before_dispatch_has_both_operators(name, scan):
    def gradient(inputs):
        return torch.autograd.grad(scan(inputs).square().sum(), inputs)[0]

    inputs = torch.rand(2, 5, 3, requires_grad=True)
    traced = make_fx(gradient, pre_dispatch=True)(inputs)
    assert f"keras_coffee.{name}_backward" in traced.code
    torch.testing.assert_close(traced(inputs), gradient(inputs))


@pytest.mark.parametrize("kernels", ["1", "0"], ids=["kernel", "loop"])
def test_the_linear_operators_return_contiguous_tensors_of_views(kernels, monkeypatch):
    monkeypatch.setenv("KERAS_COFFEE_KERNELS", kernels)
    inputs, decay = (torch.randn(5, 2, 3).transpose(0, 1) for _ in range(2))
    state = torch.randn(3, 2).T
    args = [x.requires_grad_() for x in (decay, inputs, state)]
    torch.library.opcheck(operators.linear_scan.forward, args, {"reverse": False})
    decay, inputs, state = (x.detach() for x in args)
    args = inputs, inputs, decay, state
    torch.library.opcheck(operators.linear_scan.backward, args, {"reverse": False})
    assert all(x.is_contiguous() for x in operators.linear_scan.backward(*args, reverse=False))


def test_a_compiled_linear_scan_of_inputs_that_are_time_major():
    decay, inputs = torch.full((2, 5, 3), 0.5), torch.randn(5, 2, 3).transpose(0, 1)

    def scan(inputs):
        return linear_scan(decay, inputs)[0].transpose(0, 1).reshape(10, 3) * 2

    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs), scan(inputs))


@SCANS
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_compiled_scans_are_one_graph_of_any_batch_and_length(scan, make, recompute):
    torch.compiler.reset()  # or programs of other options would count
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
    layer = CoffeeLayer(4, **COFFEE_OPTIONS)
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


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, about what is traced and about tracing
def test_traced_programs_do_without_the_operators():
    layer = MinGRU(2)
    layer.build((2, 6, 3))
    inputs = torch.randn(2, 6, 3)
    program = torch.jit.trace(layer, (inputs,), check_trace=False)
    assert "keras_coffee::" not in str(program.inlined_graph)
    torch.testing.assert_close(program(inputs), layer(inputs))
