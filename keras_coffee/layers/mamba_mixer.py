"""The mixer of Mamba: a recurrence between two projections, with a convolution and a gate."""

from typing import Any, Literal, Self, Unpack

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._checks import positive_integer
from keras_coffee._typing import Shape, Tensor
from keras_coffee.layers.arguments import check_not_solved
from keras_coffee.layers.causal_conv import CausalConv1D
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.recurrent import RecurrentLayer, StateSpec
from keras_coffee.ops import masking
from keras_coffee.ops.arguments import cast, dtype_of
from keras_coffee.ops.selective_scan import NO_STEP, selective_scan

# Of Mamba's own recurrence, absent where another layer takes its place.
_SELECTIVE = ("selection_projection", "step_projection", "step_bias", "log_transition", "skip")


@keras.saving.register_keras_serializable(package="keras_coffee")
class MambaMixer(RecurrentLayer):
    """The layer of Mamba that mixes the steps of a sequence.

        h(k), z(k) = W_in u(k) + b_in,   split in two
        v(k) = silu(w_1 ⊙ h(k-K+1) + … + w_K ⊙ h(k) + b)
        d(k), B(k), C(k) = W_x v(k),   split in three
        Δ(k) = softplus(W_Δ d(k) + b_Δ),   λ = -e^μ
        x_i(k) = e^(λ_i Δ_i(k)) x_i(k-1) + Δ_i(k) B(k) v_i(k)
        y_i(k) = C(k) x_i(k) + s_i v_i(k)
        outputs W_out (y(k) ⊙ silu(z(k))) + b_out

    for the features i = 1, …, E, where E = `expand` D. Outputs are as wide as inputs. Another
    recurrent layer, `mixer`, may replace the three lines from d(k) to y(k): it gets v(k), and its
    outputs, of any width, are y(k). Share a whole `MambaMixer`, not the `mixer` in it: a file with
    one `mixer` in two layers does not load.

    Args:
        n: States per feature, a positive integer. Ignored with a `mixer`. Defaults to 16.
        expand: E / D, a positive integer. Defaults to 2.
        kernel_size: K, the steps that the convolution sees. None: no convolution, v(k) = h(k).
            Defaults to 4.
        step_rank: The length r of d(k). `"auto"`, the default: D / 16, rounded up. Ignored with a
            `mixer`.
        mixer: A recurrent layer of `keras_coffee`. None, the default: Mamba's recurrence.
        use_bias: Whether there are b_in and b_out. Defaults to False.
        use_conv_bias: Whether there is b. Defaults to True.
        solver, recompute: As for `RecurrentLayer`. With `mixer` only the defaults: give others to
            the mixer.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask: As for
            `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
            Ignored for a weight that the layer does not have. Weights are `input_projection`
            `(D, E + F)`, `input_bias` `(E + F,)`, `selection_projection` `(E, r + 2n)`,
            `step_projection` `(r, E)`, `step_bias` `(E,)`, `log_transition` `(E, n)`, `skip`
            `(E,)`, `output_projection` `(F, D)` and `output_bias` `(D,)`. F is E, or the width of
            the mixer's outputs. λ starts at -1, …, -n, s at 1 and softplus(b_Δ) log-uniform from
            0.001 to 0.1. The convolution is a `CausalConv1D` with its own defaults.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`, as for every Keras layer.
            `convolution.trainable` is not saved. A `mixer` has its own `dtype`.

    `RecurrentLayer` lists the arguments and results of a call. The states are the last inputs of
    the convolution, `(B, K - 1, E)`, if there is one, and x, `(B, E, n)`, or those of `mixer`.

    Raises:
        TypeError: if `mixer` is no recurrent layer of `keras_coffee`.
        ValueError: if a size is not a positive integer, `mixer` has an `activity_regularizer`, was
            built for another number of features, or has another value than the default of
            `return_sequences`, `return_state`, `go_backwards`, `stateful` or
            `zero_output_for_mask`, `solver` is unknown, `solver` or `recompute` is given besides
            `mixer`, or the inputs are not `(B, T, D)`.

    Example:
        >>> MambaMixer(n=8)(np.ones((2, 5, 32))).shape
        (2, 5, 32)
        >>> MambaMixer(mixer=CoffeeLayer(8), expand=1)(np.ones((2, 5, 32))).shape
        (2, 5, 32)

    Reference:
        A. Gu and T. Dao, "Mamba", 2023, sections 3.4 to 3.6, and the code that it comes with.
    """

    WEIGHTS = {
        "input_projection": WeightSpec(("D", "branches")),
        "input_bias": WeightSpec(("branches",)),
        "selection_projection": WeightSpec(("inner", "selection")),
        "step_projection": WeightSpec(("rank", "inner")),
        "step_bias": WeightSpec(("inner",)),
        "log_transition": WeightSpec(("inner", "n")),
        "skip": WeightSpec(("inner",)),
        "output_projection": WeightSpec(("mixed", "D")),
        "output_bias": WeightSpec(("D",)),
    }

    def __init__(
        self,
        n: int = 16,
        *,
        expand: int = 2,
        kernel_size: int | None = 4,
        step_rank: int | Literal["auto"] = "auto",
        mixer: RecurrentLayer | None = None,
        use_bias: bool = False,
        use_conv_bias: bool = True,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        input_projection_initializer: Rule = "glorot_uniform",
        input_projection_regularizer: Rule = None,
        input_projection_constraint: Rule = None,
        input_bias_initializer: Rule = "zeros",
        input_bias_regularizer: Rule = None,
        input_bias_constraint: Rule = None,
        selection_projection_initializer: Rule = "glorot_uniform",
        selection_projection_regularizer: Rule = None,
        selection_projection_constraint: Rule = None,
        step_projection_initializer: Rule = "fan_in_uniform",
        step_projection_regularizer: Rule = None,
        step_projection_constraint: Rule = None,
        step_bias_initializer: Rule = "step_sizes",
        step_bias_regularizer: Rule = None,
        step_bias_constraint: Rule = None,
        log_transition_initializer: Rule = "s4d_real",
        log_transition_regularizer: Rule = None,
        log_transition_constraint: Rule = None,
        skip_initializer: Rule = "ones",
        skip_regularizer: Rule = None,
        skip_constraint: Rule = None,
        output_projection_initializer: Rule = "glorot_uniform",
        output_projection_regularizer: Rule = None,
        output_projection_constraint: Rule = None,
        output_bias_initializer: Rule = "zeros",
        output_bias_regularizer: Rule = None,
        output_bias_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        if mixer is not None:
            check_not_solved(self, solver, recompute, GIVE_TO_MIXER)
        # Before the weights are asked for.
        present = {name: mixer is None for name in _SELECTIVE}
        self._present = present | {"input_bias": use_bias, "output_bias": use_bias}
        own = ("n", "expand", "kernel_size", "step_rank", "mixer", "use_bias", "use_conv_bias")
        super().__init__(**handed_on(locals(), *own, "present", "own"))
        self.n = positive_integer("n", n)
        self.expand = positive_integer("expand", expand)
        self.step_rank = step_rank
        if step_rank != "auto":
            self.step_rank = positive_integer("step_rank", step_rank, ' or "auto"')
        self.use_bias, self.use_conv_bias = use_bias, use_conv_bias
        self.mixer = None if mixer is None else checked_mixer(mixer)
        self.kernel_size, self.convolution = kernel_size, None
        if kernel_size is not None:
            self.kernel_size = positive_integer("kernel_size", kernel_size, " or None")
            self.convolution = CausalConv1D(
                self.kernel_size,
                activation="silu",
                use_bias=use_conv_bias,
                dtype=self.dtype_policy,
                name="convolution",
            )

    def _length(self, axis: str | int, dim: int) -> int:
        inner, rank = self.expand * dim, self.step_rank
        rank = -(-dim // 16) if rank == "auto" else rank
        mixed = inner if self.mixer is None else self.mixer.output_size(inner)
        lengths = {"inner": inner, "mixed": mixed, "branches": inner + mixed, "rank": rank}
        lengths["selection"] = rank + 2 * self.n
        return lengths[axis] if axis in lengths else super()._length(axis, dim)

    def state_specs(self, dim: int) -> list[StateSpec]:
        inner = self.expand * dim
        window = [] if self.convolution is None else self.convolution.state_specs(inner)
        if self.mixer is None:
            return [*window, StateSpec((inner, self.n))]
        # In the mixer's own precision.
        return [*window, *(StateSpec(*state) for state in self.mixer.typed_states(inner))]

    def output_size(self, dim: int) -> int:
        return dim

    def build(self, inputs_shape: Shape, initial_state_shape: Any = None) -> None:
        super().build(inputs_shape, initial_state_shape)
        for layer in (self.convolution, self.mixer):
            if layer is not None:
                build_inner(layer, (*inputs_shape[:2], self.expand * self._dim))

    def scan(
        self,
        inputs: Tensor,
        initial_state: Any,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        states = self.or_zeros(initial_state, inputs)
        branches = self._biased(self.project(inputs, self.input_projection), "input_bias")
        inner = self.expand * inputs.shape[-1]
        mixed, gate = branches[..., :inner], branches[..., inner:]
        if self.convolution is not None:
            mixed, states[0] = self.convolution.convolve(mixed, states[0], mask, reset)
        first = 0 if self.convolution is None else 1
        mixed, states[first:] = self._mixed(mixed, states[first:], mask, reset)
        gated = cast(mixed, dtype_of(inputs)) * ops.silu(gate)
        outputs = self._biased(self.project(gated, self.output_projection), "output_bias")
        return masking.repeat_last(outputs, mask, reset), states

    def _biased(self, x: Tensor, name: str) -> Tensor:
        return x + cast(getattr(self, name), dtype_of(x)) if self.use_bias else x

    def _mixed(
        self, inputs: Tensor, states: list[Tensor], mask: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        if self.mixer is not None:
            states = self.mixer.as_states(states, inputs.shape[0])
            return self.mixer._run(inputs, states, mask, reset)
        selected = self.project(inputs, self.selection_projection)
        first, second = selected.shape[-1] - 2 * self.n, selected.shape[-1] - self.n
        delta = cast(self.project(selected[..., :first], self.step_projection), self.state_dtype)
        outputs, state = selective_scan(
            inputs,
            # Holds the state at masked steps. With `mask=` outputs would be replaced there twice.
            delta=masking.fill_masked(delta, mask, NO_STEP),
            transition=-ops.exp(cast(self.log_transition, self.state_dtype)),
            input_matrix=selected[..., first:second],
            output_matrix=selected[..., second:],
            discretization="mamba",
            skip=self.skip,
            delta_softplus=True,
            delta_bias=self.step_bias,
            initial_state=states[0],
            reset=reset,
            solver=self.solver,
            recompute=self.recompute,
        )
        return outputs, [state]

    def get_config(self) -> dict[str, Any]:
        names = ("n", "expand", "kernel_size", "step_rank", "use_bias", "use_conv_bias")
        own = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **own, "mixer": serialized_mixer(self.mixer)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        return cls(**with_mixer(config, custom_objects))


# For layers around a recurrent layer.


# How a layer refuses what its mixer should have.
GIVE_TO_MIXER = "its mixer is what runs. Give {given} to the mixer."


def checked_mixer(mixer: Any) -> RecurrentLayer:
    """The layer, if its states can be those of a layer around it.

    Raises:
        TypeError: if it is no recurrent layer of this package.
        ValueError: if an argument of it is one for the layer around it.
    """
    if not isinstance(mixer, RecurrentLayer):
        call = f" Call it, as in {mixer.__name__}(...)." if isinstance(mixer, type) else ""
        raise TypeError(
            "`mixer` must be a recurrent layer of keras_coffee, such as CoffeeLayer(n=8), received "
            f"{mixer!r}.{call}"
        )
    for flag, value in _OF_THE_LAYER_AROUND.items():
        if bool(getattr(mixer, flag)) is value:
            raise ValueError(
                f"`mixer` must not have {flag}={value}, received {mixer.name!r} with it. Give "
                f"{flag} to the layer around it."
            )
    # Keras adds its loss where it calls a layer, and a mixer is not called but advanced.
    if mixer.activity_regularizer is not None:
        raise ValueError(
            f"`mixer` must not have an activity_regularizer, received {mixer.name!r} with one. "
            "Give it to the layer around it."
        )
    return mixer


# What a call returns, keeps and in which order it reads is up to the layer around.
_OF_THE_LAYER_AROUND = {
    "return_sequences": False,
    "return_state": True,
    "go_backwards": True,
    "stateful": True,
    "zero_output_for_mask": True,
}


def build_inner(layer: RecurrentLayer, shape: Shape) -> None:
    """Builds a layer in another one, unless it is built already, as a layer from a file is.

    Raises:
        ValueError: if it was built for another number of features.
    """
    if not layer.built:
        layer.build(shape)
    elif layer._dim != shape[-1]:
        raise ValueError(
            f"{layer.name!r} was built for {layer._dim} features, but gets {shape[-1]} here. Make "
            "a new one for each width."
        )


def serialized_mixer(mixer: RecurrentLayer | None) -> Any:
    """What a configuration has of it."""
    return None if mixer is None else keras.saving.serialize_keras_object(mixer)


def with_mixer(config: dict[str, Any], custom_objects: dict[str, Any] | None) -> dict[str, Any]:
    """A configuration with the layer in it made again."""
    if config.get("mixer") is None:
        return config
    with keras.saving.CustomObjectScope(custom_objects or {}):
        return {**config, "mixer": keras.saving.deserialize_keras_object(config["mixer"])}
