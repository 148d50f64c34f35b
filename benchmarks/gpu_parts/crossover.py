"""From how many channels and steps on the kernels that are parallel in time win."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator

from gpu_parts import clock, scans
from gpu_parts.limits import COFFEE, INFERENCE, S6, TRAINING
from gpu_parts.log import Log

KINDS = "sequential", "parallel"
CHANNELS, LENGTHS = (1, 16, 64, 256, 1024, 4096), (256, 1024, 4096, 16384)
DRY_CHANNELS, DRY_LENGTHS = (1,), (3, 5)
# Recurrence, n, and the scale of COFFEE's gates: the larger, the more iterations Newton needs.
CASES = (COFFEE, 8, 0.5), (COFFEE, 8, 2.0), (COFFEE, 1, 0.5), (S6, 8, 0.5), (S6, 1, 0.5)
# What the rule for each recurrence looks at beside T.
UNIT = {COFFEE: "states", S6: "pairs"}
MODES = INFERENCE, TRAINING


# PRIVATE. The one place that knows how PyTorch chooses between its kernels for a GPU: nothing
# public does. On a CPU there is no choice, and `forced` changes nothing.


def _chooser():
    from keras_coffee.backend.torch import gpu_kernels

    return gpu_kernels


@contextlib.contextmanager
def forced(kind: str) -> Iterator[None]:
    """Scans take the sequential or the parallel kernel, whatever their shape."""
    module, usual = _chooser(), _chooser().KERNELS
    other = {"sequential": "parallel", "parallel": "sequential"}[kind]
    kept = [kernel for kernel in usual if not kernel.module.endswith(other)]
    module.KERNELS = tuple(k._replace(suits=lambda shape: True) for k in kept)
    try:
        yield
    finally:
        module.KERNELS = usual


def chosen(point: dict) -> str:
    """The kernel that a scan takes today."""
    name = {COFFEE: "coffee", S6: "selective"}[point["family"]]
    module = _chooser()
    shape = module.Shape(point["length"], point["pairs"], point["n"])
    found = next(k for k in module.KERNELS if k.recurrence == name and k.suits(shape))
    return found.module.removeprefix("triton_")


# End of what is private.


def run(log: Log, is_dry: bool, until: float) -> None:
    """Times both kernels over the grid, then says where the one or the other should run."""
    found: dict[str, list[dict]] = {COFFEE: [], S6: []}
    for point in points(is_dry):
        name = ", ".join(
            f"{key} {x}" for key, x in point.items() if key not in ("family", "states")
        )
        work = functools.partial(_compare, point, found[point["family"]])
        log.run(f"crossover, {point['family']}, {name}", work, until, section="crossover", **point)
    for family, timed in found.items():
        if timed:
            work = functools.partial(rule, timed, UNIT[family])
            log.run(f"rule, {family}", work, math.inf, section="rule", family=family)


def points(is_dry: bool) -> Iterator[dict]:
    lengths, channels = (DRY_LENGTHS, DRY_CHANNELS) if is_dry else (LENGTHS, CHANNELS)
    for (family, n, scale), length, pairs in itertools.product(CASES, lengths, channels):
        point = {"family": family, "n": n, "gate_scale": scale, "length": length}
        yield point | {"pairs": pairs, "states": pairs * n}


def _compare(point: dict, found: list[dict]) -> dict:
    """Milliseconds of both kernels in each mode."""
    dim = min(16, point["pairs"])
    shape = point["pairs"] // dim, point["length"], dim, point["n"]
    arrays = scans.arrays(point["family"], shape, point["gate_scale"])
    scan = scans.public(point["family"], solver="sequential")
    times = {mode: [_milliseconds(scan, arrays, mode, x) for x in KINDS] for mode in MODES}
    found.append(point | {"ms": times})
    return {"ms": times}


def _milliseconds(scan: Callable, arrays: list, mode: str, kind: str) -> float | None:
    with forced(kind):
        times = clock.milliseconds(scans.bound(scan, arrays, mode), 0.03)
    return times["ms"] or times["called_ms"]


def rule(points: list[dict], unit: str) -> dict:
    """The best bounds, and what they and today's choice lose."""
    least, most = best_bounds(points, unit)
    best = loss(points, lambda x: x["length"] >= least and x[unit] <= most)
    now = loss(points, lambda x: chosen(x) == "parallel")
    return {"unit": unit, "least_length": least, "most": most, "loss": best, "loss_now": now}


def best_bounds(points: list[dict], unit: str) -> tuple[int, int]:
    """The shortest length and the most states, or pairs, with which parallel kernels should run.

    No state at all means never.
    """
    lengths = sorted({x["length"] for x in points})
    sizes = sorted({x[unit] for x in points})

    def lost(bound: tuple[int, int]) -> float:
        return loss(points, lambda x: x["length"] >= bound[0] and x[unit] <= bound[1])

    return min([(0, 0), *itertools.product(lengths, sizes)], key=lost)


def loss(points: list[dict], is_parallel: Callable[[dict], bool]) -> float:
    """By how much a choice is slower than the better kernel of each point, by geometric mean."""
    times = [(x["ms"][mode], is_parallel(x)) for x in points for mode in MODES]
    logs = [math.log(pair[chosen] / min(pair)) for pair, chosen in times]
    return math.exp(sum(logs) / len(logs)) - 1
