"""Solvers by name."""

from typing import Any

import keras

from keras_coffee.solvers.sequential import Sequential

Solver = Sequential

# "auto" is the fastest measured for the device and shape; so far that is always the same.
_BY_NAME = {"auto": Sequential, "sequential": Sequential}


def get(identifier: str | dict[str, Any] | Solver) -> Solver:
    """The solver that a name, a serialized solver or a solver stands for.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier]()
    if isinstance(identifier, Solver):
        return identifier
    raise ValueError(
        f"Unknown solver: {identifier!r}. Expected one of {sorted(_BY_NAME)} or an object of "
        "keras_coffee.solvers."
    )
