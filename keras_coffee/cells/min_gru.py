"""minGRU: a gated recurrent unit whose gate and candidate look at the input alone."""

import dataclasses

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import LinearCell


@dataclasses.dataclass(frozen=True)
class MinGRUCell(LinearCell):
    """One step of minGRU.

        z(k) = σ(a(k))
        h(k) = (1 - z(k)) ⊙ h(k-1) + z(k) ⊙ c(k)

    Inputs are the argument a(k) of the gate and the candidate c(k), each `(..., H)`. The cell has
    no weights. Log-space, which the source uses for its products of many 1 - z, is not needed: the
    scan forms no such product, and σ(-a) is 1 - z without cancellation.

    Reference:
        L. Feng et al., "Were RNNs All We Needed?", 2024, section 3.1.
    """

    def affine(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """1 - z(k) and z(k) c(k)."""
        gate, candidate = inputs
        return ops.sigmoid(-gate), ops.sigmoid(gate) * candidate
