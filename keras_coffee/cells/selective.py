"""Selective state-space models: S6 (Mamba's), and its linearization."""

import dataclasses
from typing import ClassVar, Literal

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import LinearCell
from keras_coffee.cells.discretization import forward_euler, zero_order_hold

Discretization = Literal["zoh", "euler"]


@dataclasses.dataclass(frozen=True)
class SelectiveCell(LinearCell):
    """One step of a diagonal state-space model whose step size depends on the input.

        x(k) = decay x(k-1) + gain B(k) u(k),   decay, gain from λ and Δ(k)
        y(k) = C(k) x(k)

    Inputs are u(k) `(..., D)` and Δ(k) `(..., D)`, then B(k) and C(k), each `(..., n)` and shared
    by the features, except those that are fields.

    Args:
        transition: λ, the diagonal of A, `(D, n)`.
        input_matrix: B, `(D, n)`, if it is constant over time. None: it is among the inputs.
        output_matrix: C, `(D, n)`, likewise.
        discretization: `"zoh"` (S6) or `"euler"` (the linearized model of step 1).

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations (S6_model)
        and (linearized_model).
    """

    transition: Tensor
    input_matrix: Tensor | None = None
    output_matrix: Tensor | None = None
    discretization: Discretization = "zoh"

    broadcasts: ClassVar[bool] = True
    SEQUENCES: ClassVar[tuple[str, ...]] = ("inputs", "delta", "input_matrix", "output_matrix")
    OPTIONS: ClassVar[tuple[str, ...]] = ("discretization",)

    @property
    def kernel_name(self) -> str | None:
        return "selective"

    def affine(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Decay and drive of a step, each `(..., D, n)`."""
        source, delta, *varying = inputs
        matrix = varying[0][..., None, :] if self.input_matrix is None else self.input_matrix
        discretize = zero_order_hold if self.discretization == "zoh" else forward_euler
        decay, gain = discretize(self.transition, delta[..., None])
        return decay, gain * matrix * source[..., None]

    def read(self, state: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Outputs `(..., D)`."""
        matrix = inputs[-1][..., None, :] if self.output_matrix is None else self.output_matrix
        return ops.sum(matrix * state, axis=-1)
