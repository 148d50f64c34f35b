"""The linear recurrence itself."""

import dataclasses

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import LinearCell


@dataclasses.dataclass(frozen=True)
class AffineCell(LinearCell):
    """x(k) = a(k) x(k-1) + b(k), elementwise. Inputs are the pairs (a, b)."""

    def affine(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The inputs themselves."""
        return inputs
