"""The layer of minGRU."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._checks import positive_integer
from keras_coffee._typing import Tensor
from keras_coffee.cells.min_gru import MinGRUCell
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.recurrent import RecurrentLayer, StateSpec


@keras.saving.register_keras_serializable(package="keras_coffee")
class MinGRU(RecurrentLayer):
    """minGRU: a gated recurrent unit whose gate and candidate look at the input alone.

        z(k) = σ(W_z u(k) + b_z)
        c(k) = g(W_c u(k) + b_c)
        h(k) = (1 - z(k)) ⊙ h(k-1) + z(k) ⊙ c(k)

    The outputs are the states, `units` of them. 2 units (D + 1) parameters: `kernel`
    `(D, 2 units)` has W_z and W_c side by side, `bias` `(2 units,)` likewise.

    Args:
        units: States, and width of the outputs; a positive integer.
        activation: g, a function or its name. `"positive"`, the default, is the source's
            x + 1/2 for x ≥ 0 and σ(x) below. None: g(x) = x, the source's first version.
        use_bias: Whether there is a bias. Defaults to True.
        solver: `"auto"`, `"sequential"`, or parallel in time `"associative"`, or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, recompute: As
            for `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    `RecurrentLayer` lists the arguments and results of a call. The state is `(B, units)`.

    Raises:
        ValueError: if `units` is not a positive integer, `solver` is unknown, or the inputs are
            not `(B, T, D)`.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), MinGRU(units=8)])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 8)

    Reference:
        L. Feng et al., "Were RNNs All We Needed?", 2024, section 3.1 and appendix B.
    """

    WEIGHTS = {"kernel": WeightSpec(("D", "width")), "bias": WeightSpec(("width",))}

    def __init__(
        self,
        units: int,
        *,
        activation: Any = "positive",
        use_bias: bool = True,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        kernel_initializer: Rule = "glorot_uniform",
        kernel_regularizer: Rule = None,
        kernel_constraint: Rule = None,
        bias_initializer: Rule = "zeros",
        bias_regularizer: Rule = None,
        bias_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        self.use_bias, self._present = use_bias, {"bias": use_bias}
        super().__init__(**handed_on(locals(), "units", "activation", "use_bias"))
        self.units = positive_integer("units", units)
        self.activation = (
            _positive if activation == "positive" else keras.activations.get(activation)
        )

    @property
    def width(self) -> int:
        """Width of gate and candidate side by side."""
        return 2 * self.units

    def state_specs(self, dim: int) -> list[StateSpec]:
        return [StateSpec((self.units,))]

    def output_size(self, dim: int) -> int:
        return self.units

    def scan(
        self,
        inputs: Tensor,
        initial_state: Any,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        driven = self.project(inputs, self.kernel)
        if self.use_bias:
            driven = driven + ops.cast(self.bias, driven.dtype)
        gate, candidate = ops.split(driven, 2, axis=-1)
        sequences = gate, self.activation(candidate)
        return self.run_cell(MinGRUCell(), sequences, initial_state, mask, reset)

    def get_config(self) -> dict[str, Any]:
        is_positive = self.activation is _positive
        activation = "positive" if is_positive else keras.activations.serialize(self.activation)
        own = {"units": self.units, "activation": activation, "use_bias": self.use_bias}
        return {**super().get_config(), **own}


def _positive(x: Tensor) -> Tensor:
    return ops.where(x >= 0, x + 0.5, ops.sigmoid(x))
