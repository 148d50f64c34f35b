"""Times COFFEE, S6 and Mamba, ours and others, forward and backward, beside the limit of one core.

Run it once for each backend; README.md says how to read it:

    KERAS_BACKEND=jax python benchmarks/bench.py

Answers of all that computes the same are compared before anything is timed. One thread on one core
by default; everything in one run, taking turns.
"""

import argparse
import dataclasses
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import arguments


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser(__doc__)
    add = parser.add_argument
    add("--shapes", type=arguments.shape_of, nargs="*", metavar="B,T,D,n")
    add("--modes", nargs="+", default=arguments.MODES, choices=arguments.MODES)
    add("--rows", nargs="+", metavar="PART", help="only rows with one of these in their names")
    add("--threads", type=int, default=1, help="as many cores; C has one thread in any case")
    add("--repeats", type=int, default=30, help="timed runs of each row")
    add("--seconds", type=float, default=1, help="a row takes no longer, or is timed once")
    add("--limit", type=float, default=5, help="seconds that a call may take, by a short try")
    add("--sweep", action="store_true", help="cost against T, B, D and n too")
    add("--longest", type=int, default=262_144, metavar="T", help="of the sweep")
    add("--json", type=Path, metavar="FILE", help="write every single time to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw the sweep")
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import cases
import measuring
import report
import sweep
from cases import Row, Shape

# What is tried first where a step may cost too much, and from how many steps on.
TRIED_STEPS, TRIED_FROM = 64, 512


def main(given: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(given)
    where, backend, reference = measuring.prepare(options.core, options.threads)
    # Only now: it imports the framework.
    rows = importlib.import_module("rows").all_rows()
    rows = [row for row in rows if matches(row, options.rows)]
    if not rows:
        raise SystemExit(f"No row has any of {options.rows} in its name.")
    heading = measuring.environment(reference, where)
    reference.inference(lambda x: (x + 1,))(rows[0].convert([1.0]))  # what is set up once
    cells = [
        cell
        for shape, chosen in by_shape(rows, options.shapes).items()
        for mode in options.modes
        for cell in measure(chosen, shape, mode, options)
    ]
    axes = sweep.run(rows, options, measure) if options.sweep else {}
    finish(backend, heading, cells, axes, options)


def finish(backend: str, heading: list[str], cells: list, axes: dict, options: Any) -> None:
    """Writes the files that were asked for, then prints the tables."""
    clock = int(options.threads > 1)
    if options.json:
        sweeps = {axis: [cell.as_dict() for cell in found] for axis, found in axes.items()}
        content = {"backend": backend, "environment": heading}
        content |= {"cells": [cell.as_dict() for cell in cells], "sweep": sweeps}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1))
    if options.plot and axes:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        importlib.import_module("plots").draw(axes, clock, f"{backend}, {heading[1]}", options.plot)
    parts = [
        report.skipped([*cells, *(cell for found in axes.values() for cell in found)]),
        sweep.tables(axes, clock),
        "\n".join(heading),
        report.bars(backend, cells, axes.get("T", ()), clock),
        report.table(cells, clock),
    ]
    print("", "\n\n".join(filter(None, parts)), sep="\n")


def matches(row: Row, parts: Sequence[str] | None) -> bool:
    """Whether one of the parts is in the row's name, as the table has it."""
    name = report.name(row.family, row.name).lower()
    return parts is None or any(part.lower() in name for part in parts)


def by_shape(rows: Sequence[Row], shapes: Sequence[Shape] | None) -> dict[Shape, list[Row]]:
    """The rows to be timed at each shape: all at the given ones, else each at its family's."""
    if shapes is not None:
        return {shape: list(rows) for shape in shapes}
    found: dict[Shape, list[Row]] = {}
    for row in rows:
        for shape in cases.shapes_of(row.family):
            found.setdefault(shape, []).append(row)
    return found


@dataclasses.dataclass
class Cell:
    """What was measured of a row for one shape and mode, or why it was not.

    Attributes:
        first: Seconds of the first call, compilation included: of the processor, by the clock.
        second: Likewise of the second call, with other values.
        megabytes: The most that the second call held, with what the row keeps between calls; None
            where it cannot be told.
        difference: The largest to ours, of outputs and gradients; None where nothing is compared.
        times: Seconds of timed calls, of the processor and by the clock, by round.
    """

    shape: tuple[int, ...]
    mode: str
    family: str
    row: str
    skipped: str | None = None
    first: tuple[float, float] | None = None
    second: tuple[float, float] | None = None
    megabytes: float | None = None
    difference: float | None = None
    times: dict[int, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def measure(
    rows: Sequence[Row], shape: Shape, mode: str, options: argparse.Namespace
) -> list[Cell]:
    """Compares the answers of all rows, then times them in turn."""
    print(f"{shape}, {mode}", flush=True)
    cells, runs, repeats, expected = [], [], [], {}
    for row in rows:
        if mode not in row.modes:
            continue
        cell = Cell(shape, mode, row.family, row.name)
        run = _ready(row, cell, expected, options)
        if run is not None:
            runs.append((cell, run))
            seconds = cell.second[int(options.threads > 1)]
            repeats.append(max(1, min(options.repeats, int(options.seconds / seconds))))
        cells.append(cell)
    if runs:
        times = measuring.take_turns([run for _, run in runs], repeats)
        for (cell, _), found in zip(runs, times, strict=True):
            cell.times = found
    for cell in cells:
        if cell.first and not cell.times and not cell.skipped:
            # It was called once; its ratios are of the last round, which every row joins.
            cell.second, cell.times = cell.first, {max(repeats, default=1) - 1: cell.first}
    return cells


def _ready(
    row: Row, cell: Cell, expected: dict[str, Any], options: argparse.Namespace
) -> Callable[[], Any] | None:
    """A row's function, called twice and compared, ready to be timed.

    None if the row is left out, or is not called again.
    """
    try:
        if row.loops and cell.shape[1] >= TRIED_FROM:
            _try_some_steps(row, cell.shape, cell.mode, options.limit)
        call = row.make(cell.shape, cell.mode)
        run = row.bound(call, cell.shape, cell.mode, seed=0)
        cell.first, answers = measuring.timed(run)
        _compare(row, cell, measuring.arrays(answers), expected)
        if row.once and min(cell.first) > options.limit:
            return None
    except cases.Unavailable as reason:
        cell.skipped = str(reason)
        print(f"  left out: {row.family}, {row.name}: {reason}", flush=True)
        return None
    del answers
    other = row.bound(call, cell.shape, cell.mode, seed=1)
    cell.second, answers, held = measuring.watched(other)
    if held is not None:
        held += row.nbytes(cell.shape, cell.mode) / 1e6
        # A call holds what it returns. If it seems not to, the framework had kept memory for it.
        returned = sum(x.nbytes for x in measuring.arrays(answers)) / 1e6
        cell.megabytes = held if held > 0.9 * returned else None
    return run


def _try_some_steps(row: Row, shape: Shape, mode: str, limit: float) -> None:
    batch, length, dim, n = shape
    short = batch, TRIED_STEPS, dim, n
    run = row.bound(row.make(short, mode), short, mode, seed=0)
    run()  # compiles
    # Of the processor or by the clock: neither other programs nor other threads shall count.
    seconds = min(measuring.timed(run)[0]) * length / TRIED_STEPS
    if seconds > limit:
        raise cases.Unavailable(
            f"a call would take about {seconds:.0f} s, by {TRIED_STEPS} of its {length:,} steps; "
            f"the limit is {limit:g} s"
        )


def _compare(row: Row, cell: Cell, answers: list, expected: dict[str, Any]) -> None:
    """Ends the program, or leaves out a row that may miss, unless it answers as the first did."""
    if row.family not in cases.TAKE:
        return
    first, right = expected.setdefault(row.family, (row.name, answers))
    if first == row.name:
        return
    found = measuring.differences(answers, right)
    cell.difference = worst = max(found)
    if worst <= measuring.TOLERANCE:
        return
    name = cases.names(row.family, cell.mode)[found.index(worst)]
    text = (
        f"other answers than those of {first}: {name} off by {worst:.1e} of the largest element, "
        f"allowed {measuring.TOLERANCE:.0e}"
    )
    if row.may_miss:
        raise cases.Unavailable(text)
    raise SystemExit(f"{cell.shape}, {cell.mode}: nothing was timed. {row.name} has {text}.")


if __name__ == "__main__":
    main()
