"""A depthwise convolution over the past, as a recurrent layer."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_coffee import solvers
from keras_coffee._checks import positive_integer
from keras_coffee._typing import Tensor
from keras_coffee.layers.arguments import check_not_solved
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.recurrent import RecurrentLayer, StateSpec
from keras_coffee.ops import masking
from keras_coffee.ops.arguments import cast, dtype_of


@keras.saving.register_keras_serializable(package="keras_coffee")
class CausalConv1D(RecurrentLayer):
    """A convolution over the last steps of each feature.

        y(k) = g(w_1 ⊙ u(k-K+1) + … + w_K ⊙ u(k) + b)

    K is `kernel_size`, and the inputs before the first step are zeros. (K + 1) D parameters:
    `kernel` w `(K, D)` and `bias` b `(D,)`. The state holds the last K - 1 inputs, the latest last,
    so the layer can be streamed. All steps are computed at once. A masked step is skipped: the
    window has the last K steps that count. `keras.layers.DepthwiseConv1D` with causal padding is
    the same without masks, state and streams.

    Args:
        kernel_size: K, a positive integer.
        activation: g, a function or its name. None, the default: g(x) = x.
        use_bias: Whether there is a bias. Defaults to True.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask: As for
            `RecurrentLayer`.
        solver, recompute: Only the defaults: there is nothing to solve or to recompute.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
            `kernel` starts uniform in ±1/√K, `bias` from zeros.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    `RecurrentLayer` lists the arguments and results of a call. The state is `(B, K - 1, D)`.

    Raises:
        ValueError: if `kernel_size` is not a positive integer, `solver` or `recompute` is not the
            default, or the inputs are not `(B, T, D)`.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), CausalConv1D(4, activation="silu")])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 3)

    Reference:
        A. Gu and T. Dao, "Mamba", 2023, section 3.4.
    """

    WEIGHTS = {"kernel": WeightSpec(("kernel_size", "D")), "bias": WeightSpec(("D",))}

    def __init__(
        self,
        kernel_size: int,
        *,
        activation: Any = None,
        use_bias: bool = True,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        kernel_initializer: Rule = "fan_in_uniform",
        kernel_regularizer: Rule = None,
        kernel_constraint: Rule = None,
        bias_initializer: Rule = "zeros",
        bias_regularizer: Rule = None,
        bias_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        # First, because the base class would name solvers to choose from.
        check_not_solved(
            self, solver, recompute, "there is nothing to solve or to recompute. Leave it out."
        )
        self.use_bias, self._present = use_bias, {"bias": use_bias}
        super().__init__(**handed_on(locals(), "kernel_size", "activation", "use_bias"))
        self.kernel_size = positive_integer("kernel_size", kernel_size)
        self.activation = keras.activations.get(activation)

    def state_specs(self, dim: int) -> list[StateSpec]:
        return [StateSpec((self.kernel_size - 1, dim))]

    def output_size(self, dim: int) -> int:
        return dim

    def scan(
        self,
        inputs: Tensor,
        initial_state: Tensor | None,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        outputs, state = self.convolve(inputs, initial_state, mask, reset)
        return masking.repeat_last(outputs, mask, reset), state

    def convolve(
        self,
        inputs: Tensor,
        initial_state: Tensor | None,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Like `scan`, except that outputs at masked steps may be any finite numbers."""
        (initial_state,) = self.or_zeros(initial_state, inputs)
        kernel = cast(cast(self.kernel, self.compute_dtype), dtype_of(inputs))
        if inputs.shape[1] == 1 and mask is None and reset is None:
            # Of a stream, where each operation counts.
            known = ops.concatenate([initial_state, inputs], axis=1)
            outputs, state = ops.sum(kernel * known, axis=1, keepdims=True), known[:, 1:]
        else:
            delayed, state = _window(inputs, initial_state, mask, reset)
            outputs = sum(kernel[-1 - k] * x for k, x in enumerate(delayed))
        if self.use_bias:
            outputs = outputs + cast(self.bias, dtype_of(inputs))
        return self.activation(outputs), state

    def get_config(self) -> dict[str, Any]:
        activation = keras.activations.serialize(self.activation)
        own = {"kernel_size": self.kernel_size, "activation": activation, "use_bias": self.use_bias}
        return {**super().get_config(), **own}


def _window(
    inputs: Tensor, state: Tensor, mask: Tensor | None, reset: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """The inputs 0, 1, …, K - 1 steps before each step, `(B, T, D)` each; and the last K - 1."""
    size = state.shape[1]
    known = ops.concatenate([state, inputs], axis=1)
    if (mask is None and reset is None) or 0 in inputs.shape:
        delayed = [known[:, size - k : -k or None] for k in range(size + 1)]
        return delayed, known[:, -size:] if size else state
    # All steps that made the state count, and none of them begins a sequence.
    counted = ops.ones(ops.shape(state)[:2], "bool")
    every = ops.ones_like(inputs[..., 0], "bool") if mask is None else mask
    mask = ops.concatenate([counted, every], axis=1)
    if reset is not None:
        reset = ops.concatenate([ops.logical_not(counted), reset], axis=1)
    at = masking.last_that_counts(mask, reset)
    before = ops.concatenate([ops.zeros_like(at[:, :1]), at[:, :-1]], axis=1)
    before = before if reset is None else masking.zero_masked(before, ops.logical_not(reset))
    delayed, latest = [inputs], []
    for _ in range(size):
        latest.append(masking.at_steps(known, at[:, -1:]))
        # What a step that counts has seen is what the one before it that counts had, and so on.
        at = masking.at_steps(before, at)
        delayed.append(masking.at_steps(known, at[:, size:]))
    return delayed, ops.concatenate(latest[::-1], axis=1) if size else state
