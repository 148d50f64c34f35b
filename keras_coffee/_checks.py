"""Checks of arguments that all parts share."""

import math
import numbers
from collections.abc import Collection
from typing import Any, TypeVar

from keras_coffee._typing import is_integer

T = TypeVar("T")


def positive_integer(name: str, value: Any, alternative: str = "") -> int:
    """The value as an int, if it is an integer above zero; booleans are none."""
    if not is_integer(value) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer{alternative}, received {value!r} of type "
            f"{type(value).__name__}."
        )
    return int(value)


def one_of(name: str, value: Any, choices: Collection[T]) -> T:
    """The value, if it is one of the choices."""
    if value not in tuple(choices):
        raise ValueError(f"`{name}` must be one of {tuple(choices)}, received {value!r}.")
    return value


def as_float(value: Any) -> float:
    """The value as a float; NaN, which no range contains, if it is no number."""
    return float(value) if isinstance(value, numbers.Real) else math.nan
