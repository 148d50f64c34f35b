"""From how many channels and steps on the kernels that are parallel in time win."""

import functools
import itertools
import math

from gpu_parts import checking, problems
from gpu_parts.journal import Journal, LeftOut
from gpu_parts.problems import COFFEE, INFERENCE, S6, TRAINING, Case

CHANNELS, LENGTHS = (1, 16, 64, 256, 1024, 4096), (256, 1024, 4096, 16384)
DRY_CHANNELS, DRY_LENGTHS = (1, 2), (3, 5)
# Newton's iterations are more for larger gates.
CASES = (
    *((COFFEE, 8, 0.5), (COFFEE, 8, 2.0), (COFFEE, 1, 0.5)),
    *((S6, 8, None), (S6, 1, None)),
)
DRY_CASES = ((COFFEE, 2, 0.5), (S6, 2, None))
# What `gpu_kernels.kind` looks at, of each recurrence.
UNIT = {COFFEE: "states", S6: "pairs"}


def points(dry: bool):
    """The grid."""
    channels, lengths = (DRY_CHANNELS, DRY_LENGTHS) if dry else (CHANNELS, LENGTHS)
    for case, length, pairs in itertools.product(DRY_CASES if dry else CASES, lengths, channels):
        family, n, scale = case
        yield {
            **{"family": family, "n": n, "gate_scale": scale, "length": length},
            **{"pairs": pairs, "states": pairs * n},
        }


def shape_of(point: dict) -> tuple:
    dim = min(16, point["pairs"])
    return point["pairs"] // dim, point["length"], dim, point["n"]


def run(journal: Journal, kernels, on_device, seconds_of, deadline: float, dry: bool) -> None:
    """Times both kernels over the grid, then says where the one or the other should run."""
    for point in points(dry):
        scale = point["gate_scale"]
        gates = "" if scale is None else f", gate scale {scale:g}"
        where = f"B·D = {point['pairs']}, T = {point['length']}"
        name = f"crossover, {point['family']}, n = {point['n']}{gates}, {where}"
        work = functools.partial(compare, journal, kernels, on_device, seconds_of, point)
        journal.run(name, work, deadline, part="torch", section="crossover", **point)
    for family in UNIT:
        name = f"rule, {family}"
        work = functools.partial(rule, journal, family)
        journal.run(name, work, math.inf, part="torch", section="rule", family=family)


def compare(journal: Journal, kernels, on_device, seconds_of, point: dict) -> dict:
    """Milliseconds of both kernels, forward and forward with backward."""
    family = point["family"]
    case = Case(family, gate_scale=point["gate_scale"] or 0.5)
    problem = problems.problem(case, shape_of(point))
    tensors, grads = on_device(problem)
    found: dict = {}
    for mode, x in itertools.product((INFERENCE, TRAINING), kernels):
        checking.must_be_right(journal, "torch", x, family, mode)
        keep = problems.keep_of(mode, point["length"])
        call = functools.partial(x.step, family, keep, tensors, grads, problem.options)
        found.setdefault(mode, []).append(1e3 * seconds_of(call, 0.03))
    return {"ms": found}


def rule(journal: Journal, family: str) -> dict:
    """The best bounds for `gpu_kernels.kind`, and what they and those it has now lose."""
    from keras_coffee.backend.torch import gpu_kernels

    points = [x for x in journal.values("crossover") if x["family"] == family]
    if not points:
        raise LeftOut("nothing was timed")
    unit = UNIT[family]
    least, most = best_bounds(points, unit)

    def now(x):
        name = "coffee" if family == COFFEE else "selective"
        return gpu_kernels.kind(name, x["length"], x["pairs"], x["n"]) == "parallel"

    return {
        "unit": unit,
        "least_length": least,
        "most": most,
        "loss": loss(points, lambda x: x["length"] >= least and x[unit] <= most),
        "loss_now": loss(points, now),
    }


def best_bounds(points: list[dict], unit: str) -> tuple[int, int]:
    """The shortest length and the most states, or pairs, with which parallel kernels should run.

    No state at all means never.
    """
    lengths = sorted({x["length"] for x in points})
    sizes = sorted({x[unit] for x in points})
    bounds = [(0, 0), *itertools.product(lengths, sizes)]

    def lost(bound):
        return loss(points, lambda x: x["length"] >= bound[0] and x[unit] <= bound[1])

    return min(bounds, key=lost)


def loss(points: list[dict], is_parallel) -> float:
    """By how much a choice is slower than the better kernel of each point, by geometric mean."""
    logs = []
    for x, mode in itertools.product(points, (INFERENCE, TRAINING)):
        times = x["ms"][mode]
        logs.append(math.log(times[bool(is_parallel(x))] / min(times)))
    return math.exp(sum(logs) / len(logs)) - 1
