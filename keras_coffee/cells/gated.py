"""A gated recurrent unit whose states do not mix."""

import dataclasses
from typing import ClassVar

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell, Structure
from keras_coffee.cells.functions import tanh


@dataclasses.dataclass(frozen=True)
class DiagonalGRUCell(Cell):
    """A GRU with a diagonal recurrent matrix.

        z = σ(a_z ⊙ h + V_z u + b_z),  r = σ(a_r ⊙ h + V_r u + b_r)
        c = tanh(a_c ⊙ (r ⊙ h) + V_c u + b_c)
        h(k) = z ⊙ h + (1 - z) ⊙ c,    h = h(k-1)

    Args:
        recurrent: (a_z, a_r, a_c), `(3, H)`.
        kernel: (V_z, V_r, V_c) side by side, `(D, 3H)`.
        bias: (b_z, b_r, b_c), `(3, H)`.

    Reference:
        K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014; with
        diagonal matrices, F. Danieli et al., "ParaRNN", 2025.
    """

    recurrent: Tensor
    kernel: Tensor
    bias: Tensor

    structure: ClassVar[Structure] = "diagonal"

    def step(self, state: Tensor, inputs: Tensor) -> Tensor:
        """The next state `(..., H)` from the state and inputs `(..., D)`."""
        update, _, candidate = self._parts(state, inputs)
        return update * state + (1 - update) * candidate

    def jacobian(self, state: Tensor, inputs: Tensor) -> Tensor:
        """Diagonal of ∂h(k)/∂h(k-1), `(..., H)`.

        z + z' (h - c) + (1 - z) c', with z' = a_z z (1 - z) and
        c' = (1 - c²) a_c (r + h a_r r (1 - r)).
        """
        update, reset, candidate = self._parts(state, inputs)
        a_update, a_reset, a_candidate = (self.recurrent[k] for k in range(3))
        update_slope = a_update * update * (1 - update)
        reset_slope = a_reset * reset * (1 - reset)
        candidate_slope = (1 - candidate**2) * a_candidate * (reset + state * reset_slope)
        return update + update_slope * (state - candidate) + (1 - update) * candidate_slope

    def _parts(self, state, inputs):
        driven = ops.einsum("...d,dk->...k", inputs, self.kernel)
        driven = [x + self.bias[k] for k, x in enumerate(ops.split(driven, 3, axis=-1))]
        a_update, a_reset, a_candidate = (self.recurrent[k] for k in range(3))
        update = ops.sigmoid(a_update * state + driven[0])
        reset = ops.sigmoid(a_reset * state + driven[1])
        return update, reset, tanh(a_candidate * reset * state + driven[2])
