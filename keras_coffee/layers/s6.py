"""The layer of S6, the selective state-space model inside Mamba."""

import keras
from keras import ops

from keras_coffee.layers.declared_weights import WeightSpec
from keras_coffee.layers.recurrence import Recurrence
from keras_coffee.ops.selective_scan import selective_scan


@keras.saving.register_keras_serializable(package="keras_coffee")
class S6Layer(Recurrence):
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
        return_sequences: If False, only the last output is returned.
        return_state: If True, the final state is returned too, `(outputs, state)`.
        go_backwards: If True, time runs backwards; outputs come in that order.
        stateful: If True, the state at the end of a batch is where the next batch starts, until
            `reset_state()`. The batch size must be known. The state is saved with the layer.
        zero_output_for_mask: If True, the output of a masked step is zero, and not the one before.
        solver: `"auto"`, `"sequential"`, or parallel in time `"associative"`, or a
            `Sequential` or `Associative` of `keras_coffee.solvers`. docs/solvers.md says when
            which is faster.
        recompute: If True, training keeps about √T states instead of T, and computes the others
            again when it needs them. No effect on values. For the sequential solver only.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: For each weight, an object
            of Keras or its name. Besides Keras' names there are `"standard_normal"` and
            `"s4d_real"` (initializers).
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    Call arguments:
        inputs: u, `(B, T, D)`. B and T may be unknown.
        initial_state: x(0), `(B, D, n)`, a tensor or a list of it. None: zeros, or the carried
            state.
        mask: `(B, T)`, False where a step is passed over: the state is held there. None: the mask
            that the inputs carry, if any.
        training: Ignored; there is nothing to do differently.

    Returns:
        Outputs `(B, T, D)`, or `(B, D)` if `return_sequences=False`, in the compute dtype; with
        `return_state` also x(T), `(B, D, n)`, in float32 at least.

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
        "log_transition": WeightSpec("Dn", "s4d_real"),
        "input_projection": WeightSpec("Dn", "standard_normal"),
        "output_projection": WeightSpec("Dn", "standard_normal"),
        "step_projection": WeightSpec("DD", "standard_normal"),
    }

    def scan(self, inputs, initial_state, mask):
        return selective_scan(
            inputs,
            delta=ops.softplus(self.project(inputs, self.step_projection)),
            transition=-ops.exp(ops.cast(self.log_transition, self.state_dtype)),
            input_matrix=self.project(inputs, self.input_projection),
            output_matrix=self.project(inputs, self.output_projection),
            initial_state=initial_state,
            mask=mask,
            solver=self.solver,
            recompute=self.recompute,
        )
