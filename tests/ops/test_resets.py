"""Resets of the scans: a row with them is its pieces alone."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from gradients import differentiated
from keras import ops
from nightly import IS_THOROUGH
from scans import assert_same, coffee_arrays, in_pieces, selective_arrays

from keras_coffee.cells import Cell, DiagonalGRUCell, ElmanCell
from keras_coffee.ops import cell_scan, coffee_scan, linear_scan, nonlinear_scan, selective_scan
from keras_coffee.solvers import Newton

BATCH, LENGTH, DIM, N = SHAPE = (2, 9, 3, 2)
RESET = np.zeros((BATCH, LENGTH), bool)
RESET[0, [4, 5, 8]] = RESET[1, [0, 3]] = True
COFFEE = coffee_arrays(SHAPE, gate_scale=0.5, input_scale=1.0, gated=True)
SELECTIVE = selective_arrays(SHAPE)


def check(scan, arrays, **options):
    """With resets, and piece by piece one step after another."""
    own = {k: x for k, x in options.items() if k not in ("solver", "recompute")}
    assert_same(
        lambda **tensors: scan(**tensors, reset=RESET, **options),
        in_pieces(lambda **tensors: scan(**tensors, **own), RESET),
        arrays,
    )


OPTIONS = {
    "newton": (coffee_scan, COFFEE, {"solver": "newton"}),
    "coffee-recompute": (coffee_scan, COFFEE, {"recompute": True}),
    "associative": (selective_scan, SELECTIVE, {"solver": "associative"}),
    "selective-recompute": (selective_scan, SELECTIVE, {"recompute": True}),
}
if IS_THOROUGH:
    fixed = selective_arrays(SHAPE, varying=(False, False))
    OPTIONS |= {
        "elk": (coffee_scan, COFFEE, {"solver": "elk"}),
        "windows": (coffee_scan, COFFEE, {"solver": Newton(window=4), "feedback": None}),
        "coffee": (coffee_scan, COFFEE, {}),
        "selective-fixed": (selective_scan, fixed, {}),
    }


@pytest.mark.parametrize("name", OPTIONS)
def test_scans_by_each_solver(name):
    scan, arrays, options = OPTIONS[name]
    check(scan, arrays, **options)


# Cells that a user writes.


def weights_of(*shapes):
    generator = np.random.default_rng(2)
    names = ("recurrent", "kernel", "bias")
    return {
        name: 0.7 * generator.normal(size=shape).astype("float32")
        for name, shape in zip(names, shapes, strict=True)
    }


CELLS = {
    DiagonalGRUCell: weights_of((3, DIM), (DIM, 3 * DIM), (3, DIM)),
    ElmanCell: weights_of((DIM, DIM), (DIM, DIM), (DIM,)),
}


def own_arrays(cell):
    generator = np.random.default_rng(3)
    own = {"inputs": (BATCH, LENGTH, DIM), "initial_state": (BATCH, DIM)}
    return {k: generator.normal(size=x).astype("float32") for k, x in own.items()} | CELLS[cell]


def scan_of(cell, scan=cell_scan):
    def run(inputs, initial_state, reset=None, **rest):
        weights = {name: rest.pop(name) for name in CELLS[cell]}
        return scan(cell(**weights), inputs, initial_state, reset=reset, **rest)

    return run


# Each pair is a program of its own on JAX and TensorFlow.
BY_DAY = [(DiagonalGRUCell, False), (ElmanCell, True)]
PAIRS = [(cell, x) for cell in CELLS for x in (False, True)] if IS_THOROUGH else BY_DAY


@pytest.mark.parametrize(("cell", "recompute"), PAIRS)
def test_any_cell_in_the_driver(cell, recompute):
    check(scan_of(cell), own_arrays(cell), recompute=recompute)


@pytest.mark.parametrize("cell", CELLS if IS_THOROUGH else [ElmanCell])
def test_a_trajectory_by_newtons_method(cell):
    def states(cell, inputs, initial_state, *, solver="sequential", **marks):
        found = nonlinear_scan(cell, inputs, initial_state, solver=solver, **marks).states
        return found, found[:, -1]

    check(scan_of(cell, states), own_arrays(cell), solver=Newton(window=4))


@dataclasses.dataclass(frozen=True)
class Two(Cell):
    """Two states in a dictionary, one of them complex."""

    decay: Any

    def step(self, state, inputs):
        turned = self.decay * (0.6 + 0.5j) * state["z"] + ops.cast(inputs, state["z"].dtype)
        return {"s": 0.5 * state["s"] + ops.real(turned), "z": turned}

    def read(self, state, inputs):
        return state["s"] + ops.imag(state["z"])


def test_every_state_of_a_tree_begins_at_zero():
    inputs = np.random.default_rng(4).normal(size=(BATCH, LENGTH, DIM)).astype("float32")
    first = {"s": np.ones((BATCH, DIM), "float32"), "z": np.ones((BATCH, DIM), "complex64")}
    cell = Two(ops.ones((DIM,), "complex64"))
    outputs, final = cell_scan(cell, inputs, first, reset=RESET)
    for row, begins in enumerate(RESET):
        s, z = (0 if begins[0] else 1), (0 if begins[0] else 1)
        for t in range(LENGTH):
            s, z = (0, 0) if begins[t] else (s, z)
            z = (0.6 + 0.5j) * z + inputs[row, t]
            s = 0.5 * s + z.real
            actual = ops.convert_to_numpy(outputs)[row, t]
            np.testing.assert_allclose(actual, s + z.imag, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ops.convert_to_numpy(final["z"])[row], z, rtol=1e-5)


@pytest.mark.parametrize("solver", ["sequential", "associative"])
def test_linear_scans_in_both_directions(solver):
    generator = np.random.default_rng(5)
    arrays = {"inputs": generator.normal(size=(BATCH, LENGTH, DIM)).astype("float32")}
    arrays["decay"] = generator.normal(size=(1, 1, DIM)).astype("float32")
    arrays["initial_state"] = generator.normal(size=(BATCH, DIM)).astype("float32")
    # One decay for all steps is no piece of a row.
    scan = functools.partial(linear_scan, solver=solver)
    forwards = in_pieces(lambda decay, **rest: scan(decay, **rest), RESET)

    def expected(decay, **rest):
        return forwards(decay=decay[0, 0], **rest)

    def backwards(inputs, **rest):
        turned = {"inputs": ops.flip(inputs, axis=1), "reset": RESET[:, ::-1].copy()}
        states, final = scan(**turned, reverse=True, **rest)
        return ops.flip(states, axis=1), final

    assert_same(functools.partial(scan, reset=RESET), expected, arrays)
    if solver == "sequential":
        assert_same(backwards, expected, arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("scan", "arrays"), [(coffee_scan, COFFEE), (selective_scan, SELECTIVE)], ids=["coffee", "s6"]
)
def test_what_is_not_finite_stays_in_its_sequence(scan, arrays, value):
    inputs = arrays["inputs"].copy()
    inputs[0, 1] = value
    clean = ops.convert_to_numpy(scan(**arrays, reset=RESET)[0])
    outputs = ops.convert_to_numpy(scan(**arrays | {"inputs": inputs}, reset=RESET)[0])
    assert not np.isfinite(outputs[0, 1:4]).any()
    outputs[0, 1:4] = clean[0, 1:4]
    np.testing.assert_array_equal(outputs, clean)


@pytest.mark.parametrize("recompute", [False, True] if IS_THOROUGH else [False])
def test_what_is_not_finite_leaves_earlier_gradients_alone(recompute):
    arrays = own_arrays(DiagonalGRUCell)

    def loss(inputs, initial_state):
        given = arrays | {"inputs": inputs, "initial_state": initial_state}
        outputs, _ = scan_of(DiagonalGRUCell)(**given, reset=RESET, recompute=recompute)
        return ops.sum(outputs[:, :3] ** 2)

    gradients = differentiated(loss)
    poisoned = arrays["inputs"].copy()
    poisoned[0, 6] = np.nan
    _, expected = gradients(arrays["inputs"], arrays["initial_state"])
    _, (by_inputs, by_state) = gradients(poisoned, arrays["initial_state"])
    np.testing.assert_array_equal(by_inputs[:, :5], expected[0][:, :5])
    np.testing.assert_array_equal(by_state, expected[1])


@pytest.mark.parametrize("solver", ["sequential", "associative"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_scan_drops_a_state_that_is_not_finite(reverse, solver):
    scan = functools.partial(linear_scan, 0.5, COFFEE["inputs"], reverse=reverse, solver=solver)
    reset = np.zeros((BATCH, LENGTH), bool)
    reset[:, -1 if reverse else 0] = True
    state = np.array([[np.nan] * DIM, [np.inf] * DIM], "float32")
    for actual, expected in zip(scan(initial_state=state, reset=reset), scan(), strict=True):
        actual, expected = map(ops.convert_to_numpy, (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
