"""A recurrent network whose states all depend on each other."""

import dataclasses
from typing import ClassVar

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell, Structure
from keras_coffee.cells.functions import tanh


@dataclasses.dataclass(frozen=True)
class ElmanCell(Cell):
    """h(k) = tanh(W h(k-1) + V u(k) + b).

    Weights may have axes in front, for several networks side by side; states and inputs then have
    the same ones before their last.

    Args:
        recurrent: W, `(..., H, H)`.
        kernel: V, `(..., D, H)`, applied from the right: u V.
        bias: b, `(..., H)`.

    Reference:
        J. Elman, "Finding Structure in Time", 1990.
    """

    recurrent: Tensor
    kernel: Tensor
    bias: Tensor

    structure: ClassVar[Structure] = "dense"

    def step(self, state: Tensor, inputs: Tensor) -> Tensor:
        """The next state `(..., H)` from the state and inputs `(..., D)`."""
        driven = ops.einsum("...d,...dk->...k", inputs, self.kernel) + self.bias
        return tanh(ops.einsum("...ij,...j->...i", self.recurrent, state) + driven)

    def jacobian(self, state: Tensor, inputs: Tensor) -> Tensor:
        """∂h(k)/∂h(k-1), `(..., H, H)`: (1 - h(k)²) W, row by row."""
        return (1 - self.step(state, inputs) ** 2)[..., None] * self.recurrent
