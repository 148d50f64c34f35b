"""The layer between S6 and COFFEE: step 1 of the paper."""

import keras
from keras import ops

from keras_coffee.layers.declared_weights import WeightSpec
from keras_coffee.layers.recurrence import Recurrence
from keras_coffee.ops.selective_scan import selective_scan


@keras.saving.register_keras_serializable(package="keras_coffee")
class LinearizedS6Layer(Recurrence):
    """S6 linearized: the step size looks at the input, everything else is constant.

        Δ(k) = σ(W_D u(k))
        x_i(k) = (1 + λ_i Δ_i(k)) x_i(k-1) + Δ_i(k) b_i u_i(k)
        y_i(k) = C_i x_i(k)

    for the features i = 1, …, D. 3nD + D² parameters: `transition` λ starts at 0 and is kept in
    [-2, 0]; `input_matrix` b and `readout` C, `(D, n)` like it, and `step_projection` W_D
    `(D, D)`, which multiplies the inputs from the right, start from N(0, 1).

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
            of Keras or its name. Besides Keras' names there are `"standard_normal"` (initializer)
            and `"stable"` (constraint to [-2, 0]); `transition_constraint=None` turns it off.
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
        >>> model = keras.Sequential([keras.Input((None, 3)), LinearizedS6Layer(n=8)])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 3)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", step 1, equation
        (linearized_model), and appendix "Simplified Dynamics via Linearization".
    """

    WEIGHTS = {
        "transition": WeightSpec("Dn", "zeros", "stable"),
        "input_matrix": WeightSpec("Dn", "standard_normal"),
        "readout": WeightSpec("Dn", "standard_normal"),
        "step_projection": WeightSpec("DD", "standard_normal"),
    }

    def scan(self, inputs, initial_state, mask):
        return selective_scan(
            inputs,
            delta=ops.sigmoid(self.project(inputs, self.step_projection)),
            transition=self.transition,
            input_matrix=self.input_matrix,
            output_matrix=self.readout,
            discretization="euler",
            initial_state=initial_state,
            mask=mask,
            solver=self.solver,
            recompute=self.recompute,
        )
