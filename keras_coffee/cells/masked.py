"""Recurrences that skip some steps."""

import dataclasses
from typing import Any

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell, Structure
from keras_coffee.cells.functions import align


@dataclasses.dataclass(frozen=True)
class MaskedCell(Cell):
    """A recurrence that holds its state at masked steps.

        x(k) = f(x(k-1), u(k)) if m(k), else x(k-1)

    Inputs are pairs: those of the cell, and m, boolean, of the shape of the leading axes.

    Args:
        cell: The recurrence f.
    """

    cell: Cell

    @property
    def structure(self) -> Structure:  # type: ignore[override]
        return self.cell.structure

    def step(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """The next state."""
        own, mask = inputs
        return ops.where(align(mask, state), self.cell.step(state, own), state)

    def read(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """The outputs of the cell."""
        return self.cell.read(state, inputs[0])

    def jacobian(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """That of the cell, or the identity."""
        own, mask = inputs
        jacobian = self.cell.jacobian(state, own)
        identity = ops.ones_like(jacobian)
        if self.structure == "dense":
            identity = identity * ops.eye(jacobian.shape[-1], dtype=jacobian.dtype)
        return ops.where(align(mask, jacobian), jacobian, identity)


def masked(cell: Cell, inputs: Any, mask: Tensor | None) -> tuple[Cell, Any]:
    """A cell that skips masked steps, and its inputs."""
    return (cell, inputs) if mask is None else (MaskedCell(cell), (inputs, mask))
