"""What the state-space layers share: features, and states of each feature."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from keras_coffee.layers import arguments
from keras_coffee.layers.declared_weights import Rule
from keras_coffee.layers.recurrent import RecurrentLayer, StateSpec

Start = Literal["series", "paper"]


class StateSpaceLayer(RecurrentLayer):
    """A recurrent layer in which each of D features has its own n states.

    The state is one tensor `(B, D, n)`, and outputs are as wide as inputs. A subclass lists its
    `WEIGHTS` and computes in `scan`.

    Args:
        n: States per feature, a positive integer.
        **kwargs: As for `RecurrentLayer`.

    Raises:
        TypeError: if `n` is missing, or `units` is given.
        ValueError: if `n` is not a positive integer, or `start` is unknown.
    """

    STARTS: ClassVar[Mapping[str, Mapping[str, Rule]]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        taken = inspect.signature(cls.__init__).parameters
        if "units" in kwargs and "units" not in taken:
            raise TypeError(
                f"{cls.__name__} has no `units`: its outputs are as wide as its inputs. Pass `n`, "
                "the number of states per feature, and put a keras.layers.Dense(units) in front to "
                "change the width."
            )
        if "n" in taken and not args and "n" not in kwargs:
            raise TypeError(
                f"{cls.__name__} needs `n`, the number of states per feature, for example "
                f"{cls.__name__}(n=8)."
            )
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, n: int, *, start: str | None = None, **kwargs: Any):
        for weight, rule in self._rules_of(start).items():
            if kwargs.get(f"{weight}_initializer") is None:
                kwargs[f"{weight}_initializer"] = rule
        super().__init__(**kwargs)
        self.n = arguments.positive_integer("n", n)
        self.start = start

    def _rules_of(self, start: str | None) -> Mapping[str, Rule]:
        if start is None and not self.STARTS:
            return {}
        if start is None or start not in self.STARTS:
            raise ValueError(f"`start` must be one of {tuple(self.STARTS)}, received {start!r}.")
        return self.STARTS[start]

    def state_specs(self, dim: int) -> list[StateSpec]:
        return [StateSpec((dim, self.n))]

    def output_size(self, dim: int) -> int:
        return dim

    def get_config(self) -> dict[str, Any]:
        start = {"start": self.start} if self.STARTS else {}
        return {**super().get_config(), "n": self.n, **start}
