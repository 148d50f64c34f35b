"""Cost of a training step, and memory, against the number of steps, sequences, features, states."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import report
from cases import COFFEE, LIMIT, OURS, RNN
from measuring import line

# Batches of four, so that a call of 1,024 steps takes more than what any call costs.
BATCH, DIM, N = 4, 16, 8
LENGTHS = (1024, 4096, 16_384, 65_536, 262_144)
AXES = {
    "B": [(size, 256, DIM, N) for size in (1, 8, 64, 512)],
    "D": [(8, 1024, size, N) for size in (4, 16, 64, 256)],
    "n": [(8, 1024, DIM, size) for size in (1, 4, 16, 64)],
}
ROWS = (OURS, f"{OURS}, recompute", LIMIT, RNN)


def run(
    rows: Sequence[Any], options: argparse.Namespace, measure: Callable[..., list[Any]]
) -> dict[str, list[Any]]:
    """Measured cells by axis: T, B, D, n."""
    rows = [row for row in rows if row.family == COFFEE and row.name in ROWS]
    lengths = [length for length in LENGTHS if length <= options.longest]
    shapes = {"T": [(BATCH, length, DIM, N) for length in lengths], **AXES}
    return {
        axis: [cell for shape in found for cell in measure(rows, shape, "training", options)]
        for axis, found in shapes.items()
    }


def tables(axes: dict[str, Sequence[Any]], clock: int) -> str:
    """Milliseconds of a training step and megabytes, by axis; for T also the time of a step."""
    parts = []
    for axis, cells in axes.items():
        names = list(dict.fromkeys(cell.row for cell in cells if cell.times))
        heading = [f"(B, T, D, n) along {axis}"]
        for name in names:
            heading += [f"{name}, ms", *([f"{name}, µs a step"] * (axis == "T")), f"{name}, MB"]
        parts += [line(heading), line(["---"] * len(heading))]
        for shape in dict.fromkeys(cell.shape for cell in cells):
            row = [str(shape)]
            for name in names:
                cell = report.find(cells, shape, "training", COFFEE, name)
                row += _values(cell, axis, clock)
            parts.append(line(row))
        parts.append("")
    return "\n".join(parts)


def _values(cell: Any, axis: str, clock: int) -> list[str]:
    if cell is None:
        return [""] * (3 if axis == "T" else 2)
    seconds = report.median(cell, clock)
    step = [f"{1e6 * seconds / cell.shape[1]:.2f}"] if axis == "T" else []
    memory = "" if cell.megabytes is None else f"{cell.megabytes:.4g}"
    return [f"{1e3 * seconds:.4g}", *step, memory]
