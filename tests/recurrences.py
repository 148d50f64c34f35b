"""Recurrences with their data, easy to hard, and their plain float64 loops.

Each has one group of states for every scale in `GATES`, none of which sees another, and one
sequence for every scale in `INPUTS`. Nothing in the loops comes from the package.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from oracles import coffee_step, sigmoid

from keras_coffee.cells import Cell, CoffeeCell, DiagonalGRUCell, ElmanCell

GATES = (0.5, 1, 2, 4, 10)
INPUTS = (0.1, 1, 3)


class Case(NamedTuple):
    """A recurrence, float64 arrays for it, and its step on them."""

    cell: Callable[..., Any]
    weights: dict[str, np.ndarray]
    inputs: np.ndarray
    initial_state: np.ndarray
    step: Callable[[dict, np.ndarray, np.ndarray], np.ndarray]


def coffee(length):
    generator, dim = np.random.default_rng(0), 2 * len(GATES)
    weights = {
        "transition": generator.uniform(-2, 0, size=(dim, 1)),
        "gate": np.repeat(GATES, 2)[:, None] * generator.normal(size=(dim, 1)),
    }

    def step(weights, state, inputs):
        return coffee_step(weights, state, inputs[..., None])

    return _case(CoffeeCell, weights, (length, dim), (dim, 1), step, generator)


@dataclasses.dataclass(frozen=True)
class GatedCoffee(Cell):
    """COFFEE whose gate has a bias, and inputs of its own: the second half of the inputs."""

    transition: Any
    gate: Any
    gate_bias: Any

    structure = "diagonal"

    def step(self, state, inputs):
        cell, inputs = self._coffee(inputs)
        return cell.step(state, inputs)

    def jacobian(self, state, inputs):
        cell, inputs = self._coffee(inputs)
        return cell.jacobian(state, inputs)

    def _coffee(self, inputs):
        cell = CoffeeCell(self.transition, self.gate, gate_bias=self.gate_bias)
        return cell, tuple(ops.split(inputs, 2, axis=-1))


def gated_coffee(length):
    case, generator = coffee(length), np.random.default_rng(1)
    weights = case.weights | {"gate_bias": generator.normal(size=case.weights["gate"].shape)}

    def step(weights, state, inputs):
        source, gate_inputs = np.split(inputs, 2, axis=-1)
        return coffee_step(weights | {"gate_inputs": gate_inputs}, state, source[..., None])

    dim = len(case.weights["gate"])
    return _case(GatedCoffee, weights, (length, 2 * dim), (dim, 1), step, generator)


def diagonal_gru(length):
    generator, dim, width = np.random.default_rng(0), 3, 2 * len(GATES)
    weights = {
        "recurrent": np.repeat(GATES, 2) * generator.normal(size=(3, width)),
        "kernel": generator.normal(size=(dim, 3 * width)),
        "bias": generator.normal(size=(3, width)),
    }

    def step(weights, state, inputs):
        driven = np.split(inputs @ weights["kernel"], 3, axis=-1)
        parts = zip(weights["recurrent"], driven, weights["bias"], strict=True)
        (a_z, v_z, b_z), (a_r, v_r, b_r), (a_c, v_c, b_c) = parts
        z, r = sigmoid(a_z * state + v_z + b_z), sigmoid(a_r * state + v_r + b_r)
        return z * state + (1 - z) * np.tanh(a_c * r * state + v_c + b_c)

    return _case(DiagonalGRUCell, weights, (length, dim), (width,), step, generator)


def elman(length):
    generator, dim, width, count = np.random.default_rng(0), 2, 3, len(GATES)
    scale = np.array(GATES)[:, None, None] / width**0.5
    weights = {
        "recurrent": scale * generator.normal(size=(count, width, width)),
        "kernel": generator.normal(size=(count, dim, width)),
        "bias": generator.normal(size=(count, width)),
    }

    def step(weights, state, inputs):
        driven = np.einsum("...d,...dk->...k", inputs, weights["kernel"]) + weights["bias"]
        return np.tanh(np.einsum("...ij,...j->...i", weights["recurrent"], state) + driven)

    return _case(ElmanCell, weights, (length, count, dim), (count, width), step, generator)


CASES = {
    "coffee": coffee,
    "gated coffee": gated_coffee,
    "diagonal GRU": diagonal_gru,
    "Elman": elman,
}


def _case(cell, weights, inputs_shape, state_shape, step, generator):
    inputs = generator.normal(size=(len(INPUTS), *inputs_shape))
    inputs *= np.array(INPUTS).reshape(-1, *(1,) * len(inputs_shape))
    state = generator.normal(size=(len(INPUTS), *state_shape))
    # What float32 holds exactly, so that both precisions see the same data.
    weights, inputs, state = (
        {k: _rounded(w) for k, w in weights.items()},
        _rounded(inputs),
        _rounded(state),
    )
    return Case(cell, weights, inputs, state, step)


def _rounded(x):
    return x.astype("float32").astype("float64")


def loop(case):
    """The states `(B, T, ...)`."""
    state, states = case.initial_state, []
    for t in range(case.inputs.shape[1]):
        state = case.step(case.weights, state, case.inputs[:, t])
        states.append(state)
    return np.stack(states, 1)


def previous(case, states):
    return np.concatenate([case.initial_state[:, None], states[:, :-1]], 1)


def residuals(case, states):
    """How far the states are from the steps of those before, relative where they are above 1."""
    difference = states - case.step(case.weights, previous(case, states), case.inputs)
    return abs(difference) / np.maximum(1, abs(states))


def jacobians(case, states):
    """∂x(k)/∂x(k-1) by complex steps: diagonals `(B, T, ...)`, or matrices `(B, T, ..., H, H)`."""
    start = previous(case, states)
    if case.cell.structure == "diagonal":
        return case.step(case.weights, start + 1e-30j, case.inputs).imag / 1e-30
    columns = []
    for k in range(states.shape[-1]):
        move = np.zeros(states.shape[-1], complex)
        move[k] = 1e-30j
        columns.append(case.step(case.weights, start + move, case.inputs).imag / 1e-30)
    return np.stack(columns, -1)


def carried(case, jacobians, errors):
    """How large differences of size `errors` at each step get, to first order."""
    equation = "...,..." if case.cell.structure == "diagonal" else "...ij,...j->...i"
    error, result = np.zeros_like(errors[:, 0]), []
    for t in range(errors.shape[1]):
        error = np.einsum(equation, abs(jacobians[:, t]), error) + errors[:, t]
        result.append(error)
    return np.stack(result, 1)


def adjoints(case, jacobians, grads):
    """l(k) = g(k) + J(k+1)ᵀ l(k+1), and J(1)ᵀ l(1)."""
    equation = "...,..." if case.cell.structure == "diagonal" else "...ij,...i->...j"
    before, result = np.zeros_like(grads[:, 0]), []
    for t in reversed(range(grads.shape[1])):
        result.append(grads[:, t] + before)
        before = np.einsum(equation, jacobians[:, t], result[-1])
    return np.stack(result[::-1], 1), before
