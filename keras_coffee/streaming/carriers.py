"""Layers that carry a state from one piece of a stream to the next."""

import abc
import functools
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Shape, Tensor
from keras_coffee.layers.arguments import check_forwards
from keras_coffee.ops import masking
from keras_coffee.streaming.pointwise import check_activation


class Carrier(keras.layers.Layer, abc.ABC):
    """A layer of a model, with its state given and returned.

    Masked steps repeat the previous output. If a mask may skip the first steps of a block, that
    output is in an earlier block, so it is one more state.

    Args:
        layer: The layer of the model. Its weights are used, not copied.
        inputs: A symbolic tensor as the layer gets it, `(B, T, ...)`.
        outputs: What the layer makes of it.
        is_masked: Whether a mask may skip steps.
    """

    def __init__(self, layer: Any, inputs: Any, outputs: Any, is_masked: bool):
        super().__init__(name=layer.name, dtype=layer.dtype_policy)
        # Keras would round the states to the compute dtype.
        self.autocast = False
        self.supports_masking = layer.supports_masking
        self.layer = layer
        self._is_masked = is_masked
        self.has_time = getattr(layer, "return_sequences", True)
        repeats = layer.supports_masking and not getattr(layer, "zero_output_for_mask", False)
        self._width = outputs.shape[2 if self.has_time else 1 :] if is_masked and repeats else None

    def build(self, inputs_shape: Shape, states_shape: Any = None) -> None:
        self.built = True  # as the layer is

    def __call__(
        self,
        inputs: Tensor,
        states: list[Tensor],
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> Any:
        # Without a mask Keras has nothing to add, and takes as long as the step.
        if not self._is_masked:
            return self.call(inputs, states, reset=reset)
        return super().__call__(inputs, states, mask=mask, reset=reset)

    def initial(self, batch_size: int) -> list[Tensor]:
        """The layer's own states before the first step."""
        return keras.tree.flatten(self.layer.get_initial_state(batch_size))

    @abc.abstractmethod
    def advance(
        self,
        inputs: Tensor,
        states: list[Tensor],
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The outputs of all steps of a block, `(B, K, ...)`, and the layer's own new states.

        Resets come only where the layer takes them.
        """

    def get_initial_state(self, batch_size: int) -> list[Tensor]:
        """All states before the first step, the last output behind the others."""
        states = self.initial(batch_size)
        if self._width is not None:
            states.append(ops.zeros((batch_size, *self._width), self.compute_dtype))
        return states

    def state_names(self, path: str) -> list[str]:
        """A name for each state of `get_initial_state`, from the path of the layer."""
        count = len(self.initial(1))
        names = [path] if count == 1 else [f"{path}.{i}" for i in range(count)]
        return names if self._width is None else [*names, f"{path}.output"]

    def call(
        self,
        inputs: Tensor,
        states: list[Tensor],
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> list[Tensor]:
        """The outputs as the layer itself returns them, and the new states."""
        # The mask that the layer is given in the model, or that which the inputs carry.
        mask = inputs_mask if mask is None else mask
        held = None
        if self._width is not None:
            *states, held = states
        outputs, new = self.advance(inputs, states, mask, reset)
        if held is not None:
            outputs = masking.hold_before_first(outputs, held, mask, reset)
            new = [*new, outputs[:, -1]]
        return [outputs if self.has_time else outputs[:, -1], *new]

    def compute_mask(self, inputs: Any, previous_mask: Any) -> list[Any]:
        return [previous_mask if self.has_time else None]


class RecurrentCarrier(Carrier):
    """For the recurrent layers of this library, and others with the same `advance`."""

    def __init__(self, layer: Any, *args: Any):
        layer.check_stream()
        check_activation(layer, args[0])
        super().__init__(layer, *args)

    def advance(
        self,
        inputs: Tensor,
        states: list[Tensor],
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        marks = {} if reset is None else {"reset": reset}
        outputs, new = self.layer.advance(inputs, states, mask, **marks)
        return outputs, list(new) if isinstance(new, (list, tuple)) else [new]


class KerasCarrier(Carrier):
    """For `keras.layers.RNN` and what derives from it: its cell, run by a layer with states."""

    def __init__(self, layer: Any, *args: Any):
        check_forwards(layer)
        super().__init__(layer, *args)
        self.rnn = keras.layers.RNN(
            layer.cell,
            return_sequences=True,
            return_state=True,
            zero_output_for_mask=layer.zero_output_for_mask,
            dtype=layer.dtype_policy,
        )
        # `StackedRNNCells` nests the states of its cells.
        nested = keras.tree.map_structure(lambda _: 0, layer.get_initial_state(1))
        self._nested = functools.partial(keras.tree.pack_sequence_as, nested)

    def build(self, inputs_shape: Shape, states_shape: Any = None) -> None:
        self.rnn.build(inputs_shape)
        super().build(inputs_shape)

    def advance(
        self,
        inputs: Tensor,
        states: list[Tensor],
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        states = self._nested(states)
        if inputs.shape[1] == 1 and mask is None:
            # Without a loop: faster, and exporters take loops over one step for something else.
            outputs, new = self.layer.cell(inputs[:, 0], states)
            return ops.expand_dims(outputs, 1), keras.tree.flatten(new)
        outputs, *new = self.rnn(inputs, initial_state=states, mask=mask)
        return outputs, keras.tree.flatten(new)


class CausalCarrier(Carrier):
    """For `keras.layers.Conv1D` with causal padding: its state are the last inputs."""

    def __init__(self, layer: Any, inputs: Any, *args: Any):
        check_activation(layer, inputs)
        super().__init__(layer, inputs, *args)
        self._reach = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        self._dim = inputs.shape[-1]

    def initial(self, batch_size: int) -> list[Tensor]:
        return [ops.zeros((batch_size, self._reach, self._dim), self.compute_dtype)]

    def advance(
        self,
        inputs: Tensor,
        states: list[Tensor],
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        (before,) = states
        inputs = ops.concatenate([before, ops.cast(inputs, before.dtype)], axis=1)
        # The layer pads in front again; the outputs of these steps are known already.
        return self.layer(inputs)[:, self._reach :], [inputs[:, -self._reach :]]


def carrier_class(layer: Any) -> type[Carrier] | None:
    """The class of the carrier for a layer; None if the layer has no state."""
    if hasattr(layer, "check_stream") and _advances_as_called(type(layer)):
        return RecurrentCarrier
    if isinstance(layer, keras.layers.RNN) and type(layer).call in _LOOPS:
        return KerasCarrier
    if type(layer) is keras.layers.Conv1D and _is_causal(layer):
        return CausalCarrier
    return None


def _advances_as_called(kind: type) -> bool:
    """Whether no class overrides `call` without `advance`, which a stream runs instead."""
    advance, call = (
        next((k for k, base in enumerate(kind.__mro__) if name in vars(base)), len(kind.__mro__))
        for name in ("advance", "call")
    )
    return advance <= call


# What derives from `RNN` and has a loop of its own may do anything there.
_LOOPS = {getattr(keras.layers, x).call for x in ("RNN", "SimpleRNN", "GRU", "LSTM")}


def _is_causal(layer: Any) -> bool:
    is_plain = layer.strides == (1,) and layer.data_format == "channels_last"
    return layer.padding == "causal" and layer.kernel_size != (1,) and is_plain
