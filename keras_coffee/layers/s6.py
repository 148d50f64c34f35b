"""The layer of S6, the selective state-space model inside Mamba."""

from typing import Unpack

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._typing import Tensor
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.state_space import StateSpaceLayer
from keras_coffee.ops.selective_scan import selective_scan


@keras.saving.register_keras_serializable(package="keras_coffee")
class S6Layer(StateSpaceLayer):
    """S6: a state-space model whose step size, input and output matrices look at the input.

        Δ(k) = softplus(W_D u(k)),   B(k) = W_B u(k),   C(k) = W_C u(k),   λ = -e^μ
        x_i(k) = e^(λ_i Δ_i(k)) x_i(k-1) + (e^(λ_i Δ_i(k)) - 1)/λ_i B(k) u_i(k)
        y_i(k) = C(k) x_i(k)

    for the features i = 1, …, D, with the exact zero-order hold. 3nD + D² parameters:
    `log_transition` μ `(D, n)` starts at λ = -1, …, -n; `input_projection` W_B and
    `output_projection` W_C, both `(D, n)`, and `step_projection` W_D `(D, D)` multiply the inputs
    from the right and start from N(0, 1). Mamba's convolution, gate and skip are not part of it.

    Args:
        n: States per feature, a positive integer.
        solver: `"auto"`, `"sequential"`, or parallel in time `"associative"`, or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, recompute: As
            for `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    `RecurrentLayer` has the arguments of a call and what comes out. The state is `(B, D, n)`.

    Raises:
        ValueError: if `n` is not a positive integer, `solver` is unknown, or the inputs are not
            `(B, T, D)`.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), S6Layer(n=8)])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 3)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equation (S6_model) and
        appendix "The S6 state space model"; A. Gu and T. Dao, "Mamba", 2023, section 3.
    """

    WEIGHTS = {
        "log_transition": WeightSpec(("D", "n")),
        "input_projection": WeightSpec(("D", "n")),
        "output_projection": WeightSpec(("D", "n")),
        "step_projection": WeightSpec(("D", "D")),
    }

    def __init__(
        self,
        n: int,
        *,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        log_transition_initializer: Rule = "s4d_real",
        log_transition_regularizer: Rule = None,
        log_transition_constraint: Rule = None,
        input_projection_initializer: Rule = "standard_normal",
        input_projection_regularizer: Rule = None,
        input_projection_constraint: Rule = None,
        output_projection_initializer: Rule = "standard_normal",
        output_projection_regularizer: Rule = None,
        output_projection_constraint: Rule = None,
        step_projection_initializer: Rule = "standard_normal",
        step_projection_regularizer: Rule = None,
        step_projection_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**handed_on(locals()))

    def scan(
        self, inputs: Tensor, initial_state: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # One product of matrices for all three: each would read the inputs by itself. It is cut by
        # slices, because `ops.split` on PyTorch asks for sizes that an exporter does not know.
        kernels = self.step_projection, self.input_projection, self.output_projection
        projected = self.project(inputs, ops.concatenate(kernels, axis=1))
        first, second = inputs.shape[-1], inputs.shape[-1] + self.n
        return selective_scan(
            inputs,
            delta=projected[..., :first],
            transition=-ops.exp(ops.cast(self.log_transition, self.state_dtype)),
            input_matrix=projected[..., first:second],
            output_matrix=projected[..., second:],
            delta_softplus=True,
            initial_state=initial_state,
            mask=mask,
            solver=self.solver,
            recompute=self.recompute,
        )
