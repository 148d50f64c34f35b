"""An image read as a sequence, in four directions."""

import json
from collections.abc import Sequence
from typing import Any, Self, Unpack

import keras
from keras import ops

from keras_coffee._typing import Shape, Tensor
from keras_coffee.layers.arguments import check_real
from keras_coffee.layers.declared_weights import LayerOptions
from keras_coffee.layers.graph import calls_in

DIRECTIONS = ("rows", "columns", "rows_reversed", "columns_reversed")


@keras.saving.register_keras_serializable(package="keras_coffee")
class FourDirections(keras.layers.Layer):
    """Reads an image as a sequence four times, and puts the four last outputs side by side.

        y = [f₁(rows), f₂(columns), f₃(rows, last first), f₄(columns, last first)]

    where each row, and each column, is the vector of one step, and each f is a copy of the layer
    with its own weights. The copies are the attributes `rows`, `columns`, `rows_reversed` and
    `columns_reversed`, and have these words in front of the layer's name.

    Args:
        layer: A layer from sequences `(B, T, D)` to `(B, F)` or to `(B, T, F)`, of which the last
            step is taken: a recurrent layer, or a `keras.Sequential`. It is not run itself. As by
            `keras.layers.Bidirectional`, copies are made from its configuration, those of recurrent
            layers with `return_sequences=False`; weights that it may have already, and the shape
            that it was built for, are left behind. Copies start with different weights, unless an
            initializer has a seed.
        copies: The configurations of the four copies, as `get_config` has them, by the names of the
            attributes. None: copies of `layer`.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer. The copies keep the dtype
            policy of `layer`.

    Input shape:
        Images `(B, H, W)` or `(B, H, W, C)`, of which B alone may be unknown. Channels count as
        features: the rows are H steps of W C features, the columns W steps of H C.

    Output shape:
        `(B, 4 F)`; if F is the number of features, as with `CoffeeLayer`, `(B, 2 C (H + W))`. In
        the compute dtype.

    Masks are dropped, with the warning that Keras has for it: a mask over rows says nothing of
    columns.

    Raises:
        TypeError: if `layer` is not a Keras layer.
        ValueError: if `layer` has `return_state`, `stateful` or `go_backwards`, if a layer in it is
            stateful, if it does not lead to one output of the ranks above, or if the inputs are not
            images of known height, width and channels.

    Example:
        >>> directions = FourDirections(CoffeeLayer(n=2))
        >>> directions(np.ones((8, 25, 25))).shape
        (8, 100)
        >>> directions.count_params()
        600

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", Appendix "MNIST
        Architecture and Results", subsection "Our Architecture".
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        copies: dict[str, Any] | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        _check_layer(layer)
        super().__init__(**kwargs)
        # As text, since Keras would wrap and track a dictionary.
        self._layer = json.dumps(_configuration(layer))
        for direction in DIRECTIONS:
            own = copies[direction] if copies else _renamed(json.loads(self._layer), direction)
            # The class may be registered nowhere: it is known here.
            with keras.saving.CustomObjectScope({type(layer).__name__: type(layer)}):
                setattr(self, direction, keras.saving.deserialize_keras_object(own))

    def _copies(self) -> list[keras.layers.Layer]:
        return [getattr(self, direction) for direction in DIRECTIONS]

    def build(self, input_shape: Shape) -> None:
        for copy, shape in zip(self._copies(), self._sequence_shapes(input_shape), strict=True):
            if not copy.built:
                copy.build(shape)
        axes = dict(enumerate(input_shape[1:], start=1))
        self.input_spec = keras.InputSpec(ndim=len(input_shape), axes=axes)

    def _sequence_shapes(self, shape: Any) -> Sequence[Shape]:
        if len(shape) not in (3, 4) or None in shape[1:]:
            raise ValueError(
                f"{self.name!r} expects images (batch, height, width) or (batch, height, width, "
                "channels) of which the batch alone may be unknown, since a row has width and a "
                f"column height features, received shape {tuple(shape)}. Give the size, for "
                "example as keras.Input((25, 25)), and bring images to one size with "
                "keras.layers.Resizing or CenterCrop."
            )
        batch, height, width, *channels = shape
        factor = channels[0] if channels else 1
        return 2 * [(batch, height, width * factor), (batch, width, height * factor)]

    def call(self, inputs: Tensor) -> Tensor:
        # A copy, because the images' own tensor may carry a mask, which the rows alone would see.
        rows = _steps(ops.copy(inputs))
        columns = _steps(ops.swapaxes(inputs, 1, 2))
        sequences = rows, columns, ops.flip(rows, axis=1), ops.flip(columns, axis=1)
        pairs = zip(self._copies(), sequences, strict=True)
        outputs = [_last(copy, sequence) for copy, sequence in pairs]
        return ops.concatenate([ops.cast(x, self.compute_dtype) for x in outputs], axis=-1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        pairs = zip(self._copies(), self._sequence_shapes(input_shape), strict=True)
        return input_shape[0], sum(_width(copy, shape) for copy, shape in pairs)

    def get_config(self) -> dict[str, Any]:
        # Each copy's own, because parts of one may be frozen.
        copies = {direction: _configuration(getattr(self, direction)) for direction in DIRECTIONS}
        return {**super().get_config(), "layer": json.loads(self._layer), "copies": copies}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        with keras.saving.CustomObjectScope(custom_objects or {}):
            layer = keras.saving.deserialize_keras_object(config["layer"])
            return cls(**{**config, "layer": layer})


def _check_layer(layer: Any) -> None:
    if not isinstance(layer, keras.layers.Layer):
        raise TypeError(
            f"`layer` must be a Keras layer, such as CoffeeLayer(n=2), received {layer!r}."
        )
    for flag in ("return_state", "stateful", "go_backwards"):
        if getattr(layer, flag, False):
            raise ValueError(
                f"`layer` must not have {flag}=True, received {layer.name!r} with it: its copies "
                "start anew with each image, each reads in its own direction, and only their last "
                f"outputs are returned. Leave {flag} out."
            )
    for inner, _ in calls_in(layer):
        if getattr(inner, "stateful", False):
            raise ValueError(
                f"`layer` must not have stateful layers in it, received {inner.name!r} in "
                f"{layer.name!r}: its copies start anew with each image. Leave stateful out."
            )


def _configuration(layer: keras.layers.Layer) -> Any:
    """What Keras saves of a layer, without what ties it to a shape or to other objects."""
    return _untied(keras.saving.serialize_keras_object(layer))


def _untied(config: Any) -> Any:
    if isinstance(config, list):
        return [_untied(entry) for entry in config]
    if not isinstance(config, dict):
        return config
    # By its id Keras would find the first copy again while it loads a file.
    dropped = {"build_config", "shared_object_id"} if "class_name" in config else set()
    config = {key: _untied(value) for key, value in config.items() if key not in dropped}
    if config.get("class_name") == "Sequential":
        inner = config["config"]
        inner.pop("build_input_shape", None)
        inner["layers"] = [x for x in inner["layers"] if x["class_name"] != "InputLayer"]
    return config


def _renamed(configuration: dict[str, Any], direction: str) -> dict[str, Any]:
    arguments = configuration["config"]
    arguments["name"] = f"{direction}_{arguments['name']}"
    if "return_sequences" in arguments:
        arguments["return_sequences"] = False
    return configuration


def _steps(images: Tensor) -> Tensor:
    """`(B, T, D)` as it is, `(B, T, D, C)` as `(B, T, D C)`."""
    if len(images.shape) == 3:
        return images
    _, length, dim, channels = images.shape
    return ops.reshape(images, (ops.shape(images)[0], length, dim * channels))


def _width(layer: keras.layers.Layer, shape: Shape) -> int:
    """The features of a layer's last output, for sequences of a shape."""
    outputs = layer.compute_output_spec(keras.KerasTensor(shape))
    _check_outputs(layer, outputs)
    return outputs.shape[-1]


def _last(layer: keras.layers.Layer, sequence: Tensor) -> Tensor:
    outputs = layer(sequence)
    _check_outputs(layer, outputs)
    check_real(f"The output of {layer.name!r}", outputs)
    return outputs[:, -1] if len(outputs.shape) == 3 else outputs


def _check_outputs(layer: keras.layers.Layer, outputs: Any) -> None:
    shapes = [tuple(x.shape) for x in keras.tree.flatten(outputs)]
    if len(shapes) != 1 or len(shapes[0]) not in (2, 3):
        raise ValueError(
            f"A layer to read an image with must return one tensor (batch, features) or (batch, "
            f"time, features), received the shapes {shapes} from {layer.name!r}. Put what it lacks "
            "around it in a keras.Sequential."
        )
