"""Times on the card with PyTorch: ours, cuDNN, and the associative scan of the package."""

import functools
import time

import torch

from gpu_parts import checking, problems
from gpu_parts.checking import Kernels, about_row
from gpu_parts.journal import Journal, Wrong
from gpu_parts.problems import COFFEE, INFERENCE, S6, Case
from gpu_parts.torch_scans import DEVICE, DRY, PART, differentiated, on_device, public, synchronize

GRU = "torch.nn.GRU"
# Runs that a graph of the device holds.
IN_GRAPH = 10


def measure_ceilings(journal: Journal, deadline: float) -> None:
    about = {"part": PART, "section": "ceiling"}
    journal.run("ceiling, bytes", bandwidth, deadline, **about)
    journal.run("ceiling, special functions", special_rate, deadline, **about)


def bandwidth() -> dict:
    from gpu_parts import ceilings

    copies, moved, source = ceilings.copying(DEVICE, 1 if DRY else 4000)
    for copy in copies:
        if not torch.equal(copy(), source):
            raise Wrong("a copy is not what it was copied from")
    return {"bytes_per_second": moved / min(seconds_of(copy) for copy in copies)}


def special_rate() -> dict:
    from gpu_parts import ceilings

    call, count = ceilings.chain(DEVICE, *((1, 50) if DRY else (132 * 32, 2000)))
    # The fixed point of the sigmoid.
    if float((call() - 0.6590461).abs().max()) > 1e-5:
        raise Wrong("the chain of sigmoids does not come to its fixed point")
    return {"special_per_second": count / seconds_of(call)}


def seconds_of(call, seconds: float = 0.25) -> float:
    """Of a call, one after the other: by events of the device, or a clock where there is none."""
    call()
    synchronize()
    return checking.rounds(functools.partial(_elapsed, call), seconds, 200)


def _elapsed(call, runs: int) -> float:
    if DRY:
        start = time.perf_counter()
        for _ in range(runs):
            call()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(runs):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def seconds_on_device(call, seconds: float = 0.25) -> float | None:
    """Of a call within a graph of the device: without what it costs to launch. None if it can't."""
    if DRY:
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(IN_GRAPH):
                call()
    except Exception as error:
        torch.cuda.synchronize()
        print(f"          no graph: {str(error).splitlines()[0]}", flush=True)
        return None
    found = seconds_of(graph.replay, seconds) / IN_GRAPH
    del graph
    return found


def timed(call, has_graph: bool = True) -> dict:
    called = seconds_of(call)
    device = seconds_on_device(call) if has_graph and called < 0.02 else None
    return {"called_ms": 1e3 * called, "ms": device and 1e3 * device}


def time_shape(journal: Journal, kernels: list[Kernels], shape: tuple, deadline: float) -> None:
    for family in (COFFEE, S6):
        time_family(journal, kernels, family, shape, deadline)
        if not DRY:
            torch.cuda.empty_cache()
    for mode in (INFERENCE, problems.TRAINING):
        work = functools.partial(time_gru, shape, mode)
        _row(journal, GRU, GRU, shape, mode, work, deadline)


def time_family(
    journal: Journal, kernels: list[Kernels], family: str, shape: tuple, deadline: float
) -> None:
    arrays, first = functools.cache(functools.partial(load, Case(family), shape)), []
    for mode in problems.MODES:
        rows = {x.name: functools.partial(time_kernels, journal, x, family, shape) for x in kernels}
        if mode != problems.RECOMPUTE:
            rows["keras_coffee.ops"] = functools.partial(time_public, "auto", family)
            if family == S6:
                rows["associative scan"] = functools.partial(time_public, "associative", S6)
        for name, work in rows.items():
            done = functools.partial(work, mode, first, arrays)
            _row(journal, name, family, shape, mode, done, deadline)


def load(case: Case, shape: tuple) -> tuple:
    """The problem, its tensors and its gradients, made when the first row asks for them."""
    problem = problems.problem(case, shape)
    return problem, *on_device(problem)


def _row(journal, row, family, shape, mode, work, deadline):
    name = f"time, {PART}, {family}, {row}, {tuple(shape)}, {mode}"
    journal.run(name, work, deadline, **about_row(PART, row, family, shape, mode))


def time_kernels(journal, kernels, family, shape, mode, first, arrays) -> dict:
    checking.must_be_right(journal, PART, kernels, family, mode)
    problem, tensors, grads = arrays()
    keep = problems.keep_of(mode, shape[1])

    def call():
        return kernels.step(family, keep, tensors, grads, problem.options)

    return {"difference": _compared(first, call(), problem.names, True), **timed(call)}


def time_public(solver, family, mode, first, arrays) -> dict:
    problem, tensors, grads = arrays()
    scan = public(family, problem.options, solver=solver)

    def call():
        if mode == INFERENCE:
            with torch.no_grad():
                return scan(*tensors)
        return differentiated(scan, tensors, grads)

    difference = _compared(first, call(), problem.names, False)
    return {"difference": difference, **timed(call, False)}


def _compared(first: list, answers, names, is_checked: bool) -> float | None:
    answers = [x.detach() for x in answers]
    return checking.same_as_first(first, answers, names, _largest, is_checked)


def _largest(x, unit) -> float:
    return float(x.abs().max() / unit.abs().max())


def time_gru(shape: tuple, mode: str) -> dict:
    """cuDNN, with as many states: D·n units, and a matrix of (D·n)² in each step."""
    batch, length, dim, n = shape
    layer = torch.nn.GRU(dim, dim * n, batch_first=True).to(DEVICE)
    inputs = torch.randn(batch, length, dim, device=DEVICE)
    state = torch.randn(1, batch, dim * n, device=DEVICE)

    def call():
        if mode == INFERENCE:
            with torch.no_grad():
                return layer(inputs, state)
        wanted = [inputs.requires_grad_(), state.requires_grad_(), *layer.parameters()]
        results = layer(inputs, state)
        return torch.autograd.grad(results, wanted, grads)

    with torch.no_grad():
        grads = [torch.randn_like(x) for x in layer(inputs, state)]
    return timed(call, False)
