"""COFFEE: a state-space model whose update gate looks at its own state."""

import dataclasses
from typing import ClassVar, Literal

from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell, Structure

Feedback = Literal["sigmoid", "linear", None]
Inputs = Tensor | tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class CoffeeCell(Cell):
    """One step of COFFEE.

        Δ(k) = σ(w ⊙ x(k-1) + v(k) + β)
        x(k) = (1 + λ Δ(k)) x(k-1) + Δ(k) b u(k)
        y(k) = C x(k),   or σ(w_γ · x(k)) C x(k) with an output gate

    Inputs are u(k) `(..., D)`, or the pair of u(k) and v(k) `(..., D)`, which all states of a
    feature share. Without v(k) and `gate_bias` the gate sees its own state alone.

    Every operation is elementwise, so the Jacobian ∂x(k)/∂x(k-1) is diagonal, and a leading time
    axis is allowed: the methods take one step or a whole sequence of them.

    Args:
        transition: λ, the diagonal of A, `(D, n)`.
        gate: w, the feedback gate, `(D, n)`.
        readout: C, `(D, n)`. None: the outputs are the states.
        input_matrix: b, `(D, n)`, or None for ones (the final model).
        output_gate: w_γ, the output filter, `(D, n)`, or None for no filter.
        gate_bias: β, `(D, n)`, or None for none.
        feedback: `"sigmoid"` is the model; `"linear"` drops the sigmoid, Δ = w ⊙ x(k-1) + v(k) + β;
            None gates from the input, Δ = σ(w u(k) + v(k) + β).

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations
        (Delta-feedback) and (final_model); with `input_matrix`, (model_with_feedback); with
        `output_gate`, the remark "Model with output filtering". v(k) and β are not in the paper.
    """

    transition: Tensor
    gate: Tensor
    readout: Tensor | None = None
    input_matrix: Tensor | None = None
    output_gate: Tensor | None = None
    gate_bias: Tensor | None = None
    feedback: Feedback = "sigmoid"

    structure: ClassVar[Structure] = "diagonal"
    broadcasts: ClassVar[bool] = True
    SEQUENCES: ClassVar[tuple[str, ...]] = ("inputs", "gate_inputs", "mask", "reset")
    OPTIONS: ClassVar[tuple[str, ...]] = ("feedback",)

    @property
    def kernel_name(self) -> str | None:
        return None if self.readout is None else "coffee"

    def delta(self, state: Tensor, inputs: Inputs) -> Tensor:
        """Update gates `(..., D, n)` from states `(..., D, n)` and inputs."""
        source, gate_inputs = _split(inputs)
        argument = self.gate * (source[..., None] if self.feedback is None else state)
        if gate_inputs is not None:
            argument = argument + gate_inputs[..., None]
        if self.gate_bias is not None:
            argument = argument + self.gate_bias
        return argument if self.feedback == "linear" else ops.sigmoid(argument)

    def step(self, state: Tensor, inputs: Inputs) -> Tensor:
        """The next state `(..., D, n)`."""
        delta = self.delta(state, inputs)
        return state + delta * (self.transition * state + self._drive(inputs))

    def read(self, state: Tensor, inputs: Inputs) -> Tensor:
        """Outputs `(..., D)`, or the state if there is no readout."""
        if self.readout is None:
            return state
        outputs = ops.sum(self.readout * state, axis=-1)
        if self.output_gate is None:
            return outputs
        return outputs * ops.sigmoid(ops.sum(self.output_gate * state, axis=-1))

    def jacobian(self, state: Tensor, inputs: Inputs) -> Tensor:
        """Diagonal of ∂x(k)/∂x(k-1), `(..., D, n)`.

        1 + λ Δ + Δ' (λ x + b u), with Δ' = w Δ (1 - Δ), or w for linear feedback, or 0 for none.
        """
        delta = self.delta(state, inputs)
        direct = 1 + self.transition * delta
        if self.feedback is None:
            return direct
        slope = self.gate if self.feedback == "linear" else self.gate * delta * (1 - delta)
        return direct + slope * (self.transition * state + self._drive(inputs))

    def _drive(self, inputs: Inputs) -> Tensor:
        source = _split(inputs)[0][..., None]
        return source if self.input_matrix is None else self.input_matrix * source


def _split(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """u, and v or None."""
    source, gate_inputs = inputs if isinstance(inputs, tuple | list) else (inputs, None)
    return source, gate_inputs
