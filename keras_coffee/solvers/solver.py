"""What solvers have in common."""

import abc
import dataclasses
from typing import Any, Self

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.solvers.affine import affine_scan
from keras_coffee.solvers.algebra import Algebra
from keras_coffee.solvers.solution import Solution


@dataclasses.dataclass(frozen=True)
class Solver(abc.ABC):
    """A way to find the trajectory of a recurrence.

    Solvers are immutable, equal if their settings are, and serializable.
    """

    @property
    def steps_at_a_time(self) -> int | None:
        """Steps that are solved at a time; the others wait. None: all."""
        return None

    @abc.abstractmethod
    def find(self, cell: Cell, initial_state: Tensor, inputs: Any) -> Solution:
        """The states of one window, from the state before it and its inputs `(B, T, ...)`."""

    def linear(self, algebra: Algebra, jacobian: Tensor, drive: Tensor) -> Tensor:
        """All x(k) = J(k) x(k+1) + b(k), from the last step to the first, starting from zero.

        `jacobian` and `drive` are one window. The gradient of a trajectory is such a recurrence.
        """
        return affine_scan(algebra, jacobian, drive, reverse=True)

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)
