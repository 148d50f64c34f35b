"""Starting values of the weights, by name or as objects."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_coffee._typing import Tensor


@keras.saving.register_keras_serializable(package="keras_coffee")
class StandardNormal(keras.initializers.RandomNormal):
    """Draws every entry from the normal distribution with mean 0 and variance 1.

    Args:
        seed: Integer, `keras.random.SeedGenerator` or `None`. An initializer with an integer
            draws the same values each time it is called. Defaults to `None`: the seed comes
            from Python's generator, which `keras.utils.set_random_seed` sets.

    Example:
        >>> StandardNormal(seed=0)((16, 8)).shape
        (16, 8)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", Appendix "Results
        on the Induction Head Task (IH)", subsection "Models Initialization".
    """

    def __init__(self, seed: int | keras.random.SeedGenerator | None = None) -> None:
        super().__init__(mean=0.0, stddev=1.0, seed=seed)

    def get_config(self) -> dict[str, Any]:
        return {"seed": super().get_config()["seed"]}


@keras.saving.register_keras_serializable(package="keras_coffee")
class ScaledNormal(keras.initializers.Initializer):
    """Draws from a normal distribution scaled by what the weight is summed over.

        w ~ N(0, gain² / m),   m the product of the lengths of `axes`

    A small gain makes a new layer's outputs small. A residual block then starts near the identity.

    Args:
        gain: Standard deviation of a sum of m products with independent inputs of variance 1.
            Defaults to 1.
        axes: The axes that the weight is summed over. Defaults to the last one.
        seed: As for `StandardNormal`. Defaults to `None`.

    Raises:
        ValueError: when called with a shape that lacks one of the axes.

    Example:
        >>> float(np.std(ScaledNormal(gain=0.1, seed=0)((100, 64)))) < 0.02
        True
    """

    def __init__(self, gain: float = 1.0, axes: tuple[int, ...] = (-1,), seed: Any = None) -> None:
        self.gain, self.axes = gain, tuple(axes)
        self._normal = StandardNormal(seed)

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        if not all(-len(shape) <= axis < len(shape) for axis in self.axes):
            raise ValueError(
                f"ScaledNormal needs the axes {self.axes}, received the shape {tuple(shape)}."
            )
        scale = self.gain / math.sqrt(max(1, math.prod(shape[axis] for axis in self.axes)))
        return scale * self._normal(shape, dtype)

    def get_config(self) -> dict[str, Any]:
        return {"gain": self.gain, "axes": list(self.axes), **self._normal.get_config()}


@keras.saving.register_keras_serializable(package="keras_coffee")
class S4DReal(keras.initializers.Initializer):
    """Spreads the decay rates of S6 over the integers.

        μ_j = log(j + 1), so that λ_j = -exp(μ_j) = -(j + 1)

    for state j = 0, …, n - 1, the same for every feature. The last axis is the one of the states.

    Raises:
        ValueError: when called with the shape of a scalar.

    Example:
        >>> log_transition = S4DReal()((16, 3))
        >>> np.round(np.exp(log_transition[0]), 3)
        array([1., 2., 3.], dtype=float32)

    Reference:
        S4D-Real of "On the Parameterization and Initialization of Diagonal State Space Models",
        the default of "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
        section 3.6.
    """

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        if len(shape) == 0:
            raise ValueError(
                "S4DReal fills the last axis with log(1), log(2), …; received the shape () of a "
                "scalar. Use it for a weight with at least one axis, such as (D, n)."
            )
        # Tiled, not broadcast: on torch a broadcast weight could not be updated in place.
        rates = np.tile(np.log(np.arange(1, shape[-1] + 1)), (*shape[:-1], 1))
        return ops.convert_to_tensor(rates, dtype=dtype or keras.config.floatx())


@keras.saving.register_keras_serializable(package="keras_coffee")
class StepSizes(keras.initializers.Initializer):
    """Spreads step sizes evenly over the orders of magnitude, as arguments of softplus.

        b = softplus⁻¹(Δ),   log Δ ~ U[log smallest, log largest)

    Args:
        smallest: Smallest Δ, positive. Defaults to 0.001.
        largest: Largest Δ. Defaults to 0.1.
        seed: As for `StandardNormal`. Defaults to `None`.

    Raises:
        ValueError: unless 0 < smallest < largest < ∞.

    Example:
        >>> delta = np.log1p(np.exp(StepSizes(seed=0)((100,))))
        >>> bool((delta > 0.0009).all() and (delta < 0.11).all())
        True

    Reference:
        A. Gu and T. Dao, "Mamba", 2023, section 3.6.
    """

    def __init__(self, smallest: float = 0.001, largest: float = 0.1, seed: Any = None) -> None:
        if not 0 < smallest < largest < math.inf:
            raise ValueError(
                f"Step sizes need 0 < smallest < largest < ∞, received smallest={smallest} and "
                f"largest={largest}."
            )
        self.smallest, self.largest = smallest, largest
        self._logarithm = keras.initializers.RandomUniform(
            math.log(smallest), math.log(largest), seed=seed
        )

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        delta = ops.exp(self._logarithm(shape, _precise(dtype)))
        # softplus⁻¹(Δ) = log(e^Δ - 1) = Δ + log(1 - e^-Δ), which does not overflow.
        inverse = delta + ops.log(-ops.expm1(-delta))
        return ops.cast(inverse, dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        seed = self._logarithm.get_config()["seed"]
        return {"smallest": self.smallest, "largest": self.largest, "seed": seed}


@keras.saving.register_keras_serializable(package="keras_coffee")
class RingDecay(keras.initializers.Initializer):
    """Spreads the radii of complex decays over a ring, uniformly in area.

        |λ|² ~ U[r_min², r_max²),   ν = log(-log |λ|),   so that |λ| = exp(-e^ν)

    No radius is above 1 - 5e-7, so that 1 - |λ|² is not zero in float32.

    Args:
        r_min: Smallest radius, at least 0. Defaults to 0.
        r_max: Largest radius, at most 1. Defaults to 1.
        seed: As for `StandardNormal`. Defaults to `None`.

    Raises:
        ValueError: unless 0 ≤ r_min < r_max ≤ 1.

    Example:
        >>> radius = np.exp(-np.exp(RingDecay(0.9, 0.999, seed=0)((100,))))
        >>> bool((radius > 0.89).all() and (radius < 1).all())
        True

    Reference:
        A. Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023,
        lemma 3.2.
    """

    def __init__(self, r_min: float = 0.0, r_max: float = 1.0, seed: Any = None) -> None:
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(
                f"A ring needs 0 ≤ r_min < r_max ≤ 1, received r_min={r_min} and r_max={r_max}."
            )
        self.r_min, self.r_max = r_min, r_max
        self._uniform = keras.initializers.RandomUniform(r_min**2, r_max**2, seed=seed)

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        # Neither end of [0, 1] has a finite ν.
        square = ops.clip(self._uniform(shape, _precise(dtype)), 1e-12, 1 - 1e-6)
        return ops.cast(ops.log(-0.5 * ops.log(square)), dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        seed = self._uniform.get_config()["seed"]
        return {"r_min": self.r_min, "r_max": self.r_max, "seed": seed}


@keras.saving.register_keras_serializable(package="keras_coffee")
class RingPhase(keras.initializers.Initializer):
    """Spreads the phases of complex decays evenly.

        φ ~ U[0, max_phase),   θ = log φ

    Args:
        max_phase: Largest phase, positive. Defaults to 2π.
        seed: As for `StandardNormal`. Defaults to `None`.

    Raises:
        ValueError: unless `max_phase` is a positive number.

    Example:
        >>> bool((np.exp(RingPhase(0.1, seed=0)((100,))) < 0.1).all())
        True

    Reference:
        As for `RingDecay`, section 3.4.
    """

    def __init__(self, max_phase: float = 2 * np.pi, seed: Any = None) -> None:
        if not 0 < max_phase < math.inf:
            raise ValueError(f"`max_phase` must be a positive number, received {max_phase}.")
        self.max_phase = float(max_phase)
        self._uniform = keras.initializers.RandomUniform(0.0, self.max_phase, seed=seed)

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        phase = ops.maximum(self._uniform(shape, _precise(dtype)), 1e-6 * self.max_phase)
        return ops.cast(ops.log(phase), dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {"max_phase": self.max_phase, "seed": self._uniform.get_config()["seed"]}


@keras.saving.register_keras_serializable(package="keras_coffee")
class OrthonormalSymbols(keras.initializers.RandomUniform):
    """Draws one vector per symbol, orthonormal where the features suffice.

        L = QR, L ~ U[0, 1) of shape (max(D, V), V)
        E = the first D columns of Qᵀ

    For D ≥ V its rows, the symbols' vectors, are orthonormal. For D < V there is no room for V
    orthogonal vectors, and the columns are orthonormal instead. The decomposition is computed
    in at least float32.

    Args:
        seed: Integer, `keras.random.SeedGenerator` or `None`. An initializer with an integer
            draws the same values each time it is called. Defaults to `None`: the seed comes
            from Python's generator, which `keras.utils.set_random_seed` sets.

    Raises:
        ValueError: when called with a shape other than (V, D).

    Example:
        >>> table = np.array(OrthonormalSymbols(seed=0)((9, 16)))
        >>> np.allclose(table @ table.T, np.eye(9), atol=1e-6)
        True

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", Appendix "Results
        on the Induction Head Task (IH)", subsection "Models Initialization".
    """

    def __init__(self, seed: int | keras.random.SeedGenerator | None = None) -> None:
        super().__init__(minval=0.0, maxval=1.0, seed=seed)

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        if len(shape) != 2:
            raise ValueError(
                "OrthonormalSymbols draws a table of shape (vocabulary_size, dim); received "
                f"the shape {tuple(shape)}. Use it for the vectors of symbols only."
            )
        symbols, dim = shape
        square = super().__call__((max(dim, symbols), symbols), dtype=_precise(dtype))
        basis, _ = ops.qr(square)
        return ops.cast(ops.transpose(basis)[:, :dim], dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {"seed": super().get_config()["seed"]}


def _precise(dtype: str | None) -> str:
    """The dtype to compute in: float32 at least, since values near 1 have no logarithm below."""
    return "float64" if (dtype or keras.config.floatx()) == "float64" else "float32"


_NAMED: dict[str, Callable[[], keras.initializers.Initializer]] = {
    "standard_normal": StandardNormal,
    # λ of models that add λΔ to 1: time constants from one step to fifty, at Δ = 1.
    "forgetting": functools.partial(keras.initializers.RandomUniform, -1.0, -0.02),
    # μ = log(-λ), for λ from -0.05 to -2: each decade of time constants has as many states.
    "log_forgetting": functools.partial(
        keras.initializers.RandomUniform, math.log(0.05), math.log(2.0)
    ),
    # In ±1/√k, as PyTorch starts dense layers and convolutions of k inputs.
    "fan_in_uniform": functools.partial(
        keras.initializers.VarianceScaling, 1 / 3, "fan_in", "uniform"
    ),
    "scaled_normal": ScaledNormal,
    "small_readout": functools.partial(ScaledNormal, 0.1),
    # A projection (D, n) of inputs to a readout.
    "small_projection": functools.partial(ScaledNormal, 0.1, (0, -1)),
    "s4d_real": S4DReal,
    "step_sizes": StepSizes,
    "orthonormal_symbols": OrthonormalSymbols,
}


def get(identifier: Any) -> Any:
    """Finds an initializer by name, here first and then in `keras.initializers`.

    Args:
        identifier: `"standard_normal"`, `"fan_in_uniform"`, `"scaled_normal"`, `"small_readout"`,
            `"small_projection"`, `"forgetting"`, `"log_forgetting"`, `"s4d_real"`, `"step_sizes"`,
            `"orthonormal_symbols"`, or anything that `keras.initializers.get` accepts: its names, a
            serialized initializer, an initializer, a class, a function of `shape` and `dtype`, an
            array, `None`.

    Returns:
        The initializer, or `None` for `None`.

    Raises:
        ValueError: if the name is unknown, or a serialized initializer has a value that does not
            fit.

    Example:
        >>> get("s4d_real")((1,)).shape
        (1,)
    """
    if isinstance(identifier, str) and identifier in _NAMED:
        return _NAMED[identifier]()
    if isinstance(identifier, dict):
        return keras.initializers.get(identifier)  # its own error names the value that is wrong
    try:
        return keras.initializers.get(identifier)
    except ValueError as error:
        raise ValueError(
            f"Unknown initializer: {identifier!r}. Pass one of {sorted(_NAMED)}, a name that "
            "`keras.initializers.get` knows (such as 'zeros' or 'glorot_uniform'), or an "
            "initializer object."
        ) from error
