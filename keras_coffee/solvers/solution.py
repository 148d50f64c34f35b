"""What a solver found."""

from typing import NamedTuple

from keras_coffee._typing import Tensor


class Solution(NamedTuple):
    """A trajectory, and how it was found.

    Attributes:
        states: x(1), …, x(T), `(B, T, ...)`. These are right in any case: where a solver did not
            converge, steps ran one after another.
        iterations: int32, `(B,)`: how many iterations each sequence took, the most of any window. 0
            if it was not solved by iteration.
        residual: `(B,)`: max over k of |x(k) - f(x(k-1), u(k))| / max(1, |x(k)|), over all elements
            of the state. Infinite where the recurrence itself gives NaN or infinity.
        converged: bool, `(B,)`: whether every window reached the tolerance. False: some window ran
            step by step.
    """

    states: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor
