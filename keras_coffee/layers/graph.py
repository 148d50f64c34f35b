"""Models as graphs: what they take, what they call, however deep, and parts of them."""

import inspect
from collections.abc import Iterator
from typing import Any

import keras


def is_graph(model: Any) -> bool:
    """Whether a model is a `keras.Sequential` or a Functional one."""
    return isinstance(model, keras.Model) and isinstance(model, (keras.Sequential, keras.Function))


def input_of(model: keras.Model) -> Any:
    """The symbolic inputs of a model, in the structure in which it takes them."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def part_of(
    model: keras.Model, layer: keras.layers.Layer, inputs: Any, outputs: Any
) -> keras.Model:
    """The part of a model between symbolic tensors, before or behind one of its layers.

    Raises:
        ValueError: if the outputs are not made of the inputs.
    """
    try:
        return keras.Model(inputs, outputs)
    except ValueError as error:
        raise ValueError(
            f"The part of {model.name!r} before or after {layer.name!r} can't be taken out. What "
            "comes after may depend on the layer's outputs only. The layer must not have been "
            "called before in another model: make a new one for this model."
        ) from error


def arguments_of(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What an operation is called with, by name, the inputs first."""
    signature = inspect.signature(operation.call)
    # Keras drops `training` where a layer does not take it.
    taken = {k: x for k, x in kwargs.items() if k != "training" or k in signature.parameters}
    return signature.bind(*args, **taken).arguments | kwargs


def calls_in(operation: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """All that a wrapper or a model calls, however deep, with the arguments where known."""
    for inner, arguments in _calls_of(operation):
        yield inner, arguments
        yield from calls_in(inner)


def _calls_of(operation: Any) -> list[tuple[Any, dict[str, Any]]]:
    if not isinstance(operation, keras.Model):
        layer = getattr(operation, "layer", None)
        return [(layer, {})] if isinstance(layer, keras.layers.Layer) else []
    if isinstance(operation, keras.Sequential) or not is_graph(operation):
        return [(layer, {}) for layer in operation.layers]
    calls = []

    def call(inner: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append((inner, arguments_of(inner, args, kwargs)))
        return inner(*args, **kwargs)

    # The public way to walk a Functional model, as a plain one.
    plain = keras.Model(input_of(operation), operation.output)
    keras.models.clone_model(plain, clone_function=lambda layer: layer, call_function=call)
    return calls
