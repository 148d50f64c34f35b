"""The part of PyTorch: what is compiled, checked and timed, and when."""

import contextlib
import itertools
import time

import torch

from gpu_parts import checking, crossover, problems, torch_times
from gpu_parts.checking import Kernels
from gpu_parts.journal import Journal, matches
from gpu_parts.problems import COFFEE, S6, Case
from gpu_parts.torch_scans import (
    DRY,
    PART,
    all_kernels,
    answers_of,
    on_device,
    public_answers,
    synchronize,
)


def run(path, seconds: float, only: list | None) -> None:
    journal = Journal(path, synchronize, only)
    start = time.time()
    about = {"part": PART, "section": "versions"}
    journal.run("versions, torch", lambda: {"versions": versions()}, start + seconds, **about)
    kernels = all_kernels()
    places = problems.DRY_PLACES if DRY else problems.PLACES
    checking.check_all(journal, PART, kernels, answers_of, places, start + 0.45 * seconds)
    check_public_functions(journal, places, start + 0.5 * seconds)
    torch_times.measure_ceilings(journal, start + 0.55 * seconds)
    for shape in problems.DRY_SHAPES if DRY else problems.SHAPES:
        torch_times.time_shape(journal, kernels, shape, start + 0.8 * seconds)
    crossover.run(journal, kernels, on_device, torch_times.seconds_of, start + seconds, DRY)


def check_public_functions(journal: Journal, places: dict, deadline: float) -> None:
    cases = [
        Case(family, place, keep)
        for family in (COFFEE, S6)
        for place, keep in (("usual", 1), ("windows", 1), ("windows", "sqrt"))
    ]
    cases.append(Case(COFFEE, "usual", options=problems.OPTIONS))
    functions = dict.fromkeys((COFFEE, S6), (None, None))
    kernels = Kernels("keras_coffee.ops", "usual", functions, cases)
    checking.check_all(journal, PART, [kernels], public_answers, places, deadline)


def versions() -> dict:
    import keras
    import triton

    found = {"torch": torch.__version__, "triton": triton.__version__, "keras": keras.__version__}
    if DRY:
        return found
    name, cudnn = torch.cuda.get_device_name(), torch.backends.cudnn.version()
    return found | {"card": name, "CUDA of torch": torch.version.cuda, "cuDNN": str(cudnn)}


def prepare(worker: int, workers: int, only: list | None) -> None:
    """Compiles this worker's share of the kernels, into the cache that Triton has on the disk.

    By calling them, because only a call tells what is compiled. What fails, fails again later.
    """
    groups = {}
    for name, group, *task in preparations(all_kernels()):
        if matches(name, only):
            groups.setdefault(group, []).append(task)
    for number, tasks in enumerate(groups.values()):
        if number % workers == worker:
            for task in tasks:
                with contextlib.suppress(Exception):
                    prepare_one(*task)


def prepare_one(kernels: Kernels, case: Case, shape: tuple) -> None:
    problem = problems.problem(case, shape, seed=None)
    tensors, grads = on_device(problem, case.dtype)
    kernels.step(case.family, problem.keep, tensors, grads, problem.options)
    synchronize()


def preparations(kernels: list[Kernels]):
    """Name of the unit, what compiles to much the same, and the arguments of `prepare_one`."""
    places = problems.DRY_PLACES if DRY else problems.PLACES
    shapes = problems.DRY_SHAPES if DRY else problems.SHAPES
    for x in kernels:
        for case in x.cases:
            yield (
                checking.name_of_check(PART, x.name, case),
                (x.name, case),
                x,
                case,
                places[case.place],
            )
        for shape, family, keep in itertools.product(shapes, (COFFEE, S6), (0, 1, "sqrt")):
            case = Case(family, keep=keep)
            yield f"time, {x.name}", (x.name, family, shape), x, case, shape
        for point, keep in itertools.product(crossover.points(DRY), (0, 1)):
            case = Case(point["family"], keep=keep)
            group = x.name, point["family"], point["n"], point["pairs"]
            yield "crossover", group, x, case, crossover.shape_of(point)
