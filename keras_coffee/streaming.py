"""A whole model over a stream, one token or one block at a time."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.layers.arguments import check_real
from keras_coffee.layers.recurrent import RecurrentLayer
from keras_coffee.layers.softmin_logits import SoftminLogits
from keras_coffee.layers.symbol_embedding import SymbolEmbedding

# Layers of Keras that treat each step by itself, when nothing is trained.
_POINTWISE: tuple[type, ...] = (
    SoftminLogits,
    SymbolEmbedding,
    *(
        getattr(keras.layers, name)
        for name in (
            "Activation",
            "ActivityRegularization",
            "AlphaDropout",
            "BatchNormalization",
            "Dense",
            "Dropout",
            "ELU",
            "Embedding",
            "GaussianDropout",
            "GaussianNoise",
            "Identity",
            "LayerNormalization",
            "LeakyReLU",
            "Masking",
            "ReLU",
            "Rescaling",
            "Softmax",
            "SpatialDropout1D",
            "TimeDistributed",
            "UnitNormalization",
        )
    ),
)


class Stream:
    """Feeds a `keras.Sequential` a sequence piece by piece, and carries the state of each layer.

    The outputs are those of the whole sequence at once, but where a mask passes over the first
    steps of a piece: they are zero there, and do not repeat the piece before. A piece costs the
    same however much came before it. A stream holds nothing itself: states go in and come out, so
    that several sequences can be followed, copied and taken up again, and `jax.jit(stream.step)`
    or `tf.function(stream.step)` compiles it. They are one list of tensors: the states of the
    first recurrent layer, then those of the next. JAX takes the weights for constants then: compile
    again after they have changed.

    Args:
        model: A built `keras.Sequential` of the recurrent layers of `keras_coffee`, not backwards,
            and of layers that treat each step by itself, such as `Dense`, `Embedding` and
            `LayerNormalization`; or of further `Sequential` models of those.
        pointwise: Other classes of layers that treat each step by itself.

    Raises:
        TypeError: if the model is no `keras.Sequential`.
        ValueError: if the model is not built, or a layer needs more than the present step.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), CoffeeLayer(8), S6Layer(4)])
        >>> stream = Stream(model)
        >>> state = stream.get_initial_state(batch_size=2)
        >>> outputs, state = stream(np.ones((2, 50, 3)), state)
        >>> outputs_t, state = stream.step(np.ones((2, 3)), state)
        >>> outputs.shape, outputs_t.shape
        ((2, 50, 3), (2, 3))
    """

    def __init__(self, model: keras.Sequential, pointwise: Iterable[type] = ()):
        if not isinstance(model, keras.Sequential):
            raise TypeError(f"A stream needs a keras.Sequential, received {type(model).__name__}.")
        if not model.built:
            raise ValueError(
                f"{model.name!r} is not built. Begin it with keras.Input, or call it once."
            )
        self._name = model.name
        self._dtype = model.inputs[0].dtype
        self._shape = model.inputs[0].shape
        self._layers = list(_layers(model))
        for layer in self._layers:
            _check(layer, (*_POINTWISE, *pointwise))
        recurrent = [layer for layer in self._layers if isinstance(layer, RecurrentLayer)]
        self._recurrent = recurrent
        self._has_time = all(layer.return_sequences for layer in recurrent)

    def get_initial_state(self, batch_size: int) -> list[Tensor]:
        """The states before the first step, zeros: those of all recurrent layers in one list."""
        return [x for layer in self._recurrent for x in layer.get_initial_state(batch_size)]

    def __call__(self, inputs: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Feeds a block of steps.

        Args:
            inputs: What the model takes, `(B, K, ...)` for a block of K steps.
            state: The states that the block before it led to, or `get_initial_state`.

        Returns:
            What the model puts out for these steps (for the last of them, if a layer has
            `return_sequences=False`), and the new states. No gradient goes from block to block.
            Where a mask passes over the first steps of a block, outputs are zero.

        Raises:
            ValueError: if the inputs have another rank than the model's, or `state` is not a list
                of as many tensors.
            TypeError: if the inputs are complex and the model's are not.
        """
        return self._feed(self._checked(inputs, "batch", "steps"), state)

    def _feed(self, block: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        self._check_state(state)
        outputs, mask = block, None
        # Not carried on, or the graph of a long stream would grow with it on PyTorch.
        carried = (ops.stop_gradient(ops.convert_to_tensor(x)) for x in state)
        new: list[Tensor] = []
        for layer in self._layers:
            given = outputs
            if isinstance(layer, RecurrentLayer):
                own = list(itertools.islice(carried, len(layer.state_size)))
                outputs, final = layer.advance(given, own, mask)
                new += final if isinstance(final, list) else [final]
                if not layer.return_sequences:
                    outputs, mask = outputs[:, -1], None
            else:
                outputs = layer(given)
                mask = layer.compute_mask(given, mask) if layer.supports_masking else None
        return outputs, new

    def step(self, inputs_t: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Feeds one step: as `__call__`, without the axis of time.

        Args:
            inputs_t: What the model takes, at one step: `(B, ...)`.
            state: The states that the step before it led to, or `get_initial_state`.

        Returns:
            What the model puts out at this step, and the new states.
        """
        block = ops.expand_dims(self._checked(inputs_t, "batch"), 1)
        outputs, state = self._feed(block, state)
        return outputs[:, 0] if self._has_time else outputs, state

    def _check_state(self, state: Any) -> None:
        count = sum(len(layer.state_size) for layer in self._recurrent)
        if isinstance(state, list | tuple) and len(state) == count:
            return
        received = len(state) if isinstance(state, list | tuple) else f"a {type(state).__name__}"
        raise ValueError(
            f"The state of a stream of {self._name!r} is a list of as many tensors as its "
            f"recurrent layers have states, {count}; received {received}. Start with "
            "`get_initial_state`."
        )

    def _checked(self, inputs: Tensor, *axes: str) -> Tensor:
        """The inputs, cast as the model itself casts them, if they have these axes and a step's."""
        inputs, expected = ops.convert_to_tensor(inputs), (*axes, *self._shape[2:])
        if not self._dtype.startswith("complex"):
            check_real(f"What {self._name!r} takes", inputs)
        if len(inputs.shape) != len(expected):
            named = ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "")
            raise ValueError(
                f"{self._name!r} takes `({named})` here, received the shape {tuple(inputs.shape)}. "
                "One sequence is a batch of 1; `step` takes no axis of steps, a call does."
            )
        return ops.cast(inputs, self._dtype)


def _layers(model: keras.Sequential) -> Iterator[Any]:
    for layer in model.layers:
        if isinstance(layer, keras.Sequential):
            yield from _layers(layer)
        else:
            yield layer


def _check(layer: Any, pointwise: tuple[type, ...]) -> None:
    """Raises unless a layer can follow a stream."""
    if isinstance(layer, RecurrentLayer):
        layer.check_stream()
        return
    wrapped = getattr(layer, "layer", layer)
    if getattr(wrapped, "stateful", False):
        raise ValueError(
            f"{wrapped.name!r} is stateful and would keep a state of its own between the pieces. "
            "Build it with stateful=False."
        )
    # Normalization over time, which is axis 1, needs all steps at once.
    axes = getattr(layer, "axis", -1)
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    if not isinstance(layer, pointwise) or not set(axes) <= {-1, 2}:
        raise ValueError(
            f"{layer.name!r} of type {type(layer).__name__} may need other steps than the present "
            "one, so it can't follow a stream. If it does treat each step by itself, say so: "
            "Stream(model, pointwise=[...])."
        )
