"""Selective state-space models: S6, Mamba's recurrence, and the linearization of S6."""

import dataclasses
from typing import ClassVar, Literal

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import LinearCell
from keras_coffee.cells.discretization import forward_euler, mamba, zero_order_hold
from keras_coffee.cells.functions import softplus

Discretization = Literal["zoh", "euler", "mamba"]

_DISCRETIZE = {"zoh": zero_order_hold, "euler": forward_euler, "mamba": mamba}


@dataclasses.dataclass(frozen=True)
class SelectiveCell(LinearCell):
    """One step of a diagonal state-space model whose step size depends on the input.

        x(k) = decay x(k-1) + gain B(k) u(k),   decay, gain from λ and Δ(k)
        y(k) = C(k) x(k) + s u(k)
        Δ(k) = d(k),   or softplus(d(k)) with `delta_softplus`

    Inputs are u(k) `(..., D)` and d(k) `(..., D)`, then B(k) and C(k), each `(..., n)` and shared
    by the features, except those that are fields.

    Args:
        transition: λ, the diagonal of A, `(D, n)`.
        input_matrix: B, `(D, n)`, if it is constant over time. None: it is among the inputs.
        output_matrix: C, `(D, n)`, likewise.
        skip: s, `(D, 1)`. None: the outputs do without u(k).
        discretization: `"zoh"` (S6), `"euler"` (the linearized model of step 1) or `"mamba"`, the
            decay of the first with the gain of the second.
        delta_softplus: Whether the step size is the softplus of what is given.

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations (S6_model)
        and (linearized_model); A. Gu and T. Dao, "Mamba", 2023, section 3, and its code for
        `"mamba"` and `skip`.
    """

    transition: Tensor
    input_matrix: Tensor | None = None
    output_matrix: Tensor | None = None
    skip: Tensor | None = None
    discretization: Discretization = "zoh"
    delta_softplus: bool = False

    broadcasts: ClassVar[bool] = True
    SEQUENCES: ClassVar[tuple[str, ...]] = (
        "inputs",
        "delta",
        "input_matrix",
        "output_matrix",
        "reset",
    )
    OPTIONS: ClassVar[tuple[str, ...]] = ("discretization", "delta_softplus")

    @property
    def kernel_name(self) -> str | None:
        return "selective"

    def affine(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Decay and drive of a step, each `(..., D, n)`."""
        source, delta, *varying = inputs
        matrix = varying[0][..., None, :] if self.input_matrix is None else self.input_matrix
        decay, gain = _DISCRETIZE[self.discretization](self.transition, self._step_size(delta))
        return decay, gain * matrix * source[..., None]

    def read(self, state: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Outputs `(..., D)`."""
        matrix = inputs[-1][..., None, :] if self.output_matrix is None else self.output_matrix
        outputs = ops.sum(matrix * state, axis=-1)
        if self.skip is None:
            return outputs
        return outputs + (self.skip * inputs[0][..., None])[..., 0]

    def _step_size(self, delta):
        """Δ, `(..., D, 1)`."""
        delta = delta[..., None]
        return softplus(delta) if self.delta_softplus else delta
