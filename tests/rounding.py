"""How far a computed result may lie from the exact one: the one place for tolerances.

COFFEE can stretch differences. With gates of standard deviation 2 and inputs of 3 the product of
its Jacobians passes 1e4 somewhere in a few hundred steps, so one fixed tolerance would be too tight
for some sequences and too loose for others. Here the oracle itself says what rounding may do. It
runs in float64 on `Rounded` numbers, which carry a first-order bound of the error beside the value
(running error analysis; N. Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3).
A result passes if every element lies within its own bound, in units of rounding of its dtype: 2^-24
for float32, 2^-53 for float64. A test fails as well if the bounds are too wide to tell anything.
"""

import numpy as np

# The bound counts every operation's rounding once. It is met twice, by the computed result and by
# the float64 oracle; and compilers write the same equation in other, equally good ways.
SAFETY = 2.0

# Error of a complex product, in units of rounding of its size.
COMPLEX_PRODUCT = 3.0

# Error of a computed exp, sigmoid or expm1: vectorized approximations are off by up to about 4.
ELEMENTARY = 4.0

# A bound wider than this part of the largest element says that rounding decides the result.
MEANINGFUL = 1e-2


class Rounded:
    """A float64 array with a bound of its computed value's error, in units of rounding."""

    __array_ufunc__ = None  # leaves mixed operations to this class

    def __init__(self, value, error=0.0):
        self.value = np.asarray(value)
        self.error = np.broadcast_to(error, self.value.shape)

    @property
    def shape(self):
        return self.value.shape

    def __getitem__(self, key):
        return Rounded(self.value[key], self.error[key])

    def __add__(self, other):
        other = as_rounded(other)
        value = self.value + other.value
        return Rounded(value, self.error + other.error + abs(value))

    def __mul__(self, other):
        other = as_rounded(other)
        value = self.value * other.value
        error = abs(self.value) * other.error + abs(other.value) * self.error
        own = COMPLEX_PRODUCT if np.iscomplexobj(value) else 1.0
        return Rounded(value, error + own * abs(value))

    __radd__, __rmul__ = __add__, __mul__

    def sum(self, axis):
        value = self.value.sum(axis)
        # Rounding errors of many terms, in whatever order, add up like a random walk.
        terms = self.value.size / max(1, value.size)
        return Rounded(value, self.error.sum(axis) + terms**0.5 * abs(self.value).sum(axis))

    def conj(self):
        return Rounded(self.value.conj(), self.error)

    @property
    def real(self):
        return Rounded(self.value.real, self.error)

    def reshape(self, shape):
        return Rounded(self.value.reshape(shape), self.error.reshape(shape))


def as_rounded(x):
    return x if isinstance(x, Rounded) else Rounded(x)


def exact(x):
    """The values alone."""
    return x.value if isinstance(x, Rounded) else x


def elementary(function, derivative, x, absolute=0.0):
    """`function(x)`, computed to `ELEMENTARY` units of itself plus `absolute`."""
    if not isinstance(x, Rounded):
        return function(x)
    value = function(x.value)
    own = ELEMENTARY * (abs(value) + absolute)
    return Rounded(value, abs(derivative(x.value)) * x.error + own)


def advance(step, jacobian, state):
    """`step(state)`, with the state's error carried on by the diagonal of the Jacobian.

    Carried on operation by operation, the bound of COFFEE would grow by 1 + |λ| Δ a step, where
    the truth is |1 + λ Δ|.
    """
    if not isinstance(state, Rounded):
        return step(state)
    new = step(Rounded(state.value))
    return Rounded(new.value, new.error + abs(jacobian(state.value)) * state.error)


def stack(parts, axis):
    if not isinstance(parts[0], Rounded):
        return np.stack(parts, axis)
    values, errors = [p.value for p in parts], [p.error for p in parts]
    return Rounded(np.stack(values, axis), np.stack(errors, axis))


def assert_agrees(actual, expected, name="result"):
    """Each element must lie within its bound, and the bounds must be narrow enough to tell."""
    decided = assert_within(actual, expected, name)
    assert decided < 0.5, f"{name}: rounding decides {decided:.0%} of the elements"


def assert_within(actual, expected, name="result", meaningful=MEANINGFUL):
    """Each element of `actual` must lie within its bound of `expected`, a `Rounded` array.

    Returns the part of the elements whose bounds are too wide to tell anything.
    """
    assert actual.shape == expected.shape, f"{name}: {actual.shape}, expected {expected.shape}"
    if not actual.size:
        return 0.0
    kind = np.finfo(actual.dtype)
    # Compilers may flush numbers below the smallest normal one to zero.
    flushed = 1e3 * kind.tiny
    limit = SAFETY * kind.eps / 2 * expected.error + flushed
    scale = abs(expected.value).max()
    error = abs(actual - expected.value)
    if not (error <= limit).all():
        k = np.unravel_index(np.argmax(np.where(error >= 0, error / limit, np.inf)), error.shape)
        raise AssertionError(
            f"{name}{list(map(int, k))} is {actual[k]}, expected {expected.value[k]}; off by "
            f"{error[k]:.3g}, allowed {limit[k]:.3g}, largest element {scale:.3g}"
        )
    return np.mean(limit > meaningful * scale + flushed)
