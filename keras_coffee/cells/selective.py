"""Selective state-space models: S6 (Mamba's), and its linearization."""

import dataclasses
from typing import ClassVar, Literal

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Structure
from keras_coffee.cells.discretization import forward_euler, zero_order_hold

Discretization = Literal["zoh", "euler"]


@dataclasses.dataclass(frozen=True)
class SelectiveCell:
    """One step of a diagonal state-space model whose step size depends on the input.

        x(k) = decay x(k-1) + gain B(k) u(k),   decay, gain from λ and Δ(k)

    Linear in the state. The methods take one step or a whole sequence of them.

    Args:
        transition: λ, the diagonal of A, `(D, n)`.
        discretization: `"zoh"` (S6) or `"euler"` (the linearized model of step 1).

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations (S6_model)
        and (linearized_model).
    """

    transition: Tensor
    discretization: Discretization = "zoh"

    structure: ClassVar[Structure] = "diagonal"

    def step(self, state: Tensor, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The next state `(..., D, n)`.

        Args:
            state: x(k-1), `(..., D, n)`.
            inputs: u(k) `(..., D)`, Δ(k) `(..., D)` and B(k): `(..., 1, n)` if all features share
                it, `(D, n)` if each has its own.
        """
        decay, drive = self.affine(inputs)
        return decay * state + drive

    def affine(self, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The step as decay and drive of x(k) = decay x(k-1) + drive, each `(..., D, n)`."""
        source, delta, input_matrix = inputs
        decay, gain = self._discretize(delta)
        return decay, gain * input_matrix * source[..., None]

    def jacobian(self, state: Tensor, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Diagonal of ∂x(k)/∂x(k-1), `(..., D, n)`: the decay."""
        return ops.broadcast_to(self._discretize(inputs[1])[0], ops.shape(state))

    def _discretize(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        function = zero_order_hold if self.discretization == "zoh" else forward_euler
        return function(self.transition, delta[..., None])
