"""LRU: a linear recurrent unit with complex states."""

import dataclasses

from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import LinearCell


@dataclasses.dataclass(frozen=True)
class LRUCell(LinearCell):
    """One step of the linear recurrent unit.

        λ = exp(-e^ν + i e^θ)
        x(k) = λ ⊙ x(k-1) + b(k)
        y(k) = [Re x(k), Im x(k), u(k)]

    Inputs are the drives b(k), complex, `(..., n)`, and the layer's inputs u(k), `(..., D)`. The
    layer multiplies the outputs `(..., 2n + D)` by one real matrix. |λ| < 1 for every finite ν.

    Args:
        log_decay: ν, `(n,)`.
        log_phase: θ, `(n,)`.

    Reference:
        A. Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023,
        section 3.3.
    """

    log_decay: Tensor
    log_phase: Tensor

    def affine(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """λ `(n,)` and the drives."""
        return ops.exp(
            backend.complex_of(-ops.exp(self.log_decay), ops.exp(self.log_phase))
        ), inputs[0]

    def read(self, state: Tensor, inputs: tuple[Tensor, Tensor]) -> Tensor:
        return ops.concatenate([ops.real(state), ops.imag(state), inputs[1]], axis=-1)
