"""The recurrence that is linear in its state."""

import dataclasses
from typing import ClassVar

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Structure


@dataclasses.dataclass(frozen=True)
class AffineCell:
    """x(k) = a(k) x(k-1) + b(k), elementwise. Inputs are the pairs (a, b)."""

    structure: ClassVar[Structure] = "diagonal"

    def step(self, state: Tensor, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """The next state."""
        decay, drive = inputs
        return decay * state + drive

    def jacobian(self, state: Tensor, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """The decay a(k)."""
        return inputs[0]
