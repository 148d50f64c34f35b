"""One step after another."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.solvers.algebra import Algebra, Diagonal
from keras_coffee.solvers.residual import found_directly
from keras_coffee.solvers.solution import Solution
from keras_coffee.solvers.solver import Solver


@keras.saving.register_keras_serializable(package="keras_coffee")
@dataclasses.dataclass(frozen=True)
class Sequential(Solver):
    """Steps through time in order. Exact, T steps in a row.

    For COFFEE and the selective models that is one fused scan of the backend.
    """

    def find(self, cell: Cell, initial_state: Tensor, inputs: Any) -> Solution:
        return found_directly(cell, initial_state, run(cell, initial_state, inputs), inputs)

    def linear(self, algebra: Algebra, jacobian: Tensor, drive: Tensor) -> Tensor:
        zeros = ops.zeros_like(drive[:, 0])
        if algebra is Diagonal:
            return backend.linear_scan(jacobian, drive, zeros, reverse=True)

        def body(carry, slices):
            state = algebra.apply(slices[0], carry[0]) + slices[1]
            return [state], [state]

        sequences = [ops.flip(_swap(x), axis=0) for x in (jacobian, drive)]
        _, (states,) = backend.scan(body, [zeros], sequences, [zeros])
        return _swap(ops.flip(states, axis=0))


def run(cell: Cell, initial_state: Tensor, inputs: Any) -> Tensor:
    """All states `(B, T, ...)` of a cell."""

    def body(carry, slices):
        state = cell.step(carry[0], keras.tree.pack_sequence_as(inputs, list(slices)))
        return [state], [state]

    sequences = [_swap(x) for x in keras.tree.flatten(inputs)]
    _, (states,) = backend.scan(body, [initial_state], sequences, [initial_state])
    return _swap(states)


def _swap(x):
    return ops.swapaxes(x, 0, 1)
