"""Recurrences that skip some steps, or restart at some."""

import dataclasses
from typing import Any

from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell, Structure
from keras_coffee.cells.functions import align


@dataclasses.dataclass(frozen=True)
class _MarkedCell(Cell):
    """A recurrence whose inputs are pairs: those of the cell, and a mark that changes its step."""

    cell: Cell

    @property
    def structure(self) -> Structure:  # type: ignore[override]
        return self.cell.structure

    def read(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """The outputs of the cell."""
        return self.cell.read(state, inputs[0])


@dataclasses.dataclass(frozen=True)
class MaskedCell(_MarkedCell):
    """A recurrence that holds its state at masked steps.

        x(k) = f(x(k-1), u(k)) if m(k), else x(k-1)

    Inputs are pairs: those of the cell, and m, boolean, of the shape of the leading axes.

    Args:
        cell: The recurrence f.
    """

    def step(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """The next state."""
        own, mask = inputs
        return backend.where(align(mask, state), self.cell.step(state, own), state)

    def jacobian(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """That of the cell, or the identity."""
        own, mask = inputs
        jacobian = self.cell.jacobian(state, own)
        identity = ops.ones_like(jacobian)
        if self.structure == "dense":
            identity = identity * ops.eye(jacobian.shape[-1], dtype=jacobian.dtype)
        return backend.where(align(mask, jacobian), jacobian, identity)


@dataclasses.dataclass(frozen=True)
class ResetCell(_MarkedCell):
    """A recurrence whose state is zero before some steps.

        x(k) = f(0, u(k)) if r(k), else f(x(k-1), u(k))

    Inputs are pairs: those of the cell, and r, boolean, of the shape of the leading axes.

    Args:
        cell: The recurrence f.
    """

    def step(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """The next state."""
        own, reset = inputs
        return self.cell.step(_zero_where(reset, state), own)

    def jacobian(self, state: Tensor, inputs: tuple[Any, Tensor]) -> Tensor:
        """That of the cell, or zero."""
        own, reset = inputs
        return _zero_where(reset, self.cell.jacobian(_zero_where(reset, state), own))


def _zero_where(condition: Tensor, x: Tensor) -> Tensor:
    return backend.where(align(condition, x), ops.zeros_like(x), x)


def marked(
    cell: Cell, inputs: Any, mask: Tensor | None, reset: Tensor | None = None
) -> tuple[Cell, Any]:
    """A cell with a mask and resets, and its inputs."""
    if mask is not None:
        cell, inputs = MaskedCell(cell), (inputs, mask)
    return (cell, inputs) if reset is None else (ResetCell(cell), (inputs, reset))
