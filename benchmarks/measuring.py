"""What the benchmarks share: one core, times in turn, memory, comparing answers."""

import contextlib
import ctypes
import gc
import importlib
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BACKENDS = ("jax", "tensorflow", "torch")
# Of the largest element: float32 sums over up to B·T = 65,536 terms, added in another order.
TOLERANCE = 1e-4


def prepare(core: int | None, threads: int = 1) -> tuple[str, str, Any]:
    """Takes cores and threads: where it runs in words, the backend's name, its `reference_`."""
    where = use_cores(core, threads)
    # Only now, because frameworks count the cores when they are imported.
    backend = importlib.import_module("keras").config.backend()
    if backend not in BACKENDS:
        raise SystemExit(f"No baseline for {backend!r}: set KERAS_BACKEND to one of {BACKENDS}.")
    reference = importlib.import_module(f"reference_{backend}")
    reference.use_threads(threads)
    return where, backend, reference


def use_cores(core: int | None, threads: int) -> str:
    """Restricts this process to as many cores as threads, and the frameworks to the CPU.

    Args:
        core: The last of the cores; None: the last that is allowed. Where the operating system
            offers no choice, none is made.
    """
    os.environ.update(
        CUDA_VISIBLE_DEVICES="",
        JAX_PLATFORMS="cpu",
        NUMBA_NUM_THREADS=str(threads),
        OMP_NUM_THREADS=str(threads),
        TF_CPP_MIN_LOG_LEVEL="2",
    )
    if threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = flags
    _use_one_arena()
    where = "one thread" if threads == 1 else f"{threads} threads"
    if not hasattr(os, "sched_setaffinity"):
        return f"{where}, not pinned"
    allowed = sorted(os.sched_getaffinity(0))
    last = len(allowed) if core is None else allowed.index(core) + 1
    if last < threads:
        raise SystemExit(f"{threads} threads need as many cores up to the last one, of {allowed}.")
    cores = allowed[last - threads : last]
    os.sched_setaffinity(0, cores)
    return f"{where}, core {', '.join(map(str, cores))}"


def _use_one_arena() -> None:
    """Has all threads allocate from one arena, since from others little free memory is given back.

    `watched` would take it for memory that is in use. Has no effect once threads have theirs.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX of the GNU C library


def environment(reference: Any, where: str) -> list[str]:
    keras = importlib.import_module("keras")
    return [
        f"{reference.VERSION}, keras {keras.__version__}, numpy {np.__version__}, "
        f"python {platform.python_version()}",
        f"{processor()}, {where}",
    ]


def processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def timed(run: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Seconds of the processor and by the clock; what the call returned."""
    processor, clock = time.process_time(), time.perf_counter()
    answers = run()
    return (time.process_time() - processor, time.perf_counter() - clock), answers


def take_turns(runs: Sequence[Callable[[], Any]], repeats: Sequence[int]) -> list[dict]:
    """Times of every side by round, run after run in turn: what disturbs one disturbs the others.

    Each round has an order of its own, the same in every run: a side that always followed the same
    other one would always find the caches as that one leaves them, which is worth up to 8 %. A
    side with fewer repeats than others joins rounds evenly, the last round always.
    """
    shuffle = np.random.default_rng(0)
    times: list[dict[int, tuple[float, float]]] = [{} for _ in runs]
    rounds = max(repeats)
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        for side in shuffle.permutation(len(runs)):
            if (turn + 1) * repeats[side] // rounds > turn * repeats[side] // rounds:
                times[side][turn] = timed(runs[side])[0]
    gc.enable()
    return times


def watched(run: Callable[[], Any]) -> tuple[tuple[float, float], Any, float | None]:
    """As `timed`, and the most megabytes that the call held.

    That is the most resident memory of the process during the call, less what was resident before.
    None where the operating system doesn't tell.
    """
    gc.collect()
    tells = _give_back() and Path("/proc/self/clear_refs").exists()
    if tells:
        Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = _resident("VmRSS") if tells else 0
    times, answers = timed(run)
    return times, answers, _resident("VmHWM") - before if tells else None


def _give_back() -> bool:
    """Has the C library give free memory back, which would be resident and used again unseen."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
        return True
    return False


def _resident(name: str) -> float:
    """Megabytes of a line of /proc/self/status."""
    text = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(kilobytes) * 1024 / 1e6


def arrays(answers: Sequence[Any]) -> list[np.ndarray]:
    """Copies, of NumPy."""
    convert = importlib.import_module("keras").ops.convert_to_numpy
    return [np.array(convert(x)) for x in answers]


def differences(answers: Sequence[Any], expected: Sequence[Any]) -> list[float]:
    """Of each array the largest, relative to its largest element.

    Infinite where shapes differ or one is no number.
    """
    pairs = zip(arrays(answers), arrays(expected), strict=True)
    return [_difference(x, y) for x, y in pairs]


def _difference(answer: np.ndarray, expected: np.ndarray) -> float:
    if answer.shape != expected.shape:
        return np.inf
    found = float(np.abs(answer - expected).max() / np.abs(expected).max())
    return np.inf if np.isnan(found) else found
