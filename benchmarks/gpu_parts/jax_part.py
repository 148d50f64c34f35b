"""The part of JAX: the Pallas kernels, and XLA's own loop over time."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from gpu_parts import checking, problems
from gpu_parts.checking import Kernels, about_row
from gpu_parts.journal import Journal
from gpu_parts.problems import COFFEE, INFERENCE, RECOMPUTE, S6, Case
from keras_coffee import ops
from keras_coffee.backend.jax import pallas_coffee, pallas_math, pallas_selective, portable

PART = "jax"
DRY = jax.default_backend() != "gpu"
PALLAS, XLA = "Pallas", "XLA, lax.scan"


def versions() -> dict:
    import jaxlib
    import keras

    found = {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "keras": keras.__version__}
    return found if DRY else found | {"card": jax.devices()[0].device_kind}


def run(path, seconds: float, only: list | None) -> None:
    if DRY:
        jax.config.update("jax_disable_most_optimizations", True)
    journal = Journal(path, is_healthy, only)
    start = time.time()
    about = {"part": PART, "section": "versions"}
    journal.run("versions, jax", lambda: {"versions": versions()}, start + seconds, **about)
    places = problems.DRY_PLACES if DRY else problems.PLACES
    kernels = all_kernels()
    checking.check_all(journal, PART, kernels, answers_of, places, start + 0.5 * seconds)
    for shape in problems.DRY_SHAPES if DRY else problems.SHAPES:
        time_shape(journal, kernels, shape, start + seconds)


def is_healthy() -> None:
    jax.block_until_ready(jnp.zeros(1) + 1)


def all_kernels() -> list[Kernels]:
    few = [Case(family, keep=keep) for family in (COFFEE, S6) for keep in (1, 0, "sqrt")]
    cases = [*problems.cases("usual"), *problems.other_places()]
    found = [Kernels(XLA, "usual", {COFFEE: _portable_coffee(), S6: _portable_selective()}, few)]
    if pallas_math.is_available():
        functions = {
            family: tuple(functools.partial(x, interpret=DRY) for x in pair)
            for family, pair in (
                (COFFEE, (pallas_coffee.coffee_forward, pallas_coffee.coffee_backward)),
                (S6, (pallas_selective.selective_forward, pallas_selective.selective_backward)),
            )
        }
        found.insert(0, Kernels(PALLAS, "usual", functions, cases))
    return found


def _portable_coffee():
    """XLA's loop, with the arguments of the kernels. It is not asked for masks here."""

    def forward(inputs, mask, weights, initial_state, **options):
        return portable.coffee_forward(inputs, weights, initial_state, **options)

    def backward(grad_outputs, grad_final, kept, inputs, mask, weights, **options):
        tensors = grad_outputs, grad_final, kept, inputs, weights
        return portable.coffee_backward(*tensors, **options)

    return forward, backward


def _portable_selective():
    return portable.selective_forward, portable.selective_backward


def on_device(problem, dtype="float32"):
    tensors, grads = (
        [None if x is None else jnp.asarray(x) for x in arrays]
        for arrays in (problem.tensors, problem.grads)
    )
    for arrays in (tensors, grads):
        arrays[0] = arrays[0].astype(dtype)
    return tensors, grads


def compiled(kernels: Kernels, family: str, keep: int, options: dict):
    step = functools.partial(kernels.step, family, keep, options=options)
    return jax.jit(lambda tensors, grads: step(tensors, grads))


def answers_of(kernels: Kernels, case: Case, problem) -> list[np.ndarray]:
    tensors, grads = on_device(problem, case.dtype)
    call = compiled(kernels, case.family, problem.keep, problem.options)
    return [np.asarray(x, "float32") for x in call(tensors, grads)]


def seconds_of(call, seconds: float = 0.25) -> float:
    """Of a call, many of them under way at once, waited for at the end."""
    jax.block_until_ready(call())
    return checking.rounds(functools.partial(_elapsed, call), seconds, 200)


def _elapsed(call, runs: int) -> float:
    start = time.perf_counter()
    for _ in range(runs):
        last = call()
    jax.block_until_ready(last)
    return time.perf_counter() - start


def time_shape(journal: Journal, kernels: list[Kernels], shape: tuple, deadline: float) -> None:
    for family in (COFFEE, S6):
        arrays, first = functools.cache(functools.partial(load, Case(family), shape)), []
        for mode in problems.MODES:
            rows = {
                x.name: functools.partial(time_kernels, journal, x, family, shape) for x in kernels
            }
            if family == S6:
                rows["associative scan"] = time_associative
            for name, work in rows.items():
                if mode == RECOMPUTE and name != PALLAS:
                    continue
                title = f"time, {PART}, {family}, {name}, {tuple(shape)}, {mode}"
                done = functools.partial(work, mode, first, arrays)
                about = about_row(PART, name, family, shape, mode)
                journal.run(title, done, deadline, **about)


def load(case: Case, shape: tuple) -> tuple:
    """The problem, its tensors and its gradients, made when the first row asks for them."""
    problem = problems.problem(case, shape)
    return problem, *on_device(problem)


def time_kernels(journal, kernels, family, shape, mode, first, arrays) -> dict:
    checking.must_be_right(journal, PART, kernels, family, mode)
    problem, tensors, grads = arrays()
    call = compiled(kernels, family, problems.keep_of(mode, shape[1]), problem.options)
    return _timed(lambda: call(tensors, grads), first, problem.names, True)


def time_associative(mode, first, arrays) -> dict:
    problem, tensors, grads = arrays()

    def scan(*tensors):
        options = {"solver": "associative", "initial_state": tensors[-1], **problem.options}
        return ops.selective_scan(*tensors[:-1], **options)

    @jax.jit
    def step(tensors, grads):
        if mode == INFERENCE:
            return scan(*tensors)
        results, pull_back = jax.vjp(scan, *tensors)
        return *results, *pull_back(tuple(grads))

    return _timed(lambda: step(tensors, grads), first, problem.names, False)


def _timed(call, first, names, is_checked: bool) -> dict:
    difference = checking.same_as_first(first, call(), names, _largest, is_checked)
    return {"difference": difference, "called_ms": 1e3 * seconds_of(call)}


def _largest(x, unit) -> float:
    return float(jnp.abs(x).max() / jnp.abs(unit).max())
