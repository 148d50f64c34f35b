"""Tables of what bench.py measured, in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from arguments import MODES
from cases import (
    COFFEE,
    GRU,
    LIMIT,
    LINEAR,
    LSTM,
    MAMBA,
    MAMBA_SHAPES,
    OURS,
    RNN,
    S6_SCAN,
    TRANSFORMERS,
)
from measuring import line

# Where it must be fast, and how fast: at most so many times the limit, at least so many times
# faster than what people would use instead.
FAST_SHAPES = ((512, 16, 16, 8), (8, 4096, 16, 8), (32, 784, 32, 1))
TRAINING_BAR = {"torch": 1.2, "jax": 1.5, "tensorflow": 1.5}
INFERENCE_BAR = 1.5
LINEAR_SHAPES, LINEAR_BAR = ((8, 4096, 128, 1), (64, 784, 256, 1)), 1.5
MAMBA_BAR = 1.3
PEER_BARS = (
    ((32, 784, 32, 1), COFFEE, RNN, 3),
    ((32, 784, 32, 1), GRU, "keras.layers.GRU", 5),
    ((1, 2048, 256, 16), MAMBA, TRANSFORMERS, 500),
)
FIRST_CALL_BAR, STEP_BAR = 5, 1.2


def median(cell: Any, clock: int) -> float:
    """Seconds: of the processor (0), or by the clock (1)."""
    return float(np.median([times[clock] for times in cell.times.values()]))


def ratio(cell: Any, other: Any, clock: int) -> tuple[float, float, float]:
    """Of times in the same round: quartiles, the median second."""
    rounds = cell.times.keys() & other.times.keys()
    ratios = [cell.times[turn][clock] / other.times[turn][clock] for turn in rounds]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float(low), float(middle), float(high)


def find(cells: Iterable[Any], shape: Sequence[int], mode: str, family: str, row: str) -> Any:
    """The cell of a row, or None if there is none that was timed."""
    wanted = tuple(shape), mode, family, row
    for cell in cells:
        if (tuple(cell.shape), cell.mode, cell.family, cell.row) == wanted and cell.times:
            return cell
    return None


def compiles_again(cell: Any, clock: int) -> bool:
    """Whether the second call, of the same shape, took long for the same reason as the first.

    More than half of what the first took beyond a usual call, where that is a quarter of a second
    and half of a usual call.
    """
    usual = median(cell, clock)
    first, second = cell.first[clock] - usual, cell.second[clock] - usual
    return first > max(0.25, usual / 2) and second > first / 2


def table(cells: Sequence[Any], clock: int) -> str:
    """Every cell that was timed."""
    unit = "by the clock" if clock else "of the processor"
    heading = ["(B, T, D, n)", "mode", "row", "runs", "ms", "× C", "× ours", "first call, s"]
    heading += ["second, s", "MB", "difference"]
    lines = [
        f"times {unit}; ms: median (quartiles); ×: of runs in the same round, likewise; ours: of",
        "the same recurrence, of COFFEE for GRU and LSTM; second: call with other values; MB: the",
        "most that it held; difference: to ours, of outputs and gradients, by the largest element",
        "",
        line(heading),
        line(["---"] * len(heading)),
    ]
    timed = [cell for cell in cells if cell.times]
    if not timed:
        return ""
    return "\n".join([*lines, *(line(_cells(cell, timed, clock)) for cell in timed)])


def _cells(cell: Any, cells: Sequence[Any], clock: int) -> list[str]:
    low, middle, high = (
        np.quantile([x[clock] for x in cell.times.values()], (0.25, 0.5, 0.75)) * 1e3
    )
    family = _ours_for(cell.family)
    others = [find(cells, cell.shape, cell.mode, family, row) for row in (LIMIT, OURS)]
    ratios = ["" if x is None or x is cell else _ratio(cell, x, clock) for x in others]
    return [
        str(cell.shape),
        cell.mode,
        name(cell.family, cell.row),
        str(len(cell.times)),
        f"{_number(middle)} ({_number(low)}-{_number(high)})",
        *ratios,
        f"{cell.first[clock]:.2f}",
        f"{cell.second[clock]:.2f}" + (", COMPILES AGAIN" if compiles_again(cell, clock) else ""),
        "" if cell.megabytes is None else _number(cell.megabytes),
        "" if cell.difference is None else f"{cell.difference:.0e}",
    ]


def _ours_for(family: str) -> str:
    """The family of the row of ours that one of this family is compared with."""
    return COFFEE if family in (GRU, LSTM) else family


def name(family: str, row: str) -> str:
    """As a table has it."""
    return row if family in row else f"{family}, {row}"


def _ratio(cell: Any, other: Any, clock: int) -> str:
    low, middle, high = map(_number, ratio(cell, other, clock))
    return f"{middle} ({low}-{high})"


def _number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def skipped(cells: Iterable[Any]) -> str:
    """What was not timed, and why; the same reason once."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.skipped:
            what = f"- {name(cell.family, cell.row)}: {cell.skipped}"
            reasons.setdefault(what, []).append(f"{cell.shape} {cell.mode}")
    lines = [f"{what} [{', '.join(dict.fromkeys(where))}]" for what, where in reasons.items()]
    return "\n".join(["Left out:", *lines]) if lines else ""


def bars(backend: str, cells: Sequence[Any], along_time: Sequence[Any], clock: int) -> str:
    """What must hold, as far as it was measured, with a verdict for each."""
    found = [
        *_limit_bars(backend, cells, clock),
        *_peer_bars(cells, clock),
        *_call_bars(cells, clock),
        *_step_bars(along_time, clock),
    ]
    rows = [
        line([what, measured, bar, "met" if met else "NOT MET"])
        for what, measured, bar, met in found
    ]
    if not rows:
        return ""
    return "\n".join([line(["bar", "measured", "must be", ""]), line(["---"] * 4), *rows])


def _limit_bars(backend: str, cells: Sequence[Any], clock: int) -> Iterable[tuple]:
    places = [
        *(
            (family, shape, mode, bar)
            for family in (COFFEE, S6_SCAN)
            for mode, bar in (("training", TRAINING_BAR[backend]), ("inference", INFERENCE_BAR))
            for shape in FAST_SHAPES
        ),
        *((MAMBA, x, mode, MAMBA_BAR) for mode in MODES for x in MAMBA_SHAPES[MAMBA]),
        *((LINEAR, shape, "training", LINEAR_BAR) for shape in LINEAR_SHAPES),
    ]
    for family, shape, mode, bar in places:
        ours, limit = (find(cells, shape, mode, family, row) for row in (OURS, LIMIT))
        if ours and limit:
            value = ratio(ours, limit, clock)[1]
            what = f"{mode} {shape}, {'' if family == COFFEE else f'{family} '}ours by C"
            yield what, f"{value:.2f}", f"≤ {bar}", value <= bar


def _peer_bars(cells: Sequence[Any], clock: int) -> Iterable[tuple]:
    for shape, family, row, bar in PEER_BARS:
        ours = find(cells, shape, "training", _ours_for(family), OURS)
        peer = find(cells, shape, "training", family, row)
        if ours and peer:
            value = ratio(peer, ours, clock)[1]
            what = f"training {shape}, {name(family, row)} by ours"
            yield what, f"{value:.1f}", f"≥ {bar}", value >= bar


def _call_bars(cells: Sequence[Any], clock: int) -> Iterable[tuple]:
    ours = [cell for cell in cells if cell.row.startswith(OURS) and cell.times]
    if ours:
        longest = max(ours, key=lambda cell: cell.first[clock])
        seconds = longest.first[clock]
        which = name(longest.family, longest.row)
        where = f"{seconds:.1f} s: {which}, {longest.shape}, {longest.mode}"
        yield (
            "longest first call of ours",
            where,
            f"≤ {FIRST_CALL_BAR} s",
            seconds <= FIRST_CALL_BAR,
        )
        again = sum(compiles_again(cell, clock) for cell in ours)
        yield "ours, compiled again for the same shape", f"{again} of {len(ours)}", "0", not again


def _step_bars(along_time: Sequence[Any], clock: int) -> Iterable[tuple]:
    for row, steps in step_times(along_time, clock).items():
        if row.startswith(OURS):
            value = max(steps.values()) / min(steps.values())
            what = f"{row}, time per step from T = {min(steps):,} to {max(steps):,}"
            yield what, f"longest by shortest {value:.2f}", f"≤ {STEP_BAR}", value <= STEP_BAR


def step_times(cells: Iterable[Any], clock: int) -> dict[str, dict[int, float]]:
    """Seconds of a step, by row and by number of steps."""
    found: dict[str, dict[int, float]] = {}
    for cell in cells:
        if cell.times:
            length = cell.shape[1]
            found.setdefault(cell.row, {})[length] = median(cell, clock) / length
    return found
