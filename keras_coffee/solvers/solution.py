"""What a solver found."""

from typing import NamedTuple

from keras_coffee._typing import Tensor


class Solution(NamedTuple):
    """A trajectory, and how it was found.

    Attributes:
        states: x(1), …, x(T), `(B, T, ...)`. Whatever the other fields say, these are the states
            that the recurrence has: where a solver did not get there, steps were run in order.
        iterations: int32, `(B,)`: how many iterations each sequence took, in the window that took
            most. 0 if it was not solved by iteration.
        residual: `(B,)`: max over k of |x(k) - f(x(k-1), u(k))| / max(1, |x(k)|), over all elements
            of the state. Infinite where the recurrence itself comes to NaN or infinity.
        converged: bool, `(B,)`: whether iteration led to the tolerance in every window. False:
            some window was run one step after another.
    """

    states: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor
