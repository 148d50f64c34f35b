"""Linear recurrences by a parallel prefix scan."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.solvers.affine import affine_scan
from keras_coffee.solvers.algebra import BY_STRUCTURE
from keras_coffee.solvers.residual import found_directly
from keras_coffee.solvers.solution import Solution
from keras_coffee.solvers.solver import Solver


@keras.saving.register_keras_serializable(package="keras_coffee")
@dataclasses.dataclass(frozen=True)
class Associative(Solver):
    """All states of a linear recurrence in about log2 T rounds, keeping the whole trajectory.

    For every recurrence that is linear in its state. Rounding errors grow with the products of the
    decays, which stay below 1 in a stable recurrence. If decays above 1 let states beyond the range
    of the dtype cancel, the result is infinite or NaN instead of the small difference.

    Reference:
        G. Blelloch, "Prefix sums and their applications", 1990.
    """

    def find(self, cell: Cell, initial_state: Tensor, inputs: Any) -> Solution:
        algebra = BY_STRUCTURE[cell.structure]
        length = ops.shape(keras.tree.flatten(inputs)[0])[1]
        zeros = ops.repeat(ops.zeros_like(initial_state)[:, None], length, axis=1)
        states = affine_scan(
            algebra, cell.jacobian(zeros, inputs), cell.step(zeros, inputs), initial_state
        )
        return found_directly(cell, initial_state, states, inputs)
