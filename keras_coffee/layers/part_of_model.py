"""A part of a model, which ends or begins at one of its layers."""

from typing import Any

import keras


def input_of(model: keras.Model) -> Any:
    """The symbolic inputs of a model, in the structure in which it takes them."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def part_of(
    model: keras.Model, layer: keras.layers.Layer, inputs: Any, outputs: Any
) -> keras.Model:
    """The part between symbolic tensors, of which one side is what a layer takes or gives.

    Raises:
        ValueError: if the outputs are not made of the inputs.
    """
    try:
        return keras.Model(inputs, outputs)
    except ValueError as error:
        raise ValueError(
            f"The part of {model.name!r} before or after {layer.name!r} can't be taken out. What "
            "comes after may depend on the layer's outputs only, and the layer must not have been "
            "called before in another model."
        ) from error
