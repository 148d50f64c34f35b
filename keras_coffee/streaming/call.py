"""One call in a model, in symbolic tensors."""

import dataclasses
from typing import Any

import keras

from keras_coffee.layers.called import called


@dataclasses.dataclass(frozen=True)
class Call:
    """One call: symbolic tensors in `args` and `kwargs` are placeholders for real ones.

    Args:
        operation: A layer, a carrier of one, or an operation.
        outputs: Symbolic tensors for the outputs.
        states: The names of the states that it takes and returns, if it is a carrier.
        has_masks: Whether an input or output carries a mask.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[keras.KerasTensor]
    states: list[str]
    has_masks: bool = True

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The operation on real tensors."""
        if self.has_masks or not isinstance(self.operation, keras.layers.Layer):
            return self.operation(*args, **kwargs)
        return called(self.operation, *args, **kwargs)


def filled(structure: Any, values: dict[int, Any]) -> Any:
    """A structure with values for its symbolic tensors, found by their `id`."""
    # `keras.tree` would take longer than many of the operations that get it.
    if isinstance(structure, dict):
        return {name: filled(x, values) for name, x in structure.items()}
    if isinstance(structure, (list, tuple)):
        kind = tuple if isinstance(structure, tuple) else list
        return kind(filled(x, values) for x in structure)
    return values.get(id(structure), structure)


def symbols_of(structure: Any) -> list[keras.KerasTensor]:
    """The symbolic tensors in a structure."""
    return [x for x in keras.tree.flatten(structure) if isinstance(x, keras.KerasTensor)]


def has_time(x: keras.KerasTensor) -> bool:
    """Whether a symbolic tensor of a stream has an axis of time, whose length alone is unknown."""
    return len(x.shape) > 1 and x.shape[1] is None
