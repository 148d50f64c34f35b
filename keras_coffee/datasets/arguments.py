"""Checks of arguments that data sets share."""

import math
from typing import Any

import numpy as np

from keras_coffee._typing import is_integer


def integer(name: str, value: Any, minimum: int) -> int:
    """The value as an int, if it is one of at least the minimum."""
    if not is_integer(value):
        raise TypeError(
            f"{name} must be an integer, received {value!r} of type {type(value).__name__}. "
            f"Pass an int of at least {minimum}."
        )
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, received {value}. Use a larger one.")
    return int(value)


def not_negative(name: str, value: Any) -> float:
    """The value as a float, if it is a finite number of at least 0."""
    numbers = int | float | np.integer | np.floating
    if isinstance(value, bool) or not isinstance(value, numbers):
        raise TypeError(
            f"{name} must be a number, received {value!r} of type {type(value).__name__}. "
            "Pass a float of at least 0."
        )
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"{name} must be finite and at least 0, received {value}. It is the largest amount, "
            "of either sign."
        )
    return float(value)
