"""The layer of S6, the selective state-space model inside Mamba."""

from typing import Unpack

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._typing import Tensor
from keras_coffee.cells.functions import softplus
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.state_space import Start, StateSpaceLayer
from keras_coffee.ops.selective_scan import selective_scan


@keras.saving.register_keras_serializable(package="keras_coffee")
class S6Layer(StateSpaceLayer):
    """S6: a state-space model whose step size, input and output matrices look at the input.

        Δ(k) = softplus(W_D u(k)),   B(k) = W_B u(k),   C(k) = W_C u(k),   λ = -e^μ
        x_i(k) = e^(λ_i Δ_i(k)) x_i(k-1) + (e^(λ_i Δ_i(k)) - 1)/λ_i B(k) u_i(k)
        y_i(k) = C(k) x_i(k)

    for the features i = 1, …, D, with the exact zero-order hold. 3nD + D² parameters:
    `log_transition` μ `(D, n)`; `input_projection` W_B and `output_projection` W_C, both `(D, n)`,
    and `step_projection` W_D `(D, D)`, which multiply the inputs from the right.

    Args:
        n: States per feature, a positive integer.
        start: Where the weights start. `"series"`, the default, is for signals that go on: -λ
            log-uniform from 0.05 to 2, W_B and W_D from normal distributions of variance 1/D, and
            W_C of variance 0.01/(Dn), so that outputs start small. `"paper"`: λ = -1, …, -n, and
            the projections from N(0, 1).
        solver: `"auto"`, `"sequential"`, or parallel in time `"associative"`, or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, recompute: As
            for `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
            An initializer of None, the default, is the one of `start`.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    `RecurrentLayer` has the arguments of a call and what comes out. The state is `(B, D, n)`.

    Raises:
        ValueError: if `n` is not a positive integer, `start` or `solver` is unknown, or the inputs
            are not `(B, T, D)`.

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
    STARTS = {
        "series": {
            "log_transition": "log_forgetting",
            "input_projection": "lecun_normal",
            "output_projection": "small_projection",
            "step_projection": "lecun_normal",
        },
        "paper": {
            "log_transition": "s4d_real",
            "input_projection": "standard_normal",
            "output_projection": "standard_normal",
            "step_projection": "standard_normal",
        },
    }

    def __init__(
        self,
        n: int,
        *,
        start: Start = "series",
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        log_transition_initializer: Rule = None,
        log_transition_regularizer: Rule = None,
        log_transition_constraint: Rule = None,
        input_projection_initializer: Rule = None,
        input_projection_regularizer: Rule = None,
        input_projection_constraint: Rule = None,
        output_projection_initializer: Rule = None,
        output_projection_regularizer: Rule = None,
        output_projection_constraint: Rule = None,
        step_projection_initializer: Rule = None,
        step_projection_regularizer: Rule = None,
        step_projection_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**handed_on(locals()))

    def scan(
        self, inputs: Tensor, initial_state: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return selective_scan(
            inputs,
            delta=softplus(self.project(inputs, self.step_projection)),
            transition=-ops.exp(ops.cast(self.log_transition, self.state_dtype)),
            input_matrix=self.project(inputs, self.input_projection),
            output_matrix=self.project(inputs, self.output_projection),
            initial_state=initial_state,
            mask=mask,
            solver=self.solver,
            recompute=self.recompute,
        )
