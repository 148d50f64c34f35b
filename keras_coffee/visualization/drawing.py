"""Axes, arrows and names that the plots share."""

from collections.abc import Sequence

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes


def new_axes(width: float, height: float) -> Axes:
    """Axes of a new figure, which a notebook shows automatically."""
    # Imported only here: drawing on given axes needs no window system.
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def draw_arrows(axes: Axes, path: np.ndarray, color: str, width: float = 0.006) -> None:
    """Draws arrows `(K, 2)` from point to point of a path `(K + 1, 2)`."""
    axes.quiver(
        *path[:-1].T,
        *np.diff(path, axis=0).T,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=width,
        headwidth=4,
        headlength=5,
        headaxislength=4.5,
        color=color,
        zorder=3,
    )


def write(
    axes: Axes, text: str, point: np.ndarray, direction: np.ndarray, color: str, turn: float = 0.0
) -> None:
    """Writes beyond a point, in a direction turned by an angle, so that arrows stay free."""
    angle = np.arctan2(direction[1], direction[0]) + turn
    axes.annotate(
        text,
        (point[0], point[1]),
        xytext=(11 * np.cos(angle), 10 * np.sin(angle)),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize="small",
        color=color,
        path_effects=[patheffects.withStroke(linewidth=2, foreground="white")],
        zorder=4,
    )


def checked_labels(
    labels: Sequence[str] | None, count: int, default: Sequence[str]
) -> Sequence[str]:
    """The labels, as many as needed, or the default."""
    if labels is None:
        return default
    if isinstance(labels, str) or len(labels) != count:
        raise ValueError(f"`labels` must be {count} names, received {labels!r}.")
    return [str(label) for label in labels]
