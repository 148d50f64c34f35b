"""What the state-space layers share: features, and states of each feature."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from keras_coffee._checks import one_of, positive_integer
from keras_coffee.layers.declared_weights import Rule
from keras_coffee.layers.recurrent import RecurrentLayer, StateSpec

Start = Literal["series", "paper"]


class StateSpaceLayer(RecurrentLayer):
    """A recurrent layer in which each of D features has its own n states.

    The state is one tensor `(B, D, n)`, and outputs are as wide as inputs. A subclass lists its
    `WEIGHTS` and computes in `scan`.

    Args:
        n: States per feature, a positive integer.
        start: How weights are initialized, a key of `STARTS`. None only if that is empty.
        **kwargs: As for `RecurrentLayer`.

    Raises:
        TypeError: if `n` is missing, or `units` is given.
        ValueError: if `n` is not a positive integer, or `start` is unknown.
    """

    STARTS: ClassVar[Mapping[str, Mapping[str, Rule]]] = {}

    def __init__(self, n: int, *, start: str | None = None, **kwargs: Any):
        self._implied = self._rules_of(start)
        super().__init__(**kwargs)
        self.n = positive_integer("n", n)
        self.start = start

    def _rules_of(self, start: str | None) -> Mapping[str, Rule]:
        if start is None and not self.STARTS:
            return {}
        return self.STARTS[one_of("start", start, self.STARTS)]

    def state_specs(self, dim: int) -> list[StateSpec]:
        return [StateSpec((dim, self.n))]

    def output_size(self, dim: int) -> int:
        return dim

    def get_config(self) -> dict[str, Any]:
        start = {"start": self.start} if self.STARTS else {}
        return {**super().get_config(), "n": self.n, **start}
