"""Recurrences that forget, and what two implementations that solve them must share.

The step of a peer's cell is the one of ours: what is compared is how trajectories and gradients are
found. That the step itself is right is what the float64 loop says, in which nothing of ours is.
"""

import numpy as np
import pytest
from recurrences import CASES, Case, loop
from scans import differentiate

from keras_coffee.cells import CoffeeCell, DiagonalGRUCell, ElmanCell
from keras_coffee.ops import nonlinear_scan
from keras_coffee.solvers import Newton

# Each step is right to eight units of rounding, 1e-6 and 2e-15, relative where the state is above
# 1. With gates of this size recurrences forget within some steps, so no more than ten times that
# comes together.
STATE_TOLERANCE = {"float32": 1e-5, "float64": 2e-14}
GRADIENT_TOLERANCE = {"float32": 1e-4, "float64": 1e-12}


def every_setting(test):
    test = pytest.mark.parametrize("name", ["coffee", "diagonal GRU", "Elman"])(test)
    # The longest ones once: `seq1d` takes more than ten seconds to compile for them.
    sizes = [(0.5, 1), (0.5, 33), (1, 1), (1, 33), (1, 257)]
    test = pytest.mark.parametrize(("gate", "length"), sizes)(test)
    return pytest.mark.parametrize("dtype", ["float32", "float64"])(test)


def mild(name, gate, length):
    """A case of `recurrences` in which all gates, or recurrent weights, are of one scale."""
    generator = np.random.default_rng(0)
    if name == "coffee":
        cell, state_shape = CoffeeCell, (2, 3)
        weights = {
            "transition": generator.uniform(-2, 0, size=(2, 3)),
            "gate": gate * generator.normal(size=(2, 3)),
        }
    elif name == "diagonal GRU":
        cell, state_shape = DiagonalGRUCell, (4,)
        weights = {
            "recurrent": gate * generator.normal(size=(3, 4)),
            "kernel": generator.normal(size=(2, 12)),
            "bias": generator.normal(size=(3, 4)),
        }
    else:
        cell, state_shape = ElmanCell, (3,)
        weights = {
            "recurrent": gate / 3**0.5 * generator.normal(size=(3, 3)),
            "kernel": generator.normal(size=(2, 3)),
            "bias": generator.normal(size=3),
        }
    weights = {name: _rounded(weight) for name, weight in weights.items()}
    inputs = _rounded(generator.normal(size=(3, length, 2)))
    state = _rounded(generator.normal(size=(3, *state_shape)))
    return Case(cell, weights, inputs, state, CASES[name](1).step)


def _rounded(x):
    """What float32 holds exactly, so that both precisions see the same data."""
    return x.astype("float32").astype("float64")


def arrays_of(case, dtype):
    """Everything to differentiate by, by name."""
    arrays = {"inputs": case.inputs, "initial_state": case.initial_state, **case.weights}
    return {name: array.astype(dtype) for name, array in arrays.items()}


def cotangent_of(case, dtype):
    shape = (*case.inputs.shape[:2], *case.initial_state.shape[1:])
    return _rounded(np.random.default_rng(1).normal(size=shape)).astype(dtype)


def solved(case, dtype, scan):
    """States of a scan, and gradients of Σ states * cotangent by name."""
    (states,), gradients = differentiate(scan, arrays_of(case, dtype), [cotangent_of(case, dtype)])
    return states, gradients


def ours(case, dtype):
    def scan(inputs, initial_state, **weights):
        return nonlinear_scan(case.cell(**weights), inputs, initial_state, solver=Newton()).states

    return solved(case, dtype, scan)


def assert_same(case, dtype, our, their):
    """Two results `(states, gradients)` agree with each other and with the loop."""
    for states, gradients in (our, their):
        assert states.dtype == dtype
        assert off(case, states) <= STATE_TOLERANCE[dtype]
        for name, gradient in gradients.items():
            assert_slope(case, name, gradient, GRADIENT_TOLERANCE[dtype])
    for name, gradient in our[1].items():
        size = GRADIENT_TOLERANCE[dtype] * abs(their[1][name]).max()
        np.testing.assert_allclose(gradient, their[1][name], rtol=0, atol=size)


def off(case, states):
    """How far states are from those of the loop, relative where they are above 1."""
    exact = loop(case)
    return (abs(states - exact) / np.maximum(1, abs(exact))).max()


def assert_slope(case, name, gradient, tolerance):
    """A gradient along a random direction is the slope of the loop, by a complex step."""
    direction = np.random.default_rng(2).normal(size=gradient.shape)
    array = arrays_of(case, "float64")[name] + 1e-30j * direction
    moved = case._replace(**{name: array}) if name in Case._fields else case
    if name in case.weights:
        moved = case._replace(weights=case.weights | {name: array})
    slope = (loop(moved) * cotangent_of(case, "float64")).sum().imag / 1e-30
    size = abs(gradient * direction).sum()
    assert abs((gradient * direction).sum() - slope) <= tolerance * size
