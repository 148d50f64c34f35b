"""For looks into a model: what they change in it is given back."""

import contextlib
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops


@contextlib.contextmanager
def kept_states(model: keras.Model) -> Iterator[None]:
    """Gives back all non-trainable variables afterwards, carried states and seeds among them."""
    variables = [*model.non_trainable_variables, *_untracked_states(model)]
    # Copies: a backend may share the memory of a variable, and use it for the next value.
    values = [np.array(ops.convert_to_numpy(x)) for x in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _untracked_states(model: keras.Model) -> Iterator[keras.Variable]:
    """The states of Keras' recurrent layers, which are not among the variables of a model."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _untracked_states(layer)
        elif getattr(layer, "stateful", False):
            yield from keras.tree.flatten(getattr(layer, "states", None) or [])
