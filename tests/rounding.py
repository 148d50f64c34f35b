"""How far a float32 or float64 result may lie from the exact one. The one place for tolerances.

COFFEE can stretch differences: with gates of standard deviation 2 the product of its Jacobians
reaches 1e5 within a few hundred steps, so no fixed tolerance is both safe and sharp. Here the
oracle itself says what rounding may do. It runs in float64 on `Rounded` numbers, which carry a
first-order bound of their error beside their value (running error analysis; N. Higham, "Accuracy
and Stability of Numerical Algorithms", section 3.3). A result passes if every element lies within
its own bound, and a test fails if the bounds are too wide to say anything.
"""

import contextlib

import keras
import numpy as np

# The bound counts one rounding an operation and a few an elementary function. Compilers reorder
# sums and write the equations in other, equally good ways; the factor allows for that.
SAFETY = 2.0

# Errors of exp, sigmoid and expm1 in units of rounding: vectorized approximations reach about 4.
ELEMENTARY = 4.0

# Of an array's largest element. A wider bound says that rounding decides the result.
MEANINGFUL = 1e-2


class Rounded:
    """A float64 array with a bound of the error, in units of rounding, of a computed one."""

    __array_ufunc__ = None  # NumPy leaves mixed operations to this class

    def __init__(self, value, error=0.0):
        self.value = np.asarray(value)
        self.error = np.broadcast_to(error, self.value.shape)

    @property
    def shape(self):
        return self.value.shape

    def __getitem__(self, key):
        return Rounded(self.value[key], self.error[key])

    def __add__(self, other):
        other = _rounded(other)
        value = self.value + other.value
        return Rounded(value, self.error + other.error + abs(value))

    def __mul__(self, other):
        other = _rounded(other)
        value = self.value * other.value
        error = abs(self.value) * other.error + abs(other.value) * self.error
        return Rounded(value, error + abs(value))

    def __neg__(self):
        return Rounded(-self.value, self.error)

    def __sub__(self, other):
        return self + -_rounded(other)

    def __rsub__(self, other):
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def conj(self):
        return Rounded(self.value.conj(), self.error)

    def sum(self, axis):
        value = self.value.sum(axis)
        terms = self.value.size / max(1, value.size)
        return Rounded(value, self.error.sum(axis) + terms**0.5 * abs(self.value).sum(axis))


def _rounded(x):
    return x if isinstance(x, Rounded) else Rounded(x)


def elementary(function, derivative, x, absolute=0.0):
    """`function(x)`, where a computed function is off by `ELEMENTARY` units, or `absolute`."""
    if not isinstance(x, Rounded):
        return function(x)
    value = function(x.value)
    own = ELEMENTARY * (abs(value) + absolute)
    return Rounded(value, abs(derivative(x.value)) * x.error + own)


def advance(step, jacobian, state):
    """`step(state)`, with the error of the state carried on by the Jacobian.

    Operation by operation the bound would grow with 1 + |λ| Δ where the truth is |1 + λ Δ|.
    """
    if not isinstance(state, Rounded):
        return step(state)
    new = step(Rounded(state.value))
    return Rounded(new.value, new.error + abs(jacobian(state.value)) * state.error)


def stack(parts, axis):
    if isinstance(parts[0], Rounded):
        values, errors = [p.value for p in parts], [p.error for p in parts]
        return Rounded(np.stack(values, axis), np.stack(errors, axis))
    return np.stack(parts, axis)


def assert_agrees(actual, expected, name="result"):
    """Every element of `actual` within the bound of `expected`, a `Rounded` array."""
    assert actual.shape == expected.value.shape, f"{name}: {actual.shape}, {expected.value.shape}"
    if not actual.size:
        return
    kind = np.finfo(actual.dtype)
    # Below the smallest normal number compilers may flush to zero.
    limit = SAFETY * kind.eps / 2 * expected.error + 1e3 * kind.tiny
    error = abs(actual - expected.value)
    scale = abs(expected.value).max()
    told = np.mean(limit <= MEANINGFUL * scale + 1e3 * kind.tiny)
    assert told > 0.5, f"{name}: rounding decides {1 - told:.0%} of the elements"
    worst = np.unravel_index(
        np.argmax(np.where(np.isnan(error), np.inf, error / limit)), error.shape
    )
    assert (error <= limit).all(), (
        f"{name}{list(map(int, worst))} is {actual[worst]}, expected {expected.value[worst]}: off by "
        f"{error[worst]:.3g}, allowed {limit[worst]:.3g}, scale {scale:.3g}"
    )


@contextlib.contextmanager
def precision(dtype):
    """Lets JAX compute in float64 where `dtype` asks for it; the other backends always can."""
    if keras.backend.backend() != "jax" or dtype != "float64":
        yield
        return
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)
