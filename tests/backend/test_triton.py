"""The Triton kernels for PyTorch against float64 oracles, with NaN in all buffers beforehand.

On a GPU if there is one, else in Triton's interpreter, which must be chosen before Triton is
imported.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import oracles
import pytest
from interpreter import start_once
from nightly import IS_NIGHTLY, product
from scans import (
    assert_matches,
    assert_same,
    coffee_arrays,
    cotangents_of,
    in_pieces,
    selective_arrays,
)

if keras.config.backend() != "torch" or importlib.util.find_spec("triton") is None:
    pytest.skip("kernels of PyTorch that need Triton", allow_module_level=True)

import torch

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

from keras_coffee.backend.torch import (
    triton_coffee,
    triton_linear,
    triton_selective,
    triton_sequential,
)

# NumPy, in the interpreter, says where numbers overflow in branches that are not taken.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{what} encountered:RuntimeWarning")
    for what in ("overflow", "invalid value", "divide by zero")
]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    start_once()


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
        monkeypatch.setattr(triton_sequential, "_LANES", 1)


class Kernels(torch.autograd.Function):
    """The sequential driver of a recurrence; `count` of the tensors are sequences."""

    @staticmethod
    def forward(ctx, recurrence, options, count, state, *tensors):
        ctx.save_for_backward(*tensors)
        sequences, weights = tensors[:count], tensors[count:]
        *results, ctx.kept = triton_sequential.forward(
            recurrence, list(sequences), list(weights), state, **options
        )
        ctx.call = recurrence, options, count
        return tuple(results)

    @staticmethod
    def backward(ctx, by_outputs, by_final):
        recurrence, options, count = ctx.call
        sequences, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        cotangents = by_outputs.contiguous(), by_final.contiguous()
        tensors = *cotangents, ctx.kept, list(sequences), list(weights)
        by_sequences, by_weights, by_state = triton_sequential.backward(
            recurrence, *tensors, **options
        )
        assert len(by_sequences) == len(sequences) and len(by_weights) == len(weights)
        return None, None, None, by_state, *by_sequences, *by_weights


def mark(array, like):
    """A mask or resets as kernels take them."""
    return None if array is None else torch.tensor(array, dtype=like.dtype, device=DEVICE)


def coffee(keep, feedback="sigmoid", mask=None, reset=None):
    def scan(
        inputs,
        transition,
        gate,
        readout,
        initial_state,
        input_matrix=None,
        output_gate=None,
        gate_inputs=None,
        gate_bias=None,
    ):
        weights = transition, gate, readout, input_matrix, output_gate, gate_bias
        tensors = inputs, gate_inputs, mark(mask, inputs), mark(reset, inputs), *weights
        options = {"feedback": feedback, "keep": keep}
        return Kernels.apply(triton_coffee.RECURRENCE, options, 4, initial_state, *tensors)

    return scan


def selective(keep, discretization="zoh", delta_softplus=False, reset=None):
    def scan(
        inputs,
        delta,
        transition,
        input_matrix,
        output_matrix,
        initial_state,
        skip=None,
    ):
        matrices = input_matrix, output_matrix
        varying = [m if m.ndim == 3 else None for m in matrices]
        sequences = inputs, delta, *varying, mark(reset, inputs)
        fixed = [m if m.ndim == 2 else None for m in matrices]
        weights = transition, *fixed, None if skip is None else skip[:, None]
        options = {"discretization": discretization, "delta_softplus": delta_softplus, "keep": keep}
        recurrence = triton_selective.RECURRENCE
        return Kernels.apply(recurrence, options, 5, initial_state, *sequences, *weights)

    return scan


def check_coffee(arrays, keep=1, dtype="float64", feedback="sigmoid"):
    def oracle(*args):
        return oracles.coffee(*args, feedback=feedback)

    assert_matches(coffee(keep, feedback), oracle, arrays, cotangents_of(arrays), dtype)


def check_selective(arrays, keep=1, dtype="float64", discretization="zoh", delta_softplus=False):
    def oracle(*args):
        return oracles.selective(*args, discretization, delta_softplus)

    scan = selective(keep, discretization, delta_softplus)
    assert_matches(scan, oracle, arrays, cotangents_of(arrays), dtype)


def coffee_arrays_for(feedback, shape, gated=True):
    if feedback != "linear":
        return coffee_arrays(shape, gated=gated)
    arrays = coffee_arrays(shape, gate_scale=0.05, input_scale=1.0, gated=gated)
    return arrays | {name: abs(arrays[name]) for name in ("gate", "initial_state")}


# Seventeen steps are two groups of those that are loaded together, and one step.
@pytest.mark.parametrize(
    ("feedback", "input_matrix", "output_gate"),
    product(("sigmoid", "linear", None), (False, True), (False, True)),
)
def test_coffee_with_every_option(feedback, input_matrix, output_gate):
    arrays = coffee_arrays_for(feedback, (1, 17, 2, 2), gated=False)
    if not input_matrix:
        del arrays["input_matrix"]
    if not output_gate:
        del arrays["output_gate"]
    check_coffee(arrays, 5 if input_matrix else 1, feedback=feedback)


@pytest.mark.parametrize(
    ("feedback", "left_out"),
    [("sigmoid", None), ("linear", "gate_bias"), (None, "gate_bias"), (None, "gate_inputs")],
)
def test_coffee_whose_gate_sees_more(feedback, left_out):
    arrays = coffee_arrays_for(feedback, (1, 17, 2, 2))
    arrays.pop(left_out, None)
    check_coffee(arrays, 5 if left_out is None else 1, feedback=feedback)


# One state, a number of states that is no power of two, pairs that do not fill a tile, and as many
# states as take several warps.
SHAPES = [(1, 1, 1, 1), (1, 3, 1, 3), (3, 2, 11, 1), (2, 2, 17, 4), (1, 2, 2, 500), (0, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_coffee_of_every_shape(shape, tiling):
    check_coffee(coffee_arrays(shape, gated=True), 2, dtype="float32")


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
        ("mamba", (True, True)),
    ],
    ids=str,
)
def test_selective_with_every_option(discretization, varying):
    arrays = selective_arrays((2, 6, 3, 2), varying=varying)
    if discretization == "euler":
        arrays["delta"] /= arrays["delta"].max()
    check_selective(arrays, 1 if varying[0] else 4, discretization=discretization)


# Tiles that are filled and that are not, and a last stretch of one step.
@pytest.mark.parametrize(
    ("skip", "delta_softplus", "discretization", "tiling"),
    product(
        (False, True),
        (False, True),
        ("zoh", "mamba"),
        ("few pairs", "many pairs"),
    ),
    indirect=["tiling"],
    ids=str,
)
def test_selective_with_skip_and_softplus(skip, delta_softplus, discretization, tiling):
    arrays = selective_arrays((2, 9, 3, 4), skip=skip, delta_softplus=delta_softplus)
    check_selective(arrays, 4, "float64", discretization, delta_softplus)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softplus_of_tiny_and_huge_steps(dtype):
    raw = [0, 1e-8, 1, -1, 5, -16, 17.5, -30, 30, 50, -60, -80, 90, -1e3, 1e4, -1e30]
    arrays = selective_arrays((1, 1, len(raw), 1), skip=True)
    arrays["delta"] = np.float32(raw)[None, None]
    check_selective(arrays, 1, dtype, "mamba", True)


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
    def scan(inputs, gate_inputs, **tensors):
        is_step = torch.tensor(MASK > 0, device=DEVICE)

        def whole(x):
            result = x.new_zeros(*MASK.shape, x.shape[-1])
            result[is_step] = x.reshape(-1, x.shape[-1])
            return result

        tensors["gate_inputs"] = whole(gate_inputs)
        outputs, final_state = coffee(2, feedback, MASK)(whole(inputs), **tensors)
        held = outputs[0, 4:6].detach()
        assert torch.equal(held, outputs[0, 3].expand_as(held))
        return outputs[is_step].reshape(inputs.shape), final_state

    arrays = coffee_arrays_for(feedback, (2, 6, 3, 2))

    def oracle(*args):
        return oracles.coffee(*args, feedback=feedback)

    assert_matches(scan, oracle, arrays, cotangents_of(arrays), "float64")


def test_an_infinite_state_is_held_at_masked_steps():
    arrays = coffee_arrays((2, 9, 3, 2), optional=False)
    arrays["initial_state"][:] = np.inf
    tensors = {k: torch.tensor(v, device=DEVICE) for k, v in arrays.items()}
    assert coffee(4, mask=np.zeros((2, 9)))(**tensors)[1].isposinf().all()


RESET = np.zeros((2, 9))
RESET[0, 4:6] = RESET[0, 8] = RESET[1, [0, 3]] = 1


@pytest.mark.parametrize("keep", [1, 4])
@pytest.mark.parametrize("scan", [coffee, selective])
def test_resets_cut_a_row_into_pieces(scan, keep):
    arrays = RESET_ARRAYS[scan]((2, 9, 3, 2))
    assert_same(scan(keep, reset=RESET), in_pieces(scan(keep), RESET), arrays)


RESET_ARRAYS = {
    coffee: functools.partial(coffee_arrays, gate_scale=0.5, input_scale=1.0, gated=True),
    selective: functools.partial(selective_arrays, skip=True),
}


def test_nothing_is_kept_for_inference():
    tensors = {k: torch.tensor(v, device=DEVICE) for k, v in coffee_arrays((1, 5, 2, 2)).items()}
    weights = [tensors[k] for k in ("transition", "gate", "readout")] + [None] * 3
    arguments = [tensors["inputs"], None, None, None], weights, tensors["initial_state"]
    assert_same_whatever_is_kept(triton_coffee.RECURRENCE, arguments, feedback="sigmoid")

    tensors = {k: torch.tensor(v, device=DEVICE) for k, v in selective_arrays((1, 5, 2, 2)).items()}
    names = "inputs", "delta", "input_matrix", "output_matrix"
    weights = [tensors["transition"], *[None] * 4]
    arguments = [*(tensors[k] for k in names), None], weights, tensors["initial_state"]
    options = {"discretization": "zoh", "delta_softplus": False}
    assert_same_whatever_is_kept(triton_selective.RECURRENCE, arguments, **options)


def assert_same_whatever_is_kept(recurrence, arguments, **options):
    runs = [
        triton_sequential.forward(recurrence, *arguments, keep=keep, **options)
        for keep in (0, 1, 2)
    ]
    assert [kept.numel() for *_, kept in runs] == [0, 5 * 4, 3 * 4]
    for outputs, final_state, _ in runs[1:]:
        assert torch.equal(outputs, runs[0][0]) and torch.equal(final_state, runs[0][1])


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, reverse, decay, inputs, initial_state):
        states = triton_linear.forward(decay, inputs, initial_state, reverse=reverse)
        ctx.save_for_backward(states, decay, initial_state)
        ctx.reverse = reverse
        return states

    @staticmethod
    def backward(ctx, by_states):
        by_states = by_states.contiguous()
        return None, *triton_linear.backward(by_states, *ctx.saved_tensors, reverse=ctx.reverse)


# Axes of batch and time that are broadcast; a state that is a number, and more numbers than lanes.
# Time is longer than what is loaded ahead.
@pytest.mark.parametrize(
    ("axes_and_shape", "dtype", "reverse"),
    product(
        [((2, 37), (3, 2)), ((1, 37), (5,)), ((2, 1), (5,)), ((1, 1), (37,)), ((2, 37), ())],
        ("float32", "float64", "complex64", "complex128"),
        (False, True),
    ),
    ids=str,
)
def test_linear_scan(axes_and_shape, dtype, reverse):
    decay_axes, shape = axes_and_shape
    arrays, cotangents = linear_arrays((2, 37), decay_axes, shape, dtype)
    oracle = functools.partial(oracles.linear, reverse=reverse)
    assert_matches(linear(reverse), oracle, arrays, cotangents, precision_of(dtype))


@pytest.mark.parametrize("shape", [(2, 1), (0, 3)], ids=str)
def test_linear_scan_of_one_step_or_no_sequence(shape):
    arrays, cotangents = linear_arrays(shape, shape, (3,), "float32")
    assert_matches(linear(False), oracles.linear, arrays, cotangents)


def test_linear_scan_of_no_step():
    x, state = torch.ones(2, 0, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE)
    states = triton_linear.forward(x, x, state, reverse=False)
    gradients = triton_linear.backward(states, states, x, state, reverse=False)
    assert states.shape == gradients[0].shape == gradients[1].shape == x.shape
    assert torch.equal(gradients[2], torch.zeros_like(state))


def linear(reverse):
    return lambda *tensors, **named: Linear.apply(reverse, *tensors, *named.values())


def linear_arrays(axes, decay_axes, shape, dtype):
    """Decays 0, on the unit circle, and just inside and outside of it."""
    generator = np.random.default_rng(0)

    def draw(*shape):
        parts = generator.normal(size=(2, *shape))
        return (parts[0] + 1j * parts[1] if "complex" in dtype else parts[0]).astype(dtype)

    decay = draw(*decay_axes, *shape)
    radii = generator.choice([0, 0.5, 1 - 1e-6, 1, 1.05], size=decay.shape)
    arrays = {
        "decay": (radii * decay / abs(decay)).astype(dtype),
        "inputs": draw(*axes, *shape),
        "initial_state": draw(axes[0], *shape),
    }
    return arrays, [draw(*axes, *shape)]


def precision_of(dtype):
    return "float64" if dtype in ("float64", "complex128") else "float32"


COMPILE = """
import json, os, re, subprocess, sys, tempfile
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature
from keras_coffee.backend.torch import (
    triton_coffee, triton_linear, triton_parallel, triton_selective, triton_sequential
)

triton_sequential._LANES = 1  # many pairs: the variants that need most registers
FOLDER = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
CUOBJDUMP = os.path.join(FOLDER, "cuobjdump")
ARCH = sys.argv[1]
TARGET = GPUTarget("hip", ARCH, 64) if "gfx" in ARCH else GPUTarget("cuda", int(ARCH), 32)
BACKEND = make_backend(TARGET)
results = {}


class Compiled:
    # In place of a kernel: compiles what would be launched, from the arguments, as Triton does.
    def __init__(self, name, kernel):
        self.name, self.kernel = name, kernel

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **named):
        named |= {"debug": False, "instrumentation_mode": ""}
        kernel = self.kernel
        bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
        bound, *rest = bind(*args, **named)
        options, *rest = kernel._pack_args(BACKEND, named, bound, *rest)
        source = ASTSource(kernel, *rest)
        program = triton.compile(source, target=TARGET, options=options.__dict__)
        # What does not fit into registers is spilled to the stack, some bytes of it.
        numbers = of_amd(program) if "gfx" in ARCH else of_nvidia(program)
        results[f"{label} {self.name}"] = [int(number) for number in numbers]


def of_nvidia(program):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.search(r"REG:(\\d+) STACK:(\\d+)", report).groups()


def of_amd(program):
    names = ".vgpr_count", ".private_segment_fixed_size"
    return [re.search(rf"{name}: +(\\d+)", program.asm["amdgcn"])[1] for name in names]


def run(driver, recurrence, sequences, weights, **options):
    arguments = sequences, weights
    _, _, kept = driver.forward(recurrence, *arguments, state, keep=8, **options)
    driver.backward(recurrence, sequences[0], state, kept, *arguments, keep=8, **options)


for module in (triton_sequential, triton_parallel, triton_linear):
    for name in ("_forward", "_backward"):
        setattr(module, name, Compiled(module.__name__ + name, getattr(module, name)))
u, mask, matrix = map(torch.zeros, ((2, 64, 32), (2, 64), (2, 64, 8)))
w, s, state = map(torch.zeros, ((32, 8), (32, 1), (2, 32, 8)))
for driver in (triton_sequential, triton_parallel):
    label, weights = "coffee", [w] * 5 + [None]
    run(driver, triton_coffee.RECURRENCE, [u, None, mask, mask], weights, feedback="sigmoid")
    label, weights = "gated coffee", [w] * 6
    run(driver, triton_coffee.RECURRENCE, [u, u, mask, None], weights, feedback="sigmoid")
    for label, discretization, skip in (("selective", "zoh", None), ("mamba", "mamba", s)):
        sequences, weights = [u, u, matrix, matrix, mask], [w, None, None, skip]
        options = {"discretization": discretization, "delta_softplus": skip is not None}
        run(driver, triton_selective.RECURRENCE, sequences, weights, **options)
for label, x in (("real", u), ("complex", torch.complex(u, u))):
    start = x[:, 0].contiguous()
    triton_linear.forward(x, x, start, reverse=False)
    triton_linear.backward(x, x, x[:1, :1].contiguous(), start, reverse=True)
print(json.dumps(results))
"""


# Registers of a thread and bytes of its stack, by architecture and kernel, as Triton 3.7 made them.
REGISTERS = Path(__file__).parent.parent / "data" / "registers.json"
ARCHITECTURES = ["80", "86", "89", "90", "100", "gfx942"] if IS_NIGHTLY else ["90"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_for_a_gpu_and_take_no_more_registers(architecture, tmp_path):
    results, known = compiled(architecture, tmp_path), json.loads(REGISTERS.read_text())
    known = known[architecture]
    assert results.keys() == known.keys()
    for name, (registers, stack) in results.items():
        # Another Triton may place some differently.
        assert registers <= known[name][0] + 16, f"{name}: {registers}, {known[name][0]} before"
        assert stack <= known[name][1] + 16, f"{name}: {stack} bytes, {known[name][1]} before"


def compiled(architecture, folder):
    # Elsewhere, because here kernels are interpreted; and anew, whatever a cache has.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-c", COMPILE, architecture]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])
