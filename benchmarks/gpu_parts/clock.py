"""How long a call takes, on either backend."""

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras

BACKEND = keras.config.backend()
# Runs that a graph of the device holds.
_IN_GRAPH = 10
# Whether calls are made only to compile them, and times say nothing.
is_rehearsal = False

if BACKEND == "torch":
    import reference_torch as reference
    import torch

    HAS_GPU = torch.cuda.is_available()
else:
    import jax
    import reference_jax as reference

    HAS_GPU = jax.default_backend() == "gpu"


def compiled(scan: Callable[..., Any], training: bool) -> Callable[..., Any]:
    """`scan(*tensors)`, or if training `(grads, *tensors)`, which returns the gradients too."""
    run = (reference.training if training else reference.inference)(scan)
    # The outer `jit` starts calls without waiting for the last one, as the reference does.
    return run if BACKEND == "torch" else jax.jit(run)


def wait(answers: Any) -> None:
    if BACKEND == "jax":
        jax.block_until_ready(answers)
    elif HAS_GPU:
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], most: float = 0.25) -> float:
    """Of one of many calls that are waited for at the end: the median of five rounds."""
    wait(call())
    if is_rehearsal:
        return 1.0
    once = _elapsed(call, 1)
    if once > most:
        return once
    runs = max(1, min(200, int(most / 5 / max(once, 1e-9))))
    return statistics.median(_elapsed(call, runs) / runs for _ in range(5))


def _elapsed(call: Callable[[], Any], runs: int) -> float:
    start = time.perf_counter()
    for _ in range(runs):
        answers = call()
    wait(answers)
    return time.perf_counter() - start


def milliseconds(call: Callable[[], Any], most: float = 0.25) -> dict[str, float | None]:
    """As called from Python, and on the device, where that can be told."""
    called = seconds(call, most)
    device = None
    if BACKEND == "torch" and HAS_GPU and called < 0.02:
        # A scan that waits for the device can't be in a graph.
        with contextlib.suppress(RuntimeError):
            device = _seconds_in_graph(call, most)
        torch.cuda.synchronize()
    return {"called_ms": 1e3 * called, "ms": device and 1e3 * device}


def _seconds_in_graph(call: Callable[[], Any], most: float) -> float:
    """Within a CUDA graph, without the cost of launching from Python."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_IN_GRAPH):
            call()
    return seconds(graph.replay, most) / _IN_GRAPH


def versions() -> dict[str, Any]:
    found = {BACKEND: reference.VERSION.split()[1], "keras": keras.__version__}
    if BACKEND == "torch" and HAS_GPU:
        found |= {"CUDA": torch.version.cuda, "cuDNN": str(torch.backends.cudnn.version())}
        found["card"] = torch.cuda.get_device_name()
    elif HAS_GPU:
        found["card"] = jax.devices()[0].device_kind
    return {"versions": found}


def release() -> None:
    """Gives memory back that the last row held."""
    if BACKEND == "torch" and HAS_GPU:
        torch.cuda.empty_cache()
