"""Regions of the plane by the class that a model answers."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from keras_coffee._checks import positive_integer
from keras_coffee.layers import CoffeeLayer, SymbolEmbedding
from keras_coffee.layers.kept_states import kept_states
from keras_coffee.visualization.drawing import checked_labels, draw_arrows, new_axes, write
from keras_coffee.visualization.inside import coffee_layer, rest_of_model

Extent = tuple[float, float, float, float]

# Light colors, safe for the color-blind, on which lines are visible: P. Tol.
_COLORS = (
    *("#EEDD88", "#99DDFF", "#BBCC33", "#FFAABB", "#77AADD", "#44BB99", "#EE8866", "#AAAA00"),
    "#DDDDDD",
)
_GREY = "#555555"


def plot_decision_regions(
    model: keras.Model,
    extent: Extent | None = None,
    layer: CoffeeLayer | str | None = None,
    labels: Sequence[str] | None = None,
    resolution: int = 300,
    axes: Axes | None = None,
) -> Axes:
    """Colors the plane of a `CoffeeLayer`'s two outputs by the model's class.

    A point y counts as the output at all steps, of which there are as many as the model has, or as
    few as it can do with. The layers that follow make class scores of them, and the largest score
    at the last step is the answer. The vectors of a `SymbolEmbedding` with two features are drawn
    as grey arrows. `plot_state_trajectory(..., states="outputs", axes=axes)` adds trajectories;
    drawn first, it sets the extent.

    Args:
        model: A built `keras.Sequential` or Functional model with a `CoffeeLayer` of two features,
            whose one output depends only on the layer's outputs.
        extent: The part of the plane, (left, right, bottom, top). None: what `axes` show already;
            else the vectors and some room around them; without vectors -3 to 3.
        layer: The layer or its name, if the model has several.
        labels: Names of the classes, and of as many vectors. None: their numbers.
        resolution: Points along each side.
        axes: Where to draw. None: a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: if the model is not built or subclassed, has no such layer, or several and none
            is chosen; if the layer has not two features, the rest of the model is something else
            than described above, or an argument does not fit.

    Example:
        >>> symbols = SymbolEmbedding(3, dim=2)
        >>> inputs = keras.Input((4,), dtype="int32")
        >>> model = keras.Sequential([inputs, symbols, CoffeeLayer(1), SoftminLogits(symbols, 1)])
        >>> axes = plot_decision_regions(model, labels=["trigger", "A", "B"])
        >>> axes.images[0].get_array().shape
        (300, 300)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", section "Functioning
        principles of COFFEE", P3, and the figure of appendix "Towards a mechanistic
        interpretation".
    """
    resolution = positive_integer("resolution", resolution)
    layer = coffee_layer(model, layer)
    rest, shape = _rest(model, layer)
    count = model.outputs[0].shape[-1]
    labels = checked_labels(labels, count, [str(c) for c in range(count)])
    vectors = _vectors(model)
    extent = _checked_extent(extent, axes, vectors)
    classes = _classes(rest, shape, extent, resolution)
    axes = new_axes(5.5, 5.0) if axes is None else axes
    if not axes.has_data():
        axes.set(xlabel="output of feature 0", ylabel="output of feature 1")
    _draw_regions(axes, classes, extent)
    _name_regions(axes, classes, extent, labels, vectors)
    for i, vector in enumerate(vectors):
        draw_arrows(axes, np.stack([0 * vector, vector]), _GREY, width=0.004)
        write(axes, labels[i] if len(vectors) == count else str(i), vector, vector, _GREY)
    return axes


def _rest(model: keras.Model, layer: CoffeeLayer) -> tuple[keras.Model, tuple[int, ...]]:
    dim = keras.tree.flatten(layer.output)[0].shape[-1]
    if dim != 2:
        raise ValueError(
            f"Decision regions are parts of a plane, and {layer.name!r} has {dim} features, not 2. "
            "plot_state_trajectory and plot_gates draw layers of any width."
        )
    return rest_of_model(model, layer)


def _vectors(model: keras.Model) -> np.ndarray:
    """The vectors of the symbols, `(V, 2)`, or `(0, 2)` if the model has none in the plane."""
    for layer in model.layers:
        if isinstance(layer, SymbolEmbedding) and layer.dim == 2:
            vectors = ops.convert_to_numpy(ops.cast(layer.table(), "float32"))
            if not np.isfinite(vectors).all():
                raise ValueError(f"The vectors of {layer.name!r} are not finite.")
            return vectors
    return np.empty((0, 2), "float32")


def _checked_extent(extent: Any, axes: Axes | None, vectors: np.ndarray) -> Extent:
    if extent is not None:
        shown = np.array(extent, "float64")
        if (
            shown.shape != (4,)
            or not np.isfinite(shown).all()
            or not (shown[::2] < shown[1::2]).all()
        ):
            raise ValueError(
                "`extent` must be four finite numbers, (left, right, bottom, top) with left < "
                f"right and bottom < top; received {extent!r}."
            )
    elif axes is not None and axes.has_data():
        shown = np.array([*sorted(axes.get_xlim()), *sorted(axes.get_ylim())])
    elif len(vectors):
        corners = np.concatenate([vectors, np.zeros((1, 2))])
        low, high = corners.min(axis=0), corners.max(axis=0)
        room = 0.2 * max(high - low) or 1.0
        shown = np.stack([low - room, high + room]).T.ravel()
    else:
        shown = np.array([-3.0, 3.0, -3.0, 3.0])
    return tuple(shown.tolist())


def _centers(extent: Extent, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the centers of an image's pixels."""
    steps = (np.arange(resolution) + 0.5) / resolution
    left, right, bottom, top = extent
    return left + steps * (right - left), bottom + steps * (top - bottom)


def _classes(
    rest: keras.Model, shape: tuple[int, ...], extent: Extent, resolution: int
) -> np.ndarray:
    """The class of every pixel, `(resolution, resolution)`, from the bottom up."""
    points = np.stack(np.meshgrid(*_centers(extent, resolution)), axis=-1).reshape(-1, 2)
    points = points.astype("float32").reshape(-1, *[1] * (len(shape) - 1), 2)
    held = np.broadcast_to(points, (len(points), *shape))
    masks = [np.ones(held.shape[:2], bool) for _ in rest.inputs[1:]]
    given = [held, *masks] if masks else held
    with kept_states(rest):
        scores = rest.predict(given, batch_size=5000, verbose=0)
    scores = scores.reshape(len(points), -1, scores.shape[-1])[:, -1]
    return scores.argmax(axis=-1).reshape(resolution, resolution)


def _draw_regions(axes: Axes, classes: np.ndarray, extent: Extent) -> None:
    # Classes beyond the colors share them; lines separate them in any case.
    axes.imshow(
        classes % len(_COLORS),
        cmap=ListedColormap(_COLORS),
        vmin=-0.5,
        vmax=len(_COLORS) - 0.5,
        origin="lower",
        extent=extent,
        interpolation="nearest",
        alpha=0.45,
        zorder=0,
    )
    axes.set_aspect("equal", adjustable="box")
    for number in np.unique(classes)[1:]:
        borders = (classes == number).astype(float)
        centers = _centers(extent, len(classes))
        axes.contour(*centers, borders, [0.5], colors="white", linewidths=1.0, zorder=1)


def _name_regions(
    axes: Axes, classes: np.ndarray, extent: Extent, labels: Sequence[str], vectors: np.ndarray
) -> None:
    """Writes each name where its region is widest, away from the vectors' arrows."""
    x, y = _centers(extent, len(classes))
    free = np.ones(classes.shape, bool)
    for point in (vectors[:, None] * np.linspace(0, 1.1, 100)[:, None]).reshape(-1, 2):
        free[abs(y - point[1]).argmin(), abs(x - point[0]).argmin()] = False
    for number in np.unique(classes):
        region = classes == number
        row, column = _widest(free & region if (free & region).any() else region)
        name = f"region “{labels[number]}”"
        axes.text(x[column], y[row], name, ha="center", va="center", fontsize="small", zorder=2)


def _widest(region: np.ndarray) -> tuple[int, int]:
    """A pixel of a region that is farthest from its border."""
    left = region
    while left.any():
        region, padded = left, np.pad(left, 1)
        left = left & padded[2:, 1:-1] & padded[:-2, 1:-1] & padded[1:-1, 2:] & padded[1:-1, :-2]
    rows, columns = np.nonzero(region)
    return rows[len(rows) // 2], columns[len(columns) // 2]
