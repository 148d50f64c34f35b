"""Shapes and types. Every docstring uses these letters.

B   batch
T   time
D   features (the paper's embedding dimension)
n   states per feature
V   symbols in the vocabulary (the paper's |M|)

Sequences are `(B, T, D)`, states `(B, D, n)`, weights of a recurrence `(D, n)`.
"""

import numbers
from typing import Any

# Any backend's tensor. `Any`, because Keras has no common base class.
Tensor = Any

# Of a tensor, None where a length is unknown.
Shape = tuple[int | None, ...]


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, and no boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
