"""What the recurrent layers share: weights by name, shapes, configuration."""

import abc
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_coffee import constraints, initializers, solvers
from keras_coffee._typing import Tensor
from keras_coffee.layers.arguments import positive_integer


class WeightSpec(NamedTuple):
    """A weight of a layer: the axes of its shape, and how it starts and is kept."""

    axes: str  # "Dn" or "DD"
    initializer: str
    constraint: str | None = None


class Recurrence(keras.layers.Layer, abc.ABC):
    """A recurrence over time as a layer: `(B, T, D)` to `(B, T, D)`, or to the last `(B, D)`.

    A subclass lists its weights in `WEIGHTS` and computes in `scan`. Each weight takes the
    arguments `<name>_initializer`, `<name>_regularizer` and `<name>_constraint`.
    """

    WEIGHTS: ClassVar[dict[str, WeightSpec]]

    def __init__(
        self,
        n: int,
        *,
        return_sequences: bool = True,
        solver: str | solvers.Sequential = "auto",
        recompute: bool = False,
        **kwargs: Any,
    ):
        specs = self.weight_specs()
        rules = {
            f"{name}_{kind}": module.get(kwargs.pop(f"{name}_{kind}", getattr(spec, kind, None)))
            for name, spec in specs.items()
            for kind, module in _RULES.items()
        }
        super().__init__(**kwargs)
        self.n = positive_integer("n", n)
        self.return_sequences = return_sequences
        found = solvers.get(solver)
        self.solver = solver if isinstance(solver, str) else found
        self.recompute = recompute
        for name, rule in rules.items():
            setattr(self, name, rule)

    def weight_specs(self) -> dict[str, WeightSpec]:
        """The weights that this layer has, in the order in which they are created and saved."""
        return self.WEIGHTS

    @abc.abstractmethod
    def scan(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs `(B, T, D)` and the final state `(B, D, n)`."""

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(
                f"{type(self).__name__} expects inputs of shape (batch, time, features) with known "
                f"features, received {tuple(inputs_shape)}. Add the missing axis, for example "
                "with keras.layers.Reshape or x[:, :, None]."
            )
        sizes = {"D": inputs_shape[-1], "n": self.n}
        for name, spec in self.weight_specs().items():
            weight = self.add_weight(
                name=name,
                shape=tuple(sizes[axis] for axis in spec.axes),
                initializer=getattr(self, f"{name}_initializer"),
                regularizer=getattr(self, f"{name}_regularizer"),
                constraint=getattr(self, f"{name}_constraint"),
                # The recurrence accumulates in float32 whatever the inputs are, and rounding its
                # weights first would waste that.
                autocast=False,
            )
            setattr(self, name, weight)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: inputs_shape[-1]})

    def call(self, inputs):
        # Complex inputs are left to the op, which refuses them: a cast would drop a part of them.
        if not keras.backend.standardize_dtype(inputs.dtype).startswith("complex"):
            inputs = ops.cast(inputs, self.compute_dtype)
        outputs, _ = self.scan(inputs)
        return outputs if self.return_sequences else outputs[:, -1]

    def compute_output_shape(self, inputs_shape):
        batch, length, dim = inputs_shape
        return (batch, length, dim) if self.return_sequences else (batch, dim)

    def get_config(self):
        rules = {
            f"{name}_{kind}": keras.saving.serialize_keras_object(getattr(self, f"{name}_{kind}"))
            for name in self.weight_specs()
            for kind in _RULES
        }
        solver = self.solver
        return {
            **super().get_config(),
            "n": self.n,
            "return_sequences": self.return_sequences,
            "solver": (
                solver if isinstance(solver, str) else keras.saving.serialize_keras_object(solver)
            ),
            "recompute": self.recompute,
            **rules,
        }


_RULES = {
    "initializer": initializers,
    "regularizer": keras.regularizers,
    "constraint": constraints,
}
