"""What a recurrence must say about itself."""

from typing import Any, Literal, Protocol

from keras_coffee._typing import Tensor

Structure = Literal["diagonal", "dense"]


class Cell(Protocol):
    """One step x(k) = f(x(k-1), u(k)) of a recurrence, and its Jacobian.

    Weights are attributes, and gradients flow to them. Both methods take states and inputs with any
    axes in front, as those of batch and time, and treat each of their elements alike: solvers
    call them for one step, and for all steps at once.
    """

    @property
    def structure(self) -> Structure:
        """What the Jacobian of a state `(..., H)` is.

        `"diagonal"`: each element of the new state depends on its own in the old one only, and the
        Jacobian is given by its diagonal `(..., H)`. A state may then have any axes.
        `"dense"`: the Jacobian is `(..., H, H)`; axes before the last are independent of each
        other.
        """
        ...

    def step(self, state: Tensor, inputs: Any) -> Tensor:
        """The next state."""
        ...

    def jacobian(self, state: Tensor, inputs: Any) -> Tensor:
        """∂x(k)/∂x(k-1); [..., i, j] is by element j of the old state."""
        ...
