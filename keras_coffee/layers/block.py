"""A residual block around a recurrent layer."""

from typing import Any, Self, Unpack

import keras

from keras_coffee import solvers
from keras_coffee._typing import Shape, Tensor
from keras_coffee.layers.arguments import check_not_solved
from keras_coffee.layers.called import called
from keras_coffee.layers.declared_weights import LayerOptions, handed_on
from keras_coffee.layers.mamba_mixer import (
    GIVE_TO_MIXER,
    build_inner,
    checked_mixer,
    serialized_mixer,
    with_mixer,
)
from keras_coffee.layers.recurrent import RecurrentLayer, StateSpec
from keras_coffee.ops import masking
from keras_coffee.ops.arguments import cast, dtype_of


@keras.saving.register_keras_serializable(package="keras_coffee")
class Block(RecurrentLayer):
    """A residual connection around a normalized recurrent layer, for deep models.

        y(k) = u(k) + f(norm(u))(k),   norm(u)(k) = g ⊙ u(k) / √(mean(u(k)²) + ε)

    f is the `mixer` and g the `scale` of a `keras.layers.RMSNormalization`. The block is a
    recurrent layer itself, with the states of its mixer: it takes masks and can be streamed. Share
    the block, not the mixer: a file with one mixer in two blocks does not load.

    Args:
        mixer: f, a recurrent layer of `keras_coffee` with as many outputs as inputs.
        epsilon: ε. Defaults to 1e-5.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask: As for
            `RecurrentLayer`. Give them to the block and not to its mixer.
        solver, recompute: Only the defaults. Give others to the mixer, as in
            `Block(CoffeeLayer(8, recompute=True))`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`, as for every Keras layer.
            `norm.trainable` is not saved.
            The mixer has its own `dtype`.

    `RecurrentLayer` lists the arguments and results of a call.

    Raises:
        TypeError: if `mixer` is no recurrent layer of `keras_coffee`.
        ValueError: if `mixer` has an `activity_regularizer`, was built for another number of
            features, has another number of outputs than inputs, or another value than the default
            of `return_sequences`, `return_state`, `go_backwards`, `stateful` or
            `zero_output_for_mask`; if `solver` or `recompute` is not the default.

    Example:
        >>> blocks = [Block(MambaMixer(8)), Block(CoffeeLayer(8))]
        >>> model = keras.Sequential([keras.Input((None, 32)), *blocks])
        >>> model(np.ones((2, 5, 32))).shape
        (2, 5, 32)

    Reference:
        A. Gu and T. Dao, "Mamba", 2023, section 3.4; B. Zhang and R. Sennrich, "Root Mean Square
        Layer Normalization", 2019.
    """

    def __init__(
        self,
        mixer: RecurrentLayer,
        *,
        epsilon: float = 1e-5,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        **kwargs: Unpack[LayerOptions],
    ):
        # First, since the mixer may take solvers that the block's own kind of recurrence does not.
        check_not_solved(self, solver, recompute, GIVE_TO_MIXER)
        super().__init__(**handed_on(locals(), "mixer", "epsilon"))
        self.mixer = checked_mixer(mixer)
        self.epsilon = float(epsilon)
        self.norm = keras.layers.RMSNormalization(
            epsilon=self.epsilon, dtype=self.dtype_policy, name="norm"
        )

    def state_specs(self, dim: int) -> list[StateSpec]:
        # In the mixer's own precision.
        return [StateSpec(*state) for state in self.mixer.typed_states(dim)]

    def output_size(self, dim: int) -> int:
        return dim

    def build(self, inputs_shape: Shape, initial_state_shape: Any = None) -> None:
        super().build(inputs_shape, initial_state_shape)
        dim = self._dim
        if self.mixer.output_size(dim) != dim:
            raise ValueError(
                f"`mixer` must have as many outputs as inputs, {dim} here, but {self.mixer.name!r} "
                f"has {self.mixer.output_size(dim)}. Choose its width so, or put it into a "
                "MambaMixer, which projects them."
            )
        self.norm.build(inputs_shape)
        build_inner(self.mixer, inputs_shape)

    def scan(
        self,
        inputs: Tensor,
        initial_state: Any,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        states = self.mixer.as_states(self.or_zeros(initial_state, inputs), inputs.shape[0])
        mixed, state = self.mixer._run(called(self.norm, inputs), states, mask, reset)
        outputs = inputs + cast(mixed, dtype_of(inputs))
        return masking.repeat_last(outputs, mask, reset), state

    def get_config(self) -> dict[str, Any]:
        own = {"mixer": serialized_mixer(self.mixer), "epsilon": self.epsilon}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        return cls(**with_mixer(config, custom_objects))
