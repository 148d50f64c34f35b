"""How a state moves in the plane."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from matplotlib.axes import Axes

from keras_coffee._typing import is_integer
from keras_coffee.layers import CoffeeLayer
from keras_coffee.visualization.drawing import checked_labels, draw_arrows, new_axes, write
from keras_coffee.visualization.inside import Run, follow

# Colors that the color-blind tell apart: M. Okabe and K. Ito.
_COLORS = ("#0072B2", "#D55E00", "#000000", "#CC79A7", "#009E73", "#E69F00", "#56B4E9")


def plot_state_trajectory(
    model: keras.Model,
    inputs: Any,
    layer: CoffeeLayer | str | None = None,
    states: str | Sequence[tuple[int, int]] | None = None,
    labels: Sequence[str] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Draws how the state of a `CoffeeLayer` moves, step by step, in the plane of two states.

    An arrow for each step leads from x(k-1) to x(k) and has the number k at its head, one color for
    each sequence. The first starts where the layer does: at zero, or at the initial state that the
    model gives it or a stateful layer carries for as many sequences. Neither weights nor carried
    states change.

    Args:
        model: A built `keras.Sequential` or Functional model with a `CoffeeLayer`.
        inputs: As for `model.predict`, one to seven sequences; for one, the axis of the batch may
            be left out.
        layer: The layer or its name, if the model has several.
        states: Two pairs (feature, state), for the horizontal axis and the vertical one. None: the
            first two states. `"outputs"`: not the states but the outputs y(k) of a layer with two
            features, which is the plane of `plot_decision_regions`. For n = 1 and C = 1 they agree.
        labels: Names of the sequences. None: their symbols, or their numbers.
        axes: Where to draw. None: a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: if the model is not built or subclassed, has no such layer, or several and none
            is chosen; if the layer has a single state, `states` are none of its states, or there
            are more than seven sequences; if the states are not finite.

    Example:
        >>> symbols = SymbolEmbedding(3, dim=2)
        >>> model = keras.Sequential([keras.Input((4,), dtype="int32"), symbols, CoffeeLayer(1)])
        >>> axes = plot_state_trajectory(model, [[0, 1, 2, 0], [2, 0, 1, 0]])
        >>> axes.get_xlabel()
        'x(k), feature 0, state 0'

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", section "Functioning
        principles of COFFEE" and the figure of appendix "Towards a mechanistic interpretation".
    """
    run = follow(model, inputs, layer)
    paths, names = _paths(run, states)
    if len(paths) > len(_COLORS):
        raise ValueError(
            f"At most {len(_COLORS)} sequences can be told apart, received {len(paths)}. Pass a "
            "few of them, for example inputs[:2]."
        )
    labels = checked_labels(labels, len(paths), _titles(run))
    axes = new_axes(5.5, 5.0) if axes is None else axes
    if not axes.has_data():
        axes.set(xlabel=names[0], ylabel=names[1])
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.1)
    for path, color, label in zip(paths, _COLORS, labels, strict=False):
        # The line is for the limits of the axes and the legend, which know nothing of arrows.
        axes.plot(*path.T, color=color, marker="o", markersize=4, markevery=[0], label=label)
        draw_arrows(axes, path, color)
    axes.autoscale_view()
    reach = 0.04 * max(np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim()))
    for i, path in enumerate(paths):
        # Sequences that come to a point from the same side are written apart.
        _number_steps(axes, path, _COLORS[i], reach, turn=0.7 * (i - (len(paths) - 1) / 2))
    axes.legend(title=None if run.symbols is None else "inputs")
    return axes


def _paths(
    run: Run, states: str | Sequence[tuple[int, int]] | None
) -> tuple[np.ndarray, tuple[str, str]]:
    """Points `(B, T + 1, 2)` and what the two coordinates are."""
    _, _, dim, n = run.states.shape
    if isinstance(states, str) and states == "outputs":
        if dim != 2:
            raise ValueError(f'states="outputs" needs a layer of two features, not of {dim}.')
        return run.outputs(), ("output of feature 0", "output of feature 1")
    if dim * n == 1:
        raise ValueError(
            f"{run.layer.name!r} has a single state, and a plane needs two. plot_gates draws what "
            "there is, layer.trajectory gives the numbers."
        )
    if states is None:
        states = [(k // n, k % n) for k in range(2)]
    pairs = _checked_pairs(states, dim, n)
    names = [f"x(k), feature {i}, state {j}" for i, j in pairs]
    return np.stack([run.states[:, :, i, j] for i, j in pairs], axis=-1), (names[0], names[1])


def _checked_pairs(states: Any, dim: int, n: int) -> list[tuple[int, int]]:
    try:
        pairs = [tuple(pair) for pair in states]
    except TypeError:
        pairs = []
    inside = [
        len(pair) == 2 and all(map(is_integer, pair)) and 0 <= pair[0] < dim and 0 <= pair[1] < n
        for pair in pairs
    ]
    if len(inside) != 2 or not all(inside):
        raise ValueError(
            "`states` must be two pairs (feature, state) with features below "
            f'{dim} and states below {n}, or "outputs"; received {states!r}.'
        )
    return pairs


def _titles(run: Run) -> list[str]:
    """The symbols of each sequence, or its number."""
    if run.symbols is None:
        return [f"sequence {i}" for i in range(len(run.gates))]
    rows = [[str(symbol) for symbol in row] for row in run.symbols]
    return [" ".join(row if len(row) <= 10 else [*row[:6], "…", *row[-3:]]) for row in rows]


def _number_steps(axes: Axes, path: np.ndarray, color: str, reach: float, turn: float) -> None:
    """Writes the steps beside the points; steps that end within `reach` of another go with it."""
    places: list[list[int]] = []
    for k in range(1, len(path)):
        near = [steps for steps in places if np.hypot(*(path[steps[0]] - path[k])) < reach]
        if near:
            near[0].append(k)
        else:
            places.append([k])
    for steps in places:
        point = path[steps[0]]
        write(axes, _ranges(steps), point, point - path[steps[0] - 1], color, turn)


def _ranges(steps: list[int]) -> str:
    """3, 5, 6, 7 as "3, 5–7"."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and runs[-1][-1] == step - 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    names = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join(names if len(names) <= 3 else [*names[:3], "…"])
