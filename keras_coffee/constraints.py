"""Limits of weights, enforced after each training step."""

import math
import numbers
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor


@keras.saving.register_keras_serializable(package="keras_coffee")
class Interval(keras.constraints.Constraint):
    """Keeps every entry of a weight between two bounds.

        w ← min(max(w, lower), upper)

    NaN stays NaN.

    Args:
        lower: Float, the least value allowed.
        upper: Float, the greatest value allowed, above `lower`.

    Raises:
        ValueError: if a bound is not a finite number or the bounds are not in order.

    Example:
        >>> np.array(Interval(-2.0, 0.0)(np.array([-3.0, -1.0, 0.5], "float32")))
        array([-2., -1.,  0.], dtype=float32)
    """

    def __init__(self, lower: float, upper: float) -> None:
        self.lower = _finite("lower", lower)
        self.upper = _finite("upper", upper)
        if self.lower >= self.upper:
            raise ValueError(
                "Interval needs `lower` below `upper`; received "
                f"lower={self.lower}, upper={self.upper}."
            )

    def __call__(self, weight: Tensor) -> Tensor:
        return ops.clip(weight, self.lower, self.upper)

    def get_config(self) -> dict[str, float]:
        return {"lower": self.lower, "upper": self.upper}


def get(identifier: Any) -> Any:
    """Finds a constraint by name, here first and then in `keras.constraints`.

    `"stable"` is `Interval(-2.0, 0.0)`: with a transition λ in [-2, 0] and a gate Δ in [0, 1],
    |1 + λΔ| ≤ 1, so that no state grows without input.

    Args:
        identifier: `"stable"`, or anything that `keras.constraints.get` accepts: its names, a
            serialized constraint, a constraint, a class, a function of the weight, `None`.

    Returns:
        The constraint, or `None` for `None`.

    Raises:
        ValueError: if the name is unknown.

    Example:
        >>> get("stable").get_config()
        {'lower': -2.0, 'upper': 0.0}

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", section 3.
    """
    if identifier == "stable":
        return Interval(-2.0, 0.0)
    try:
        return keras.constraints.get(identifier)
    except ValueError as error:
        raise ValueError(
            f"Unknown constraint: {identifier!r}. Pass 'stable', a name that "
            "`keras.constraints.get` knows (such as 'non_neg' or 'unit_norm'), a constraint "
            "object, or None."
        ) from error


def _finite(name: str, bound: float) -> float:
    if not isinstance(bound, numbers.Real) or not math.isfinite(bound):
        raise ValueError(
            f"Interval needs finite bounds; received {name}={bound!r}. "
            "For one bound only, write a function of the weight."
        )
    return float(bound)
