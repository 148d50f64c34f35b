"""The Triton kernels for PyTorch against float64 oracles, with NaN in all buffers beforehand.

On a GPU if there is one, else in Triton's interpreter, which must be chosen before Triton is
imported.
"""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import oracles
import pytest
from scans import assert_matches, coffee_arrays, cotangents_of, selective_arrays

if keras.config.backend() != "torch" or importlib.util.find_spec("triton") is None:
    pytest.skip("kernels of PyTorch that need Triton", allow_module_level=True)

import torch

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

from keras_coffee.backend.torch import triton_math
from keras_coffee.backend.torch.triton_coffee import coffee_backward, coffee_forward
from keras_coffee.backend.torch.triton_selective import selective_backward, selective_forward

# NumPy, in the interpreter, says where numbers overflow in branches that are not taken.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{what} encountered:RuntimeWarning")
    for what in ("overflow", "invalid value", "divide by zero")
]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def nan_in_new_buffers():
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3, device=DEVICE).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["few pairs", "many pairs"])
def tiling(request, monkeypatch):
    """As if the card were filled at once: then all states of a pair are in one lane."""
    if request.param == "many pairs":
        monkeypatch.setattr(triton_math, "_LANES", 1)


class Kernels(torch.autograd.Function):
    """A pair of kernels, `saved` between the state to start from and the keyword arguments."""

    @staticmethod
    def forward(ctx, forward, backward, options, state, *tensors):
        *results, kept = forward(*tensors, state, **options)
        ctx.save_for_backward(kept, *tensors)
        ctx.backward_of, ctx.options = backward, options
        return tuple(results)

    @staticmethod
    def backward(ctx, by_outputs, by_final):
        *grads, by_state = ctx.backward_of(
            by_outputs.contiguous(), by_final.contiguous(), *ctx.saved_tensors, **ctx.options
        )
        return None, None, None, by_state, *grads


def coffee(keep, feedback="sigmoid", mask=None):
    def scan(inputs, transition, gate, readout, initial_state, **optional):
        names = [name for name in ("input_matrix", "output_gate") if name in optional]
        weights = torch.stack([transition, gate, readout, *(optional[name] for name in names)])
        options = {f"has_{name}": name in names for name in ("input_matrix", "output_gate")}
        options |= {"feedback": feedback, "keep": keep}

        def forward(inputs, weights, state, **options):
            return coffee_forward(inputs, mask_as(inputs), weights, state, **options)

        def backward(by_outputs, by_final, kept, inputs, weights, **options):
            tensors = inputs, mask_as(inputs), weights
            return coffee_backward(by_outputs, by_final, kept, *tensors, **options)

        return Kernels.apply(forward, backward, options, initial_state, inputs, weights)

    def mask_as(inputs):
        return None if mask is None else torch.tensor(mask, dtype=inputs.dtype, device=DEVICE)

    return scan


def selective(keep, discretization="zoh"):
    def scan(inputs, delta, transition, input_matrix, output_matrix, initial_state):
        tensors = inputs, delta, transition, input_matrix, output_matrix
        options = {"discretization": discretization, "keep": keep}
        return Kernels.apply(
            selective_forward, selective_backward, options, initial_state, *tensors
        )

    return scan


def check_coffee(arrays, keep=1, dtype="float64", feedback="sigmoid"):
    def oracle(*args):
        return oracles.coffee(*args, feedback=feedback)

    assert_matches(coffee(keep, feedback), oracle, arrays, cotangents_of(arrays), dtype)


def check_selective(arrays, keep=1, dtype="float64", discretization="zoh"):
    def oracle(*args):
        return oracles.selective(*args, discretization=discretization)

    assert_matches(selective(keep, discretization), oracle, arrays, cotangents_of(arrays), dtype)


def coffee_arrays_for(feedback, shape, optional=True):
    if feedback != "linear":
        return coffee_arrays(shape, optional=optional)
    arrays = coffee_arrays(shape, gate_scale=0.05, input_scale=1.0, optional=optional)
    return arrays | {name: abs(arrays[name]) for name in ("gate", "initial_state")}


# Seventeen steps are two groups of those that are loaded together, and one step.
@pytest.mark.parametrize("output_gate", [False, True], ids=["", "output_gate"])
@pytest.mark.parametrize("input_matrix", [False, True], ids=["", "input_matrix"])
@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_coffee_with_every_option(feedback, input_matrix, output_gate):
    arrays = coffee_arrays_for(feedback, (1, 17, 2, 2))
    if not input_matrix:
        del arrays["input_matrix"]
    if not output_gate:
        del arrays["output_gate"]
    check_coffee(arrays, 5 if input_matrix else 1, feedback=feedback)


# One state, a number of states that is no power of two, pairs that do not fill a tile, and as many
# states as take several warps.
SHAPES = [(1, 1, 1, 1), (1, 3, 1, 3), (3, 2, 11, 1), (2, 2, 17, 4), (1, 2, 2, 500), (0, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_coffee_of_every_shape(shape, tiling):
    check_coffee(coffee_arrays(shape), 2, dtype="float32")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selective_of_every_shape(shape, tiling):
    check_selective(selective_arrays(shape), 2, dtype="float32")


@pytest.mark.parametrize("keep", [1, 2, 4, 100])
def test_states_kept_at_any_distance(keep):
    check_coffee(coffee_arrays((1, 9, 2, 2), optional=False), keep)
    check_selective(selective_arrays((1, 9, 2, 2)), keep)


@pytest.mark.parametrize("scale", [(0.5, 1.0), (2.0, 3.0)], ids=["gentle", "hard"])
def test_coffee_of_many_steps_in_float32(scale):
    gate_scale, input_scale = scale
    arrays = coffee_arrays((1, 25, 2, 3), gate_scale=gate_scale, input_scale=input_scale)
    check_coffee(arrays, 8, dtype="float32")


@pytest.mark.parametrize(
    ("discretization", "varying"),
    [
        ("zoh", (True, False)),
        ("zoh", (False, True)),
        ("zoh", (False, False)),
        ("euler", (True, True)),
        ("euler", (False, False)),
    ],
    ids=str,
)
def test_selective_with_every_option(discretization, varying):
    arrays = selective_arrays((2, 6, 3, 2), varying=varying)
    if discretization == "euler":
        arrays["delta"] /= arrays["delta"].max()
    check_selective(arrays, 1 if varying[0] else 4, discretization=discretization)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_order_hold_near_zero_at_the_seam_and_far_out(dtype):
    exponents = [0, 1e-30, 1e-8, 1e-4, 1e-2, 0.1, 0.3, 0.4999999, 0.5, 0.5000001, 0.7, 2, 5, 50]
    exponents = [sign * x for x in exponents for sign in (-1, 1)] + [-1e3, -1e6, -1e12]
    transition, delta = np.array([(z, 1) for z in exponents] + [(0, 0), (-1, 0)], "float32").T
    arrays = selective_arrays((1, 1, len(delta), 1))
    check_selective(
        arrays | {"transition": transition[:, None], "delta": delta[None, None]}, dtype=dtype
    )


def test_saturated_gates():
    # Where e^x overflows, 1 / (1 + e^x) is zero and not NaN.
    arrays = coffee_arrays((1, 3, 6, 1))
    for name in ("gate", "output_gate"):
        arrays[name][:, 0] = [0, 1e2, -1e2, 1e4, -1e30, 1]
    arrays["initial_state"][:] = 1
    check_coffee(arrays, dtype="float32")


MASK = np.ones((2, 9))
MASK[0, 4:6] = MASK[0, 8] = MASK[1, :3] = 0


@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_a_masked_step_is_no_step(feedback):
    def scan(inputs, **tensors):
        is_step = torch.tensor(MASK > 0, device=DEVICE)
        whole = inputs.new_zeros(*MASK.shape, inputs.shape[-1])
        whole[is_step] = inputs.reshape(-1, inputs.shape[-1])
        outputs, final_state = coffee(2, feedback, MASK)(whole, **tensors)
        held = outputs[0, 4:6].detach()
        assert torch.equal(held, outputs[0, 3].expand_as(held))
        return outputs[is_step].reshape(inputs.shape), final_state

    arrays = coffee_arrays_for(feedback, (2, 6, 3, 2))

    def oracle(*args):
        return oracles.coffee(*args, feedback=feedback)

    assert_matches(scan, oracle, arrays, cotangents_of(arrays), "float64")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["coffee", "selective"])
def test_low_precision_is_accumulated_in_float32(name, dtype):
    shape = (2, 5, 3, 2)
    make, scan = {
        "coffee": (coffee_arrays, coffee(1)),
        "selective": (selective_arrays, selective(1)),
    }[name]
    tensors = {k: torch.tensor(v, device=DEVICE) for k, v in make(shape).items()}
    results = []
    low = tensors["inputs"].to(dtype)
    for inputs in (low, low.float()):
        leaves = {k: v.clone().requires_grad_() for k, v in (tensors | {"inputs": inputs}).items()}
        outputs, final_state = scan(**leaves)
        assert outputs.dtype == inputs.dtype and final_state.dtype == torch.float32
        # Powers of two, so that the low precision has the very same cotangents.
        by_outputs, by_final = torch.ones_like(outputs), torch.ones_like(final_state)
        grads = torch.autograd.grad(
            [outputs, final_state], list(leaves.values()), [by_outputs, by_final]
        )
        assert [g.dtype for g in grads] == [leaf.dtype for leaf in leaves.values()]
        results.append([outputs, final_state, *grads])
    for actual, expected in zip(*results, strict=True):
        kind = torch.finfo(actual.dtype)
        expected = expected.to(actual.dtype).double()
        torch.testing.assert_close(actual.double(), expected, rtol=4 * kind.eps, atol=1e-6)


def test_nothing_is_kept_for_inference():
    arrays = {k: torch.tensor(v, device=DEVICE) for k, v in coffee_arrays((1, 5, 2, 2)).items()}
    weights = torch.stack([arrays[k] for k in ("transition", "gate", "readout")])
    options = {"feedback": "sigmoid", "has_input_matrix": False, "has_output_gate": False}
    start = arrays["initial_state"]
    runs = [
        coffee_forward(arrays["inputs"], None, weights, start, keep=keep, **options)
        for keep in (0, 1, 2)
    ]
    assert [kept.numel() for *_, kept in runs] == [0, 5 * 4, 3 * 4]
    for outputs, final_state, _ in runs[1:]:
        assert torch.equal(outputs, runs[0][0]) and torch.equal(final_state, runs[0][1])

    arrays = {k: torch.tensor(v, device=DEVICE) for k, v in selective_arrays((1, 5, 2, 2)).items()}
    runs = [
        selective_forward(*arrays.values(), discretization="zoh", keep=keep) for keep in (0, 1, 2)
    ]
    assert [kept.numel() for *_, kept in runs] == [0, 5 * 4, 3 * 4]
    for outputs, final_state, _ in runs[1:]:
        assert torch.equal(outputs, runs[0][0]) and torch.equal(final_state, runs[0][1])


COMPILE = """
import json, os, re, subprocess, sys, tempfile
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from keras_coffee.backend.torch import triton_coffee, triton_math, triton_selective

triton_math._LANES = 1  # many pairs: the variants that need most registers
BACKENDS = os.path.join(os.path.dirname(triton.__file__), "backends")
CUOBJDUMP = os.path.join(BACKENDS, "nvidia", "bin", "cuobjdump")
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
results = {}


class Compiled:
    # In place of a kernel: compiles what would be launched.
    def __init__(self, name, kernel):
        self.name, self.kernel = name, kernel

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, num_warps, **constants):
        signature, attributes = dict.fromkeys(constants, "constexpr"), {}
        for i, (name, x) in enumerate(zip(self.kernel.arg_names, args)):
            signature[name] = "i32" if isinstance(x, int) else "constexpr"
            if x is None:
                constants[name] = None
            elif torch.is_tensor(x):
                signature[name], attributes[(i,)] = TYPES[x.dtype], [["tt.divisibility", 16]]
        signature = {name: signature[name] for name in self.kernel.arg_names}
        source = ASTSource(self.kernel, signature, constants, attributes)
        target = GPUTarget("cuda", 90, 32)
        program = triton.compile(source, target=target, options={"num_warps": num_warps})
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(program.asm["cubin"])
            file.flush()
            command = [CUOBJDUMP, "--dump-resource-usage", file.name]
            report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        # What does not fit into registers is spilled to the stack.
        found = re.search(r"REG:(\\d+) STACK:(\\d+)", report)
        results[self.name] = {"registers": int(found[1]), "spilled": int(found[2])}


for module in (triton_coffee, triton_selective):
    for name in ("_forward", "_backward"):
        setattr(module, name, Compiled(module.__name__ + name, getattr(module, name)))
u, n = torch.zeros(2, 64, 32, dtype=torch.bfloat16), 8
delta, mask, matrix, state = map(torch.zeros, ((2, 64, 32), (2, 64), (2, 64, n), (2, 32, n)))
weights = torch.zeros(5, 32, n)
options = {"feedback": "sigmoid", "has_input_matrix": True, "has_output_gate": True, "keep": 8}
_, _, kept = triton_coffee.coffee_forward(u, mask, weights, state, **options)
triton_coffee.coffee_backward(u, state, kept, u, mask, weights, **options)
options = {"discretization": "zoh", "keep": 8}
arguments = u, delta, weights[0], matrix, matrix
_, _, kept = triton_selective.selective_forward(*arguments, state, **options)
triton_selective.selective_backward(u, state, kept, *arguments, **options)
print(json.dumps(results))
"""


def test_kernels_compile_for_a_gpu_and_spill_no_registers(tmp_path):
    # Elsewhere, because here kernels are interpreted; and anew, whatever a cache has.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", COMPILE]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout.splitlines()[-1])
    assert len(results) == 4
    for name, result in results.items():
        assert result["spilled"] == 0, f"{name}: {result}"
