"""What the part of PyTorch runs: the Triton kernels, and the functions of the package."""

import contextlib
import importlib

import numpy as np
import torch

from gpu_parts import problems
from gpu_parts.checking import Kernels
from gpu_parts.problems import COFFEE, S6, Case
from keras_coffee import ops

PART = "torch"
DRY = not torch.cuda.is_available()
DEVICE = "cpu" if DRY else "cuda"
SEQUENTIAL, PARALLEL = "Triton, sequential", "Triton, parallel"


def synchronize() -> None:
    if not DRY:
        torch.cuda.synchronize()


def all_kernels() -> list[Kernels]:
    modules = {
        SEQUENTIAL: ("triton_coffee", "triton_selective"),
        PARALLEL: ("triton_newton", "triton_chunked_selective"),
    }
    places = {SEQUENTIAL: "usual", PARALLEL: "windows"}
    more = {
        SEQUENTIAL: problems.other_places(),
        PARALLEL: [
            *(Case(x, place) for place in ("odd", "many states") for x in (COFFEE, S6)),
            Case(COFFEE, "windows", gate_scale=1.0),
        ],
    }
    return [
        Kernels(
            name, places[name], _functions(*files), [*problems.cases(places[name]), *more[name]]
        )
        for name, files in modules.items()
    ]


def _functions(coffee: str, selective: str) -> dict:
    def pair(file, name):
        module = importlib.import_module(f"keras_coffee.backend.torch.{file}")
        return getattr(module, f"{name}_forward"), getattr(module, f"{name}_backward")

    return {COFFEE: pair(coffee, "coffee"), S6: pair(selective, "selective")}


def on_device(problem, dtype="float32"):
    """Tensors and gradients; inputs and the gradient by the outputs have the dtype."""
    tensors, grads = (
        [None if x is None else torch.tensor(x, device=DEVICE) for x in arrays]
        for arrays in (problem.tensors, problem.grads)
    )
    for arrays in (tensors, grads):
        arrays[0] = arrays[0].to(getattr(torch, dtype))
    return tensors, grads


def to_numpy(x) -> np.ndarray:
    return x.detach().float().cpu().numpy()


@contextlib.contextmanager
def buffers_of_nan():
    """What a kernel forgets to write is then NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def answers_of(kernels: Kernels, case: Case, problem) -> list[np.ndarray]:
    tensors, grads = on_device(problem, case.dtype)
    with buffers_of_nan():
        found = kernels.step(case.family, problem.keep, tensors, grads, problem.options)
        return [to_numpy(x) for x in found]


# What people call: the functions of the package, with autograd and the choice of the kernel.


def public_answers(kernels: Kernels, case: Case, problem) -> list[np.ndarray]:
    tensors, grads = on_device(problem, case.dtype)
    with buffers_of_nan():
        found = differentiated(public(case.family, problem.options, case.keep), tensors, grads)
        return [to_numpy(x) for x in found]


def public(family: str, options: dict, keep=1, **more):
    """The function of the package with the arguments of a kernel."""
    more |= {"recompute": keep not in (0, 1)}
    if family == S6:
        return lambda *tensors: ops.selective_scan(
            *tensors[:-1], initial_state=tensors[-1], **options, **more
        )

    def scan(inputs, mask, weights, initial_state):
        given = list(weights.unbind())
        main, rest = given[:3], given[3:]
        named = {
            name: rest.pop(0) for name in ("input_matrix", "output_gate") if options[f"has_{name}"]
        }
        more_named = {"initial_state": initial_state, "feedback": options["feedback"], **more}
        # The gradient at a held step is that of the function, which replaces its inputs by zeros.
        mask = None if mask is None else mask.bool()
        return ops.coffee_scan(inputs, *main, **named, mask=mask, **more_named)

    return scan


def differentiated(scan, tensors, grads) -> tuple:
    """What `scan` returns, and the gradients by all tensors, of COFFEE without the mask."""
    is_mask = [len(tensors) == 4 and i == 1 for i in range(len(tensors))]
    pairs = list(zip(tensors, is_mask, strict=True))
    tensors = [x if fixed else x.detach().requires_grad_() for x, fixed in pairs]
    wanted = [x for x, fixed in zip(tensors, is_mask, strict=True) if not fixed]
    results = scan(*tensors)
    return *results, *torch.autograd.grad(results, wanted, tuple(grads))
