"""The COFFEE layer."""

from typing import Any, Literal, Unpack, get_args

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._checks import one_of
from keras_coffee._typing import Tensor
from keras_coffee.cells.coffee import CoffeeCell, Feedback
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.state_space import Start, StateSpaceLayer
from keras_coffee.ops import masking
from keras_coffee.ops.arguments import cast
from keras_coffee.ops.coffee_scan import FEEDBACKS, coffee_scan
from keras_coffee.ops.nonlinear_scan import nonlinear_scan

InputGate = Literal[None, "feature", "full"]
INPUT_GATES = get_args(InputGate)


@keras.saving.register_keras_serializable(package="keras_coffee")
class CoffeeLayer(StateSpaceLayer):
    """COFFEE: a state-space model whose update gate looks at its own state.

        Δ(k) = σ(w ⊙ x(k-1))
        x(k) = (1 + λ Δ(k)) x(k-1) + Δ(k) u(k)
        y(k) = C x(k)

    Each of the D features of the input has its own n states with three weights each: 3nD
    parameters. `transition` λ is kept in [-2, 0], so that a step alone never expands the state. The
    output is as wide as the input: `CoffeeLayer(64)` on three features returns three.

    With `input_gate` and `use_gate_bias` the gate sees the input too:

        Δ(k) = σ(w ⊙ x(k-1) + V u(k) + β)

    All n states of a feature share its element of V u(k).

    Args:
        n: States per feature, a positive integer.
        feedback: `"sigmoid"`, the default, is the model. The others are the paper's ablations:
            `"linear"` drops the sigmoid, Δ(k) = w ⊙ x(k-1), and then never leaves the state 0,
            where layers start, unless the gate sees the input or has a bias; None gates from the
            layer's own input feature, Δ(k) = σ(w u(k)).
        output_filter: If True, y(k) = σ(w_γ · x(k)) C x(k), with the weight `output_gate`; nD
            more parameters. Defaults to False.
        use_input_matrix: If True, the input enters as b u(k), with the weight `input_matrix`; nD
            more parameters. The model before step 3 of the paper. Defaults to False.
        input_gate: `"full"` adds V u(k) to the argument of the gate, with the weight
            `gate_projection`, `(D, D)`, which multiplies the inputs from the right; D² more
            parameters. `"feature"` adds v ⊙ u(k), with `gate_projection` v, `(D,)`; D more. Both
            start from Glorot's uniform distribution. None, the default, adds nothing.
        use_gate_bias: If True, the gate has a bias β for each state, with the weight `gate_bias`,
            `(D, n)`, which starts at 0; nD more parameters. Defaults to False.
        start: How the weights are initialized. `"series"`, the default, is for time series: λ from
            U(-1, -0.02), so that states forget at different rates, and C from N(0, 0.01/n), so that
            outputs start small. `"paper"` is the paper's: λ = 0, so that nothing is forgotten, and
            C from N(0, 1). Both draw w and b from N(0, 1); w_γ has the variance 1/n and 1.
        solver: `"auto"`, `"sequential"`, or parallel in time `"newton"`, `"elk"` or a `Newton` or
            `Elk` of `keras_coffee.solvers`.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, recompute: As
            for `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
            Ignored for a weight that the layer does not have. An initializer of None, the default,
            is the one of `start`. `transition_constraint=None` lets λ leave [-2, 0].
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    `RecurrentLayer` lists the arguments and results of a call. The state is `(B, D, n)`.

    Raises:
        ValueError: if `n` is not a positive integer, `feedback`, `input_gate`, `start` or `solver`
            is unknown, or the inputs are not `(B, T, D)`.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), CoffeeLayer(n=8)])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 3)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", section 3, equations
        (Delta-feedback) and (final_model); for `start="paper"`, appendix "Results on the Induction
        Head Task (IH)", subsection "Models Initialization". `input_gate` and `use_gate_bias` are
        not in the paper. docs/building.md compares the starts.
    """

    KIND = "nonlinear"
    WEIGHTS = {
        **dict.fromkeys(
            ("transition", "gate", "readout", "input_matrix", "output_gate"), WeightSpec(("D", "n"))
        ),
        "gate_projection": WeightSpec(("D", "D")),
        "gate_bias": WeightSpec(("D", "n")),
    }
    STARTS = {
        "series": {
            "transition": "forgetting",
            "gate": "standard_normal",
            "readout": "small_readout",
            "input_matrix": "standard_normal",
            "output_gate": "scaled_normal",
        },
        "paper": {
            "transition": "zeros",
            "gate": "standard_normal",
            "readout": "standard_normal",
            "input_matrix": "standard_normal",
            "output_gate": "standard_normal",
        },
    }

    def __init__(
        self,
        n: int,
        feedback: Feedback = "sigmoid",
        output_filter: bool = False,
        use_input_matrix: bool = False,
        *,
        input_gate: InputGate = None,
        use_gate_bias: bool = False,
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
        gate_initializer: Rule = None,
        gate_regularizer: Rule = None,
        gate_constraint: Rule = None,
        readout_initializer: Rule = None,
        readout_regularizer: Rule = None,
        readout_constraint: Rule = None,
        input_matrix_initializer: Rule = None,
        input_matrix_regularizer: Rule = None,
        input_matrix_constraint: Rule = None,
        output_gate_initializer: Rule = None,
        output_gate_regularizer: Rule = None,
        output_gate_constraint: Rule = None,
        gate_projection_initializer: Rule = "glorot_uniform",
        gate_projection_regularizer: Rule = None,
        gate_projection_constraint: Rule = None,
        gate_bias_initializer: Rule = "zeros",
        gate_bias_regularizer: Rule = None,
        gate_bias_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        one_of("feedback", feedback, FEEDBACKS)
        one_of("input_gate", input_gate, INPUT_GATES)
        self._present = {
            "input_matrix": use_input_matrix,
            "output_gate": output_filter,
            "gate_projection": input_gate is not None,
            "gate_bias": use_gate_bias,
        }
        self.input_gate: InputGate = input_gate
        super().__init__(**handed_on(locals(), *_OWN))
        self.feedback: Feedback = feedback
        self.output_filter = output_filter
        self.use_input_matrix = use_input_matrix
        self.use_gate_bias = use_gate_bias

    def weight_specs(self) -> dict[str, WeightSpec]:
        specs = super().weight_specs()
        if self.input_gate == "feature":
            specs["gate_projection"] = WeightSpec(("D",))
        return specs

    def scan(
        self,
        inputs: Tensor,
        initial_state: Tensor | None,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return coffee_scan(
            inputs,
            **self._cell_weights(),
            gate_inputs=self._gate_inputs(inputs),
            feedback=self.feedback,
            initial_state=initial_state,
            mask=mask,
            reset=reset,
            solver=self.solver,
            recompute=self.recompute,
        )

    def trajectory(
        self,
        inputs: Tensor,
        initial_state: Tensor | None = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """States and gates over time, for plots and study.

        Time runs as in the inputs, also with `go_backwards`.

        Args:
            inputs: u, `(B, T, D)`.
            initial_state: x(0), `(B, D, n)`. None: zeros.
            mask: `(B, T)`, False at steps to skip. The gate is 0 there. None: every step counts.
            reset: `(B, T)`, True where a new sequence begins in a row, in the order of the inputs:
                the state before that step is zero. None: nowhere.

        Returns:
            States x(1), …, x(T) and the gates Δ(1), …, Δ(T) that led to them, each
            `(B, T, D, n)`.

        Raises:
            ValueError: if the layer is not built yet, or a shape does not fit.

        Example:
            >>> layer = CoffeeLayer(n=8)
            >>> outputs = layer(np.ones((2, 5, 3)))
            >>> states, gates = layer.trajectory(np.ones((2, 5, 3)))
            >>> states.shape, gates.shape
            ((2, 5, 3, 8), (2, 5, 3, 8))
        """
        inputs, initial_state, mask, reset = self._prepare(inputs, initial_state, mask, reset)
        # Every state as a separate feature, read out unchanged.
        shape = (*ops.shape(inputs), self.n)
        cell = self.cell()
        weights = cell.transition, cell.gate, ops.ones_like(cell.gate)
        transition, gate, one, input_matrix, gate_bias = (
            None if weight is None else ops.reshape(weight, (-1, 1))
            for weight in (*weights, cell.input_matrix, cell.gate_bias)
        )
        source, gate_inputs = (
            None if x is None else ops.repeat(x, self.n, axis=-1)
            for x in (inputs, self._gate_inputs(inputs))
        )
        states, _ = coffee_scan(
            source,
            transition,
            gate,
            one,
            input_matrix=input_matrix,
            gate_inputs=gate_inputs,
            gate_bias=gate_bias,
            feedback=self.feedback,
            initial_state=ops.reshape(initial_state, (shape[0], shape[2] * self.n, 1)),
            mask=mask,
            reset=reset,
            solver=self.solver,
        )
        # They come from outputs, which are zeros before the first step that counts.
        states = ops.reshape(states, shape)
        states = masking.hold_before_first(states, initial_state, mask, reset)
        previous = ops.concatenate([initial_state[:, None], states[:, :-1]], axis=1)
        if reset is not None:
            previous = masking.zero_masked(previous, ops.logical_not(reset))
        gates = cell.delta(previous, self.cell_inputs(inputs))
        return states, masking.zero_masked(gates, mask)

    def solve(
        self,
        inputs: Tensor,
        initial_state: Tensor | None = None,
        mask: Tensor | None = None,
        solver: str | solvers.Solver | None = None,
        reset: Tensor | None = None,
    ) -> solvers.Solution:
        """States over time, and how they were found.

        Time runs as in the inputs, also with `go_backwards`.

        Args:
            inputs: u, `(B, T, D)`.
            initial_state: x(0), `(B, D, n)`. None: zeros.
            mask: `(B, T)`, False at steps to skip. None: every step counts.
            solver: As for the layer. None: the layer's own.
            reset: As for `trajectory`.

        Returns:
            States `(B, T, D, n)`, and iterations, residual and converged of each sequence.

        Raises:
            ValueError: if the layer is not built yet, a shape does not fit, or there is no such
                solver.

        Example:
            >>> layer = CoffeeLayer(n=8)
            >>> outputs = layer(np.ones((2, 5, 3)))
            >>> solution = layer.solve(np.ones((2, 5, 3)), solver="newton")
            >>> solution.states.shape, bool(solution.converged.all())
            ((2, 5, 3, 8), True)
        """
        inputs, initial_state, mask, reset = self._prepare(inputs, initial_state, mask, reset)
        return nonlinear_scan(
            self.cell(),
            self.cell_inputs(inputs),
            initial_state,
            mask=mask,
            reset=reset,
            solver=self.solver if solver is None else solver,
        )

    def symbolic_arguments(self) -> dict[str, keras.KerasTensor]:
        """The tensors of the layer's first call in a Functional or Sequential model, by name.

        Always `inputs`; `initial_state`, `mask` and `reset` where they are given.
        """
        inputs, *others = keras.tree.flatten(self.input)
        found = {"inputs": inputs}
        for x in others:
            mark = "reset" if x in self._symbolic_resets else "mask"
            found[mark if len(x.shape) == 2 else "initial_state"] = x
        return found

    def cell(self) -> CoffeeCell:
        """The recurrence of the layer as it is now: its step, its Jacobian and its outputs."""
        weights = {k: cast(w, self.state_dtype) for k, w in self._cell_weights().items()}
        return CoffeeCell(**weights, feedback=self.feedback)

    def cell_inputs(self, inputs: Tensor) -> Any:
        """What the steps of `cell()` take for inputs `(B, T, D)`: with `input_gate` a pair."""
        gate_inputs = self._gate_inputs(inputs)
        return inputs if gate_inputs is None else (inputs, gate_inputs)

    def _cell_weights(self) -> dict[str, keras.Variable]:
        return {k: getattr(self, k) for k in self.weight_specs() if k != "gate_projection"}

    def _gate_inputs(self, inputs: Tensor) -> Tensor | None:
        """What the gate sees of inputs `(B, T, D)`."""
        if self.input_gate is None:
            return None
        if self.input_gate == "full":
            return self.project(inputs, self.gate_projection)
        return inputs * ops.cast(self.gate_projection, self.state_dtype)

    def _prepare(
        self, inputs: Tensor, initial_state: Any, mask: Tensor | None, reset: Tensor | None
    ) -> tuple[Any, ...]:
        """Inputs, state, mask and resets for a look inside: what `call` gives to `scan`."""
        inputs, mask = self.prepare(inputs, mask)
        (state,) = self.as_states(self.or_zeros(initial_state, inputs), inputs.shape[0])
        return inputs, state, mask, masking.as_mask(reset, inputs, "reset")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "feedback": self.feedback,
            "output_filter": self.output_filter,
            "use_input_matrix": self.use_input_matrix,
            "input_gate": self.input_gate,
            "use_gate_bias": self.use_gate_bias,
        }


# Arguments that the base class does not take.
_OWN = ("feedback", "output_filter", "use_input_matrix", "input_gate", "use_gate_bias")
