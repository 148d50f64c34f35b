"""Diagnostics: whether solving a recurrence in parallel is worthwhile."""

from typing import Any

import numpy as np
from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells import Cell
from keras_coffee.cells.masked import marked
from keras_coffee.layers import CoffeeLayer
from keras_coffee.ops import nonlinear_scan
from keras_coffee.solvers.algebra import Dense
from keras_coffee.solvers.residual import previous_states


def layer_lyapunov_exponent(
    layer: CoffeeLayer,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    mask: Tensor | None = None,
) -> float:
    """The largest Lyapunov exponent of a layer on given data, per step.

    Negative: the layer forgets its past at the rate e^exponent per step, and a parallel solver
    needs few iterations for any length. Around zero or above, iterations grow with the steps solved
    at a time; use a small window or the sequential solver.

    Args:
        layer: A layer that has been built.
        inputs: Its inputs u, `(B, T, D)`, some hundreds of steps for a stable figure. A layer that
            goes backwards reads them from the last step to the first.
        initial_state: x(0), `(B, D, n)`. None: zeros.
        mask: `(B, T)`, False at steps to skip; it is left out of the mean.

    Returns:
        The exponent of the state that forgets least. -inf if every state has a step whose
        derivative is zero.

    Raises:
        TypeError: if the layer is no `CoffeeLayer`. Use `lyapunov_exponent` for another one.
        ValueError: if the layer is not built yet, a shape does not fit, or no step counts.

    Example:
        >>> layer = CoffeeLayer(n=2, gate_initializer="zeros", transition_initializer="ones")
        >>> outputs = layer(np.ones((1, 8, 3)))
        >>> round(layer_lyapunov_exponent(layer, np.ones((1, 8, 3))), 4)  # ln 1.5: gate 1/2, λ = 1
        0.4055

    Reference:
        X. Gonzalez et al., "Predictability Enables Parallelization of Nonlinear State Space
        Models", 2025.
    """
    if not isinstance(layer, CoffeeLayer):
        raise TypeError(
            f"`layer` must be a CoffeeLayer, received {type(layer).__name__}. For your own "
            "recurrence use lyapunov_exponent."
        )
    inputs, mask, _ = layer.in_order(*layer.prepare(inputs, mask), None)
    (state,) = layer.as_states(layer.or_zeros(initial_state, inputs), inputs.shape[0])
    return lyapunov_exponent(layer.cell(), layer.cell_inputs(inputs), state, mask)


def lyapunov_exponent(
    cell: Cell, inputs: Any, initial_state: Tensor, mask: Tensor | None = None
) -> float:
    """The largest Lyapunov exponent of a recurrence on given data, per step.

    The mean over steps and sequences of the logarithm by which one step stretches a small
    difference: of a diagonal Jacobian each element, of which the largest mean counts; of a dense
    one the direction that the steps before have turned a difference into.

    Args:
        cell: The recurrence, as for `keras_coffee.ops.nonlinear_scan`.
        inputs: u, `(B, T, ...)`.
        initial_state: x(0), `(B, ...)`.
        mask: `(B, T)`, False at steps to skip.

    Returns:
        The exponent.

    Raises:
        ValueError, TypeError: as `keras_coffee.ops.nonlinear_scan`, and if no step counts.
    """
    states = nonlinear_scan(cell, inputs, initial_state, mask=mask, solver="sequential").states
    if mask is not None:
        mask = ops.cast(ops.convert_to_tensor(mask), "bool")
    # The identity at a masked step: it does not change the direction of a difference.
    cell, inputs = marked(cell, inputs, mask)
    jacobian = cell.jacobian(previous_states(ops.convert_to_tensor(initial_state), states), inputs)
    if cell.structure == "dense":
        stretches = _stretches(jacobian)
    else:
        stretches = ops.convert_to_numpy(ops.abs(jacobian))
    if mask is None:
        stretches = stretches.reshape(-1, *stretches.shape[2:])
    else:
        stretches = stretches[ops.convert_to_numpy(mask)]
    if not len(stretches):
        why = "there is no sequence" if mask is None else "`mask` is False at all of them"
        raise ValueError(f"An exponent is a mean over steps, and no step counts: {why}.")
    with np.errstate(divide="ignore"):
        return float(np.log(stretches).mean(axis=0).max())


def _stretches(jacobian):
    """How much each dense Jacobian stretches the direction that the steps before have made."""

    def body(carry, slices):
        moved = Dense.apply(slices[0], carry[0])
        norm = ops.sqrt(ops.sum(ops.square(moved), axis=-1, keepdims=True))
        return [ops.where(norm > 0, moved / norm, carry[0])], [norm[..., 0]]

    direction = ops.ones_like(jacobian[:, 0, ..., 0]) / jacobian.shape[-1] ** 0.5
    like = [direction[..., 0]]
    _, (norms,) = backend.scan(body, [direction], [ops.swapaxes(jacobian, 0, 1)], like)
    return ops.convert_to_numpy(ops.swapaxes(norms, 0, 1))


def check_jacobian(cell: Cell, state: Tensor, inputs: Any) -> float:
    """Compares a cell's Jacobian with finite differences of its step.

    Moves one element of the state after the other, so a wrong structure is found as well. Float64
    finds much smaller errors than float32.

    Args:
        cell: A step, its Jacobian and its structure.
        state: States to look at, `(B, ...)`; a few random ones.
        inputs: Inputs of one step for them, `(B, ...)`.

    Returns:
        The largest difference, relative to the largest element of the Jacobian, or to 1 if that is
        larger.

    Raises:
        ValueError: if a difference is beyond what rounding explains, or the Jacobian or the step
            gives NaN or infinity.

    Example:
        >>> from keras_coffee.cells import ElmanCell
        >>> cell = ElmanCell(np.eye(2, dtype="float32"), np.ones((1, 2), "float32"), np.zeros(2))
        >>> check_jacobian(cell, np.zeros((3, 2), "float32"), np.zeros((3, 1), "float32")) < 1e-3
        True
    """
    state = ops.convert_to_tensor(state)
    start = ops.convert_to_numpy(state)
    own = ops.convert_to_numpy(cell.jacobian(state, inputs))
    _check_finite(cell, "Jacobian", own)
    expected = _full(own, start.shape, cell.structure)
    epsilon, scale = np.finfo(start.dtype).eps, max(1.0, abs(expected).max())
    worst, excess = 0.0, 0.0
    for k in range(expected.shape[-1]):
        slope, rounding = _slope(cell, start, inputs, k)
        difference = abs(slope - expected[..., k]) / scale
        worst = max(worst, difference.max())
        allowed = _ROUNDING * epsilon ** (2 / 3) + rounding / scale
        excess = max(excess, (difference - allowed).max())
    if excess > 0:
        raise ValueError(
            f"The Jacobian of {type(cell).__name__} differs by {worst:.2g}, relative to its "
            "largest element, from finite differences of its step. Element [..., i, j] is the "
            "derivative of element i of the new state by element j of the old one; if the "
            'structure is "diagonal", no element may depend on another.'
        )
    return float(worst)


# The error of a central difference at the best distance is of the order epsilon^(2/3).
_ROUNDING = 100


def _slope(cell, start, inputs, k):
    """The new state's derivative by element k of the old one, `(B, S)`, and its rounding error."""
    flat, epsilon = start.reshape(len(start), -1), np.finfo(start.dtype).eps
    pair = [flat.copy(), flat.copy()]
    # Far from zero a small move would be lost in rounding.
    move = np.maximum(epsilon ** (1 / 3), 8 * epsilon * abs(flat[:, k])).astype(start.dtype)
    pair[0][:, k] += move
    pair[1][:, k] -= move
    width = pair[0][:, k : k + 1] - pair[1][:, k : k + 1]
    ahead, behind = (
        ops.convert_to_numpy(cell.step(ops.convert_to_tensor(x.reshape(start.shape)), inputs))
        for x in pair
    )
    _check_finite(cell, "step", ahead, behind)
    size = np.maximum(abs(flat), abs(ahead.reshape(flat.shape))).max(axis=1, keepdims=True)
    return (ahead - behind).reshape(flat.shape) / width, 8 * epsilon * size / width


def _check_finite(cell, what, *arrays):
    for name, is_bad in (("NaN", np.isnan), ("infinity", np.isinf)):
        if any(is_bad(x).any() for x in arrays):
            raise ValueError(
                f"The {what} of {type(cell).__name__} gives {name} at these states and inputs. "
                "Differences can only be compared where all numbers are finite."
            )


def _full(jacobian, shape, structure):
    """The Jacobian by all elements of the state, `(B, S, S)`."""
    size = int(np.prod(shape[1:]))
    if structure == "diagonal":
        return jacobian.reshape(len(jacobian), size, 1) * np.eye(size)
    width = jacobian.shape[-1]
    blocks = jacobian.reshape(len(jacobian), -1, width, width)
    full = np.zeros((len(jacobian), size, size))
    for k in range(blocks.shape[1]):
        part = slice(k * width, (k + 1) * width)
        full[:, part, part] = blocks[:, k]
    return full
