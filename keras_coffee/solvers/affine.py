"""Affine recurrences x(k) = J(k) x(k-1) + b(k), in parallel over time.

Two steps in a row are one step of the same kind, x ↦ J₂ J₁ x + (J₂ b₁ + b₂), and this combination
is associative, so a parallel prefix scan finds all states (G. Blelloch, "Prefix sums and their
applications", 1990).

Products of many J may overflow or underflow, and infinity times a state of zero would be NaN. So
each product is kept as a matrix of the size of one and a power of two.
"""

import keras
from keras import ops

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.solvers.algebra import Algebra


def affine_scan(
    algebra: Algebra,
    jacobian: Tensor,
    drive: Tensor,
    initial_state: Tensor | None = None,
    *,
    reverse: bool = False,
) -> Tensor:
    """All states `(B, T, ...)` of x(k) = J(k) x(k-1) + b(k).

    Args:
        algebra: What kind of matrices the Jacobians are.
        jacobian: J, `(B, T, ...)`.
        drive: b, `(B, T, ...)`.
        initial_state: x before the first step, `(B, ...)`. None: zeros.
        reverse: run from the last step to the first.
    """
    if initial_state is not None:
        drive = _with_start(algebra, jacobian, drive, initial_state, reverse)
    dtype = real_dtype(drive)

    def combine(earlier, later):
        matrix_1, exponent_1, drive_1 = earlier
        matrix_2, exponent_2, drive_2 = later
        matrix = algebra.compose(matrix_2, matrix_1)
        exponent = backend.exponent(algebra.size(matrix))
        matrix = _shifted(matrix, -exponent, dtype)
        pushed = algebra.apply(matrix_2, drive_1)
        pushed = _scaled(pushed, algebra.of_vectors(exponent_2), dtype)
        return [matrix, exponent + exponent_1 + exponent_2, pushed + drive_2]

    exponent = backend.exponent(algebra.size(jacobian))
    elements = [_scaled(jacobian, -exponent, dtype), exponent, drive]
    return backend.associative_scan(combine, elements, reverse=reverse)[2]


def _with_start(algebra, jacobian, drive, initial_state, reverse):
    """The drive with the first step's share of the initial state in it."""
    if reverse:
        first = algebra.apply(jacobian[:, -1], initial_state) + drive[:, -1]
        return ops.concatenate([drive[:, :-1], first[:, None]], axis=1)
    first = algebra.apply(jacobian[:, 0], initial_state) + drive[:, 0]
    return ops.concatenate([first[:, None], drive[:, 1:]], axis=1)


def _scaled(x, exponent, dtype):
    """X 2^exponent, exactly, and infinite or zero only where the result is past the range."""
    # Three factors reach from the smallest number to the largest; each is a normal number itself.
    reach = 1000 if dtype == "float64" else 125
    for _ in range(3):
        part = ops.clip(exponent, -reach, reach)
        x, exponent = _shifted(x, part, dtype), exponent - part
    return x


def _shifted(x, exponent, dtype):
    """The same for exponents of normal numbers only."""
    return x * ops.cast(backend.power_of_two(exponent, dtype), x.dtype)


def real_dtype(x: Tensor) -> str:
    """Of the precision of `x`, which may be complex."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return "float64" if dtype in ("float64", "complex128") else "float32"
