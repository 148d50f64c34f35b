"""The layer of S6, the selective state-space model inside Mamba."""

from typing import Any, ClassVar, Literal, Self, Unpack

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._checks import one_of, positive_integer
from keras_coffee._typing import Tensor
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

    The arguments add what models around S6 have; `S6Layer.mamba(n)` sets all of them.

    Args:
        n: States per feature, a positive integer.
        discretization: `"zoh"` as above, or `"mamba"`, whose gain is Δ_i(k) instead.
        use_step_bias: If True, Δ(k) = softplus(W_D u(k) + b_Δ), with the weight `step_bias`
            `(D,)`. Defaults to False.
        step_rank: r, the rank of W_D, which is then the product of `step_projection` `(D, r)` and
            `step_expansion` `(r, D)`. `"auto"` is D/16, rounded up. None, the default: full rank.
        use_projection_bias: If True, B(k) = W_B u(k) + b_B and C(k) = W_C u(k) + b_C, with the
            weights `input_bias` and `output_bias`, both `(n,)`. Without them each output is of
            third order in the inputs: it is zero where the input is, and the layer can't compute a
            moving average. Defaults to False.
        use_skip: If True, y_i(k) = C(k) x_i(k) + s_i u_i(k), with the weight `skip` `(D,)`.
            Defaults to False.
        start: How the weights are initialized. `"series"`, the default, is for time series: -λ
            log-uniform from 0.05 to 2, W_B and W_D from normal distributions of variance 1/D, and
            W_C of variance 0.01/(Dn), so that outputs start small. `"paper"`: λ = -1, …, -n, and
            the projections from N(0, 1). In both, softplus(b_Δ) is log-uniform from 0.001 to 0.1,
            b_B = 1, b_C from N(0, 0.01/n), and s = 0.
        solver: `"auto"`, `"sequential"`, or parallel in time `"associative"`, or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, recompute: As
            for `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
            Ignored for a weight that the layer does not have. An initializer of None, the default,
            is the one of `start`.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    `RecurrentLayer` lists the arguments and results of a call. The state is `(B, D, n)`.

    Raises:
        ValueError: if `n` or `step_rank` is not a positive integer, `discretization`, `start` or
            `solver` is unknown, or the inputs are not `(B, T, D)`.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), S6Layer(n=8)])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 3)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equation (S6_model) and
        appendix "The S6 state space model"; A. Gu and T. Dao, "Mamba", 2023, section 3.
        docs/building.md compares the starts.
    """

    WEIGHTS = {
        "log_transition": WeightSpec(("D", "n")),
        "input_projection": WeightSpec(("D", "n")),
        "output_projection": WeightSpec(("D", "n")),
        "step_projection": WeightSpec(("D", "rank")),
        "step_expansion": WeightSpec(("rank", "D")),
        "step_bias": WeightSpec(("D",)),
        "input_bias": WeightSpec(("n",)),
        "output_bias": WeightSpec(("n",)),
        "skip": WeightSpec(("D",)),
    }
    _ADDED: ClassVar[dict[str, Rule]] = {
        "step_expansion": "lecun_normal",
        "step_bias": "step_sizes",
        "input_bias": "ones",
        "output_bias": "small_readout",
        "skip": "zeros",
    }
    STARTS = {
        "series": {
            "log_transition": "log_forgetting",
            "input_projection": "lecun_normal",
            "output_projection": "small_projection",
            "step_projection": "lecun_normal",
            **_ADDED,
        },
        "paper": {
            "log_transition": "s4d_real",
            "input_projection": "standard_normal",
            "output_projection": "standard_normal",
            "step_projection": "standard_normal",
            **_ADDED,
        },
    }

    def __init__(
        self,
        n: int,
        *,
        discretization: Literal["zoh", "mamba"] = "zoh",
        use_step_bias: bool = False,
        step_rank: int | Literal["auto"] | None = None,
        use_projection_bias: bool = False,
        use_skip: bool = False,
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
        step_expansion_initializer: Rule = None,
        step_expansion_regularizer: Rule = None,
        step_expansion_constraint: Rule = None,
        step_bias_initializer: Rule = None,
        step_bias_regularizer: Rule = None,
        step_bias_constraint: Rule = None,
        input_bias_initializer: Rule = None,
        input_bias_regularizer: Rule = None,
        input_bias_constraint: Rule = None,
        output_bias_initializer: Rule = None,
        output_bias_regularizer: Rule = None,
        output_bias_constraint: Rule = None,
        skip_initializer: Rule = None,
        skip_regularizer: Rule = None,
        skip_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        one_of("discretization", discretization, ("zoh", "mamba"))
        if step_rank not in (None, "auto"):
            step_rank = positive_integer("step_rank", step_rank, ' or "auto" or None')
        self._present = {
            "step_expansion": step_rank is not None,
            "step_bias": use_step_bias,
            "input_bias": use_projection_bias,
            "output_bias": use_projection_bias,
            "skip": use_skip,
        }
        own = "discretization", "use_step_bias", "step_rank", "use_projection_bias", "use_skip"
        super().__init__(**handed_on(locals(), "own", *own))
        self.discretization = discretization
        self.use_step_bias = use_step_bias
        self.step_rank = step_rank
        self.use_projection_bias = use_projection_bias
        self.use_skip = use_skip

    @classmethod
    def mamba(cls, n: int, **kwargs: Any) -> Self:
        """The layer with all that Mamba adds to its recurrence, started as Mamba starts it.

        `discretization="mamba"`, a biased Δ of low rank, biased projections, a skip, and
        λ = -1, …, -n. Biases of B and C are what the convolution in front of them gives in
        Mamba-2; in the first Mamba they have none.

        Args:
            n: States per feature, a positive integer.
            **kwargs: As for the layer. They go before what is named here.

        Example:
            >>> S6Layer.mamba(16, use_skip=False)(np.ones((2, 5, 3))).shape
            (2, 5, 3)

        Reference:
            A. Gu and T. Dao, "Mamba", 2023, sections 3.5 and 3.6; T. Dao and A. Gu,
            "Transformers are SSMs", 2024, section 7.1.
        """
        added = {"use_step_bias": True, "step_rank": "auto", "use_projection_bias": True}
        added |= {"use_skip": True, "discretization": "mamba"}
        return cls(n, **{**added, "log_transition_initializer": "s4d_real", **kwargs})

    def scan(
        self,
        inputs: Tensor,
        initial_state: Tensor | None,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        delta, input_matrix, output_matrix = self._projections(inputs)
        return selective_scan(
            inputs,
            delta,
            transition=-ops.exp(ops.cast(self.log_transition, self.state_dtype)),
            input_matrix=input_matrix,
            output_matrix=output_matrix,
            discretization=self.discretization,
            skip=self.skip if self.use_skip else None,
            delta_softplus=True,
            delta_bias=self.step_bias if self.use_step_bias else None,
            initial_state=initial_state,
            mask=mask,
            reset=reset,
            solver=self.solver,
            recompute=self.recompute,
        )

    def _projections(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What Δ, B and C are at every step, without the bias of Δ and its softplus."""
        kernels = self.step_projection, self.input_projection, self.output_projection
        if keras.distribution.distribution() is None:
            # One product of matrices for all three, so that the inputs are read once.
            products = self.project(inputs, ops.concatenate(kernels, axis=1))
            # Slices, because `ops.split` on PyTorch asks for sizes that an exporter does not know.
            first = self.step_projection.shape[1]
            second = first + self.n
            delta, input_matrix = products[..., :first], products[..., first:second]
            output_matrix = products[..., second:]
        else:  # weights that are cut over devices differently would be gathered first
            delta, input_matrix, output_matrix = (self.project(inputs, x) for x in kernels)
        if self.step_rank is not None:
            delta = self.project(delta, self.step_expansion)
        if self.use_projection_bias:
            input_matrix = input_matrix + ops.cast(self.input_bias, inputs.dtype)
            output_matrix = output_matrix + ops.cast(self.output_bias, inputs.dtype)
        return delta, input_matrix, output_matrix

    def _length(self, axis: str | int, dim: int) -> int:
        if axis != "rank":
            return super()._length(axis, dim)
        if self.step_rank is None:
            return dim
        return -(-dim // 16) if self.step_rank == "auto" else self.step_rank

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "discretization": self.discretization,
            "use_step_bias": self.use_step_bias,
            "step_rank": self.step_rank,
            "use_projection_bias": self.use_projection_bias,
            "use_skip": self.use_skip,
        }
