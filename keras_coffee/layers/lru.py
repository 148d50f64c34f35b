"""The layer of the linear recurrent unit."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_coffee import backend, solvers
from keras_coffee._checks import positive_integer
from keras_coffee._typing import Shape, Tensor
from keras_coffee.cells.lru import LRUCell
from keras_coffee.initializers import RingDecay, RingPhase
from keras_coffee.layers.declared_weights import LayerOptions, Rule, WeightSpec, handed_on
from keras_coffee.layers.recurrent import RecurrentLayer, StateSpec


@keras.saving.register_keras_serializable(package="keras_coffee")
class LRU(RecurrentLayer):
    """LRU: a linear recurrent unit with complex states.

        λ = exp(-e^ν + i e^θ)
        x(k) = λ ⊙ x(k-1) + e^γ ⊙ (B u(k))
        y(k) = Re(C x(k)) + W u(k)

    with n complex states `(B, n)`, all of which enter each output. Every |λ| is below 1: the layer
    is always stable. λ starts on a ring, uniform in area between the radii `r_min` and `r_max` and
    in phase up to `max_phase`; e^γ starts as √(1 - |λ|²), which gives all states one size on noise.
    Parameters: `log_decay` ν, `log_phase` θ, `log_scale` γ, each `(n,)`; `input_kernel` `(D, 2n)`
    and `output_kernel` `(2n, units)`, real and imaginary parts side by side; `skip` W `(D, units)`.
    `RecurrentLayer` lists the arguments and results of a call.

    Args:
        units: Width of the outputs, a positive integer.
        n: Complex states, a positive integer.
        r_min: Smallest |λ| at the start, at least 0. Defaults to 0.
        r_max: Largest |λ| at the start, at most 1. Defaults to 1. For long sequences choose both
            near 1, for example 0.9 and 0.999.
        max_phase: Largest phase at the start, positive. Defaults to 2π.
        solver: `"auto"`, `"sequential"`, or parallel in time `"associative"`, or a
            `Sequential` or `Associative` of `keras_coffee.solvers`.
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, recompute: As
            for `RecurrentLayer`.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: As for `RecurrentLayer`.
            `log_decay_initializer` and `log_phase_initializer` replace the ring.
        **kwargs: `name`, `dtype`, `trainable`, as for every Keras layer.

    Raises:
        ValueError: if `units` or `n` is not a positive integer, the radii are not
            0 ≤ r_min < r_max ≤ 1, `max_phase` is not positive, `solver` is unknown, the inputs are
            not `(B, T, D)`, or `return_state` and `activity_regularizer` meet.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 3)), LRU(units=8, n=16)])
        >>> model(np.ones((2, 5, 3))).shape
        (2, 5, 8)

    Reference:
        A. Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023.
    """

    WEIGHTS = {
        "log_decay": WeightSpec(("n",)),
        "log_phase": WeightSpec(("n",)),
        "log_scale": WeightSpec(("n",)),
        "input_kernel": WeightSpec(("D", "parts")),
        "output_kernel": WeightSpec(("parts", "units")),
        "skip": WeightSpec(("D", "units")),
    }

    def __init__(
        self,
        units: int,
        n: int,
        *,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 6.283185307179586,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        log_decay_initializer: Rule = None,
        log_decay_regularizer: Rule = None,
        log_decay_constraint: Rule = None,
        log_phase_initializer: Rule = None,
        log_phase_regularizer: Rule = None,
        log_phase_constraint: Rule = None,
        log_scale_initializer: Rule = None,
        log_scale_regularizer: Rule = None,
        log_scale_constraint: Rule = None,
        input_kernel_initializer: Rule = None,
        input_kernel_regularizer: Rule = None,
        input_kernel_constraint: Rule = None,
        output_kernel_initializer: Rule = "he_normal",
        output_kernel_regularizer: Rule = None,
        output_kernel_constraint: Rule = None,
        skip_initializer: Rule = "lecun_normal",
        skip_regularizer: Rule = None,
        skip_constraint: Rule = None,
        **kwargs: Unpack[LayerOptions],
    ):
        # Made here: one initializer for several layers would draw the same values for each.
        self._implied = {}
        if log_decay_initializer is None:
            self._implied["log_decay"] = RingDecay(r_min, r_max)
        if log_phase_initializer is None:
            self._implied["log_phase"] = RingPhase(max_phase)
        # A drive has variance 1, of which each part has half; "he_normal" makes that of Re(C x) 1.
        if input_kernel_initializer is None:
            input_kernel_initializer = keras.initializers.VarianceScaling(0.5)
        super().__init__(**handed_on(locals(), "units", "n", "r_min", "r_max", "max_phase"))
        self.units = positive_integer("units", units)
        self.n = positive_integer("n", n)
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase

    @property
    def parts(self) -> int:
        """Real and imaginary parts of the states."""
        return 2 * self.n

    def state_specs(self, dim: int) -> list[StateSpec]:
        return [StateSpec((self.n,), self.complex_state_dtype)]

    def output_size(self, dim: int) -> int:
        return self.units

    def _initializer_of(self, name: str) -> Any:
        is_of_ring = name == "log_scale" and self.log_scale_initializer is None
        return self._scale_of_ring if is_of_ring else super()._initializer_of(name)

    def _scale_of_ring(self, shape: Shape, dtype: str) -> Tensor:
        # Not by log(1 - |λ|²), which has no digits left where |λ| is next to 1.
        exponent = -2 * ops.exp(ops.cast(self.log_decay, self.state_dtype))
        return ops.cast(0.5 * ops.log(-ops.expm1(exponent)), dtype)

    def scan(
        self, inputs: Tensor, initial_state: Any, mask: Tensor | None, reset: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        logs = self.log_decay, self.log_phase, self.log_scale
        log_decay, log_phase, log_scale = (ops.cast(w, self.state_dtype) for w in logs)
        real, imaginary = ops.split(self.project(inputs, self.input_kernel), 2, axis=-1)
        drive = backend.complex_of(*(ops.exp(log_scale) * x for x in (real, imaginary)))
        cell, sequences = LRUCell(log_decay, log_phase), (drive, inputs)
        read, state = self.run_cell(cell, sequences, initial_state, mask, reset)
        # Re(C x) + W u, with the sign of the imaginary part in C.
        kernel = ops.concatenate([self.output_kernel, self.skip], axis=0)
        return self.project(read, kernel), state

    def get_config(self) -> dict[str, Any]:
        names = "units", "n", "r_min", "r_max", "max_phase"
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
