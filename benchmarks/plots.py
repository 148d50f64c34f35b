"""Log-log plots of the sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import report
from matplotlib import pyplot

POSITIONS = {"B": 0, "T": 1, "D": 2, "n": 3}
WORDS = {"T": "steps T", "B": "sequences B", "D": "features D", "n": "states a feature n"}


def draw(axes: dict[str, Sequence[Any]], clock: int, title: str, path: Path) -> None:
    """Time against each axis, and memory against the number of steps."""
    figure, panels = pyplot.subplots(2, 3, figsize=(13, 8), layout="constrained")
    panels = list(panels.flat)
    memory = panels.pop(1)
    for panel, (axis, cells) in zip(panels, axes.items(), strict=False):
        _lines(panel, axis, cells, lambda cell: 1e3 * report.median(cell, clock))
        panel.set_ylabel("ms a training step")
    _lines(memory, "T", axes["T"], lambda cell: cell.megabytes)
    memory.set_ylabel("MB, the most that a training step holds")
    for panel in panels[len(axes) :]:
        panel.axis("off")
    panels[len(axes)].legend(*panels[0].get_legend_handles_labels(), loc="center")
    figure.suptitle(f"Training step of the scan: {title}")
    figure.savefig(path, dpi=200)
    pyplot.close(figure)


def _lines(panel: Any, axis: str, cells: Sequence[Any], value: Any) -> None:
    for name in dict.fromkeys(cell.row for cell in cells if cell.times):
        found = [cell for cell in cells if cell.row == name and cell.times]
        points = [(cell.shape[POSITIONS[axis]], value(cell)) for cell in found]
        points = [(x, y) for x, y in points if y]
        if points:
            panel.plot(*zip(*points, strict=True), "o-", label=name)
    panel.set(xscale="log", yscale="log", xlabel=WORDS[axis])
    fixed = {name: cells[0].shape[at] for name, at in POSITIONS.items() if name != axis}
    panel.set_title(", ".join(f"{name} = {size}" for name, size in fixed.items()), fontsize=9)
    panel.grid(alpha=0.3, which="both")
