"""The layer between S6 and COFFEE: step 1 of the paper."""

from typing import Unpack

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._typing import Tensor
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.state_space import Start, StateSpaceLayer
from keras_coffee.ops.selective_scan import selective_scan


@keras.saving.register_keras_serializable(package="keras_coffee")
class LinearizedS6Layer(StateSpaceLayer):
    """S6 linearized: the step size looks at the input, everything else is constant.

        Δ(k) = σ(W_D u(k))
        x_i(k) = (1 + λ_i Δ_i(k)) x_i(k-1) + Δ_i(k) b_i u_i(k)
        y_i(k) = C_i x_i(k)

    for the features i = 1, …, D. 3nD + D² parameters: `transition` λ, kept in [-2, 0],
    `input_matrix` b and `readout` C, each `(D, n)`, and `step_projection` W_D `(D, D)`, which
    multiplies the inputs from the right.

    Args:
        n: States per feature, a positive integer.
        start: How the weights are initialized. `"series"`, the default, is for time series: λ from
            U(-1, -0.02), b from N(0, 1), C from N(0, 0.01/n), and W_D from a normal distribution of
            variance 1/D. `"paper"`: λ = 0, all others from N(0, 1).
        solver: `"auto"`, `"sequential"`, or parallel in time `"associative"`, or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, recompute: As
            for `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
            An initializer of None, the default, is the one of `start`.
            `transition_constraint=None` lets λ leave [-2, 0].
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    `RecurrentLayer` lists the arguments and results of a call. The state is `(B, D, n)`.

    Raises:
        ValueError: if `n` is not a positive integer, `start` or `solver` is unknown, or the inputs
            are not `(B, T, D)`.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), LinearizedS6Layer(n=8)])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 3)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", step 1, equation
        (linearized_model), and appendix "Simplified Dynamics via Linearization".
    """

    WEIGHTS = {
        "transition": WeightSpec(("D", "n")),
        "input_matrix": WeightSpec(("D", "n")),
        "readout": WeightSpec(("D", "n")),
        "step_projection": WeightSpec(("D", "D")),
    }
    STARTS = {
        "series": {
            "transition": "forgetting",
            "input_matrix": "standard_normal",
            "readout": "small_readout",
            "step_projection": "lecun_normal",
        },
        "paper": {
            "transition": "zeros",
            "input_matrix": "standard_normal",
            "readout": "standard_normal",
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
        transition_initializer: Rule = None,
        transition_regularizer: Rule = None,
        transition_constraint: Rule = "stable",
        input_matrix_initializer: Rule = None,
        input_matrix_regularizer: Rule = None,
        input_matrix_constraint: Rule = None,
        readout_initializer: Rule = None,
        readout_regularizer: Rule = None,
        readout_constraint: Rule = None,
        step_projection_initializer: Rule = None,
        step_projection_regularizer: Rule = None,
        step_projection_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**handed_on(locals()))

    def scan(
        self,
        inputs: Tensor,
        initial_state: Tensor | None,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return selective_scan(
            inputs,
            delta=ops.sigmoid(self.project(inputs, self.step_projection)),
            transition=self.transition,
            input_matrix=self.input_matrix,
            output_matrix=self.readout,
            discretization="euler",
            initial_state=initial_state,
            mask=mask,
            reset=reset,
            solver=self.solver,
            recompute=self.recompute,
        )
