"""The gates of a layer over time."""

import math
from typing import Any

import keras
import numpy as np
from matplotlib.axes import Axes

from keras_coffee.layers import CoffeeLayer
from keras_coffee.visualization.drawing import new_axes
from keras_coffee.visualization.inside import follow

# More names than these along one side can't be read.
_NAMES = 36


def plot_gates(
    model: keras.Model,
    inputs: Any,
    layer: CoffeeLayer | str | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Draws the gates Δ(k) of a `CoffeeLayer` over time, for one sequence, as a heat map.

    A row is a state of a feature, a column a step, in the order in which the layer takes them. 1
    (light) lets the input into the state, 0 (dark) holds the state; masked steps are 0. The gates
    of `feedback="linear"` have no bounds: their colors go to both sides of a white zero.

    Args:
        model: A built `keras.Sequential` or Functional model with a `CoffeeLayer`.
        inputs: As for `model.predict`, one sequence; the axis of the batch may be left out.
        layer: The layer or its name, if the model has several.
        axes: Where to draw. None: a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: if the model is not built or subclassed, has no such layer, or several and none
            is chosen; if there are several sequences; if the states are not finite.

    Example:
        >>> model = keras.Sequential([keras.Input((20, 3)), CoffeeLayer(n=2)])
        >>> axes = plot_gates(model, np.ones((1, 20, 3)))
        >>> axes.images[0].get_array().shape
        (6, 20)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", section "Functioning
        principles of COFFEE", P2.
    """
    run = follow(model, inputs, layer)
    if len(run.gates) != 1:
        raise ValueError(
            f"The gates of one sequence are drawn, received {len(run.gates)}. Pass one of them, "
            "for example inputs[:1]."
        )
    _, steps, dim, n = run.gates.shape
    gates = run.gates[0].reshape(steps, dim * n).T
    if axes is None:
        axes = new_axes(min(3 + 0.3 * steps, 12), min(1.8 + 0.2 * dim * n, 9))
    colors: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 1}
    if run.layer.feedback == "linear":
        bound = float(abs(gates).max()) or 1.0
        colors = {"cmap": "PuOr", "vmin": -bound, "vmax": bound}
    image = axes.imshow(gates, aspect="auto", interpolation="nearest", **colors)
    axes.figure.colorbar(image, ax=axes, label="gate Δ(k)")
    _label_rows(axes, dim, n)
    _label_steps(axes, steps, None if run.symbols is None else run.symbols[0])
    return axes


def _label_rows(axes: Axes, dim: int, n: int) -> None:
    """Names each row, or where they are many each feature, or some features."""
    if dim * n <= _NAMES:
        names = [f"{i}, {j}" if n > 1 else f"{i}" for i in range(dim) for j in range(n)]
        axes.set_yticks(range(dim * n), names)
        axes.set_ylabel("feature, state" if n > 1 else "feature")
        return
    features = np.arange(0, dim, math.ceil(dim / _NAMES))
    axes.set_yticks(features * n + (n - 1) / 2, [str(i) for i in features])
    axes.set_ylabel(f"feature, each with its {n} states" if n > 1 else "feature")
    if n > 1 and dim <= _NAMES:
        axes.hlines(np.arange(1, dim) * n - 0.5, *axes.get_xlim(), color="white", linewidth=0.6)


def _label_steps(axes: Axes, steps: int, symbols: np.ndarray | None) -> None:
    """Names each column by its input, if that is a symbol and all find room, or by its number."""
    if symbols is not None and steps <= _NAMES:
        names = [str(symbol) for symbol in symbols]
        axes.set_xticks(range(steps), names, rotation=90 if max(map(len, names)) > 2 else 0)
        axes.set_xlabel(f"inputs at the steps k = 1, …, {steps}")
        return
    numbers = np.arange(0, steps, math.ceil(steps / _NAMES))
    axes.set_xticks(numbers, [str(k + 1) for k in numbers], rotation=90 if steps > 99 else 0)
    axes.set_xlabel("step k")
