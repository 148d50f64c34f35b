"""Checks that the layers share."""

from typing import Any

import keras

from keras_coffee._typing import Tensor, is_integer


def positive_integer(name: str, value: Any) -> int:
    """The value as an int, if it is an integer above zero; booleans are none."""
    if not is_integer(value) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer, received {value!r} of type "
            f"{type(value).__name__}."
        )
    return int(value)


def at_least_float32(*tensors: Tensor) -> str:
    """Names float64 if one of the tensors has it, float32 otherwise."""
    # keras.backend.result_type would name float32 for float64 on JAX and PyTorch.
    dtypes = {keras.backend.standardize_dtype(tensor.dtype) for tensor in tensors}
    return "float64" if "float64" in dtypes else "float32"


def single_state(given: Any) -> Tensor:
    """The one state of a recurrence, given as a tensor, or as Keras has it, in a list or tuple."""
    if not isinstance(given, (list, tuple)):
        return given
    if len(given) != 1:
        raise ValueError(
            f"A state-space layer has one state, (batch, features, n), received {len(given)}."
        )
    return given[0]


def check_sequences(layer: str, shape: tuple[int | None, ...]) -> None:
    """Raises unless a shape is one of sequences of known features."""
    if len(shape) == 3 and shape[-1] is not None:
        return
    if len(shape) < 3:
        advice = "Add the missing axis, for example with keras.layers.Reshape or x[:, :, None]."
    elif len(shape) > 3:
        advice = "Put it in a keras.layers.TimeDistributed, or merge axes by keras.layers.Reshape."
    else:
        advice = "Give the number of features, as in keras.Input((None, features))."
    raise ValueError(
        f"{layer} expects inputs of shape (batch, time, features) with known features, received "
        f"{shape}. {advice}"
    )


def refuse_units(layer: str, arguments: dict[str, Any]) -> None:
    """Raises where a recurrent layer of Keras is meant."""
    if "units" in arguments:
        raise TypeError(
            f"{layer} has no `units`: as many features come out as go in. Pass `n`, the states of "
            "each feature, and put a keras.layers.Dense(units) in front for another width."
        )
