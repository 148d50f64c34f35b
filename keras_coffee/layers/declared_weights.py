"""Layers that list their weights."""

from typing import Any, ClassVar, NamedTuple

import keras

from keras_coffee import constraints, initializers


class WeightSpec(NamedTuple):
    """A weight of a layer: the axes of its shape, and how it starts and is kept."""

    axes: str  # "Dn" or "DD"
    initializer: str
    constraint: str | None = None


class DeclaredWeights(keras.layers.Layer):
    """A layer that lists its weights in `WEIGHTS`.

    Each weight takes the arguments `<name>_initializer`, `<name>_regularizer` and
    `<name>_constraint`, and becomes the attribute `<name>`.
    """

    WEIGHTS: ClassVar[dict[str, WeightSpec]]

    def __init__(self, **kwargs: Any):
        rules = {
            f"{name}_{kind}": module.get(kwargs.pop(f"{name}_{kind}", getattr(spec, kind, None)))
            for name, spec in self.weight_specs().items()
            for kind, module in _RULES.items()
        }
        super().__init__(**kwargs)
        for name, rule in rules.items():
            setattr(self, name, rule)

    def weight_specs(self) -> dict[str, WeightSpec]:
        """The weights that this layer has, in the order in which they are created and saved."""
        return self.WEIGHTS

    def add_declared_weights(self, sizes: dict[str, int]) -> None:
        """Creates the weights, given the length of each axis."""
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

    def get_config(self):
        rules = {
            f"{name}_{kind}": keras.saving.serialize_keras_object(getattr(self, f"{name}_{kind}"))
            for name in self.weight_specs()
            for kind in _RULES
        }
        return {**super().get_config(), **rules}


_RULES = {
    "initializer": initializers,
    "regularizer": keras.regularizers,
    "constraint": constraints,
}
