"""Resets of the scans: a row with them is its pieces alone."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    ("scan", "arrays", "options"),
    [
        (coffee_scan, COFFEE, {"solver": "newton"}),
        (coffee_scan, COFFEE, {"solver": Newton(window=4), "feedback": None}),
        (coffee_scan, COFFEE, {"recompute": True}),
        (selective_scan, SELECTIVE, {"solver": "associative"}),
        (selective_scan, SELECTIVE, {"recompute": True}),
        *(
            [
                (coffee_scan, COFFEE, {"solver": "elk"}),
                (coffee_scan, COFFEE, {}),
                (selective_scan, selective_arrays(SHAPE, varying=(False, False)), {}),
            ]
            if IS_THOROUGH
            else []
        ),
    ],
    ids=str,
)
def test_scans_by_each_solver(scan, arrays, options):
    check(scan, arrays, **options)
