"""Layers that list their weights, and save them by name."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypedDict

import keras

from keras_coffee import constraints, initializers
from keras_coffee.layers import arguments

# An initializer, a regularizer or a constraint, given as Keras takes it: by name, as an object or
# its configuration. None is Keras' default initializer, no regularizer, no constraint.
Rule = str | dict[str, Any] | Callable[..., Any] | None


class LayerOptions(TypedDict, total=False):
    """What every layer of Keras takes."""

    name: str | None
    dtype: str | keras.DTypePolicy | None
    trainable: bool
    activity_regularizer: Rule


class WeightSpec(NamedTuple):
    """A weight in a layer's `WEIGHTS`.

    Args:
        shape: Its axes. `"D"` is the number of features of the inputs; any other name is an
            attribute of the layer, such as `"n"` or `"units"`; an integer is itself.
        initializer: The default of `<name>_initializer`. None: Glorot's uniform one, as in Keras.
        constraint: The default of `<name>_constraint`.

    Example:
        >>> WeightSpec(("D", "units"), "glorot_uniform").shape
        ('D', 'units')
    """

    shape: tuple[str | int, ...]
    initializer: Rule = None
    constraint: Rule = None


def handed_on(given: dict[str, Any], *own: str) -> dict[str, Any]:
    """The arguments of an `__init__` for that of its base class, from its `locals()`.

    It leaves out `own`, which the base class does not take.
    """
    left_out = {"self", "__class__", "kwargs", *own}
    return {k: value for k, value in given.items() if k not in left_out} | given["kwargs"]


def _own(rule: Rule) -> Rule:
    """A class's rule for one weight. An initializer without a seed drew one, for all its calls."""
    if isinstance(rule, keras.initializers.Initializer):
        return rule.clone() if rule.get_config().get("seed", rule) is None else rule
    return rule


class DeclaredWeights(keras.layers.Layer):
    """A layer that lists its weights in `WEIGHTS`.

    Each weight takes the arguments `<name>_initializer`, `<name>_regularizer` and
    `<name>_constraint`, and becomes the attribute `<name>`.
    """

    WEIGHTS: ClassVar[Mapping[str, WeightSpec]] = {}
    # Which optional weights exist. A layer sets it before `super().__init__`.
    _present: Mapping[str, bool] = {}
    # Initializers that follow from other arguments, for weights that are given none. A layer sets
    # it before `super().__init__` too.
    _implied: Mapping[str, Rule] = {}

    def __init__(self, **kwargs: Any):
        _check_weights(type(self).__name__, self.WEIGHTS)
        names = [k for k in self._implied if kwargs.get(f"{k}_initializer") is None]
        kwargs |= {f"{name}_initializer": self._implied[name] for name in names}
        given = {
            (name, kind): kwargs.pop(f"{name}_{kind}")
            for name in self.WEIGHTS
            for kind in _RULES
            if f"{name}_{kind}" in kwargs
        }
        arguments.check_known(type(self), kwargs, of_keras=LayerOptions.__annotations__)
        super().__init__(**kwargs)
        # Not for absent weights: each initializer that is made draws a seed.
        for name, spec in self.weight_specs().items():
            for kind, module in _RULES.items():
                is_given = (name, kind) in given
                rule = given[name, kind] if is_given else _own(getattr(spec, kind, None))
                setattr(self, f"{name}_{kind}", module.get(rule))
        # A configuration has None for these, so that they follow if the argument is changed in it.
        made = {name: getattr(self, f"{name}_initializer", None) for name in names}
        self._made_of_implied = MappingProxyType(made)

    def weight_specs(self) -> dict[str, WeightSpec]:
        """The weights that this layer has, in the order in which they are created and saved."""
        return {k: spec for k, spec in self.WEIGHTS.items() if self._present.get(k, True)}

    def add_declared_weights(self, dim: int) -> None:
        """Creates the weights for inputs of `dim` features."""
        for name, spec in self.weight_specs().items():
            weight = self.add_weight(
                name=name,
                shape=tuple(self._length(axis, dim) for axis in spec.shape),
                initializer=self._initializer_of(name),
                regularizer=getattr(self, f"{name}_regularizer"),
                constraint=getattr(self, f"{name}_constraint"),
                # The recurrence always accumulates in float32; rounding its weights first would
                # waste that.
                autocast=False,
            )
            setattr(self, name, weight)

    def _initializer_of(self, name: str) -> Any:
        """The initializer of a weight. It may read the weights that are listed before it."""
        return getattr(self, f"{name}_initializer")

    def _length(self, axis: str | int, dim: int) -> int:
        if axis == "D":
            return dim
        if isinstance(axis, str) and not hasattr(self, axis):
            raise AttributeError(
                f"`WEIGHTS` of {type(self).__name__} name the axis {axis!r}: set self.{axis} in "
                "`__init__`, to an integer."
            )
        return getattr(self, axis) if isinstance(axis, str) else axis

    def own_weights(self) -> dict[str, keras.Variable]:
        """The weights by name, those made by `add_weight` included, but not those of sublayers.

        Keras saves them by number: others of the same shape would fit.

        Raises:
            ValueError: if two have the same name.
        """
        numbered: dict[str, keras.Variable] = {}
        super().save_own_variables(numbered)
        named = {weight.name: weight for weight in numbered.values()}
        if len(named) < len(numbered):
            names = [weight.name for weight in numbered.values()]
            raise ValueError(
                f"{self.name!r} has the weights {names}. Files know them by name: give each "
                "`add_weight` a name of its own."
            )
        return named

    def save_own_variables(self, store: Any) -> None:
        for name, weight in self.own_weights().items():
            store[name] = weight

    def get_config(self) -> dict[str, Any]:
        rules = {
            f"{name}_{kind}": keras.saving.serialize_keras_object(self._given(name, kind))
            for name in self.weight_specs()
            for kind in _RULES
        }
        return {**super().get_config(), **rules}

    def _given(self, name: str, kind: str) -> Any:
        rule = getattr(self, f"{name}_{kind}")
        return None if kind == "initializer" and rule is self._made_of_implied.get(name) else rule


def _check_weights(layer: str, weights: Any) -> None:
    is_mapping = isinstance(weights, Mapping)
    if not is_mapping or not all(isinstance(spec, WeightSpec) for spec in weights.values()):
        raise TypeError(
            f"`WEIGHTS` of {layer} must be a dictionary of names to WeightSpecs, such as "
            f"{{'kernel': WeightSpec(('D', 3))}}, received {weights!r}."
        )
    taken = list(filter(is_state_name, weights))
    if taken:
        raise ValueError(
            f"`WEIGHTS` of {layer} name {taken[0]!r}, as files name a state that a layer carries. "
            "Choose another name."
        )


def is_state_name(name: str) -> bool:
    """Whether a name is one of those that the carried states of a layer have."""
    return re.fullmatch(r"state(_\d+)?", name) is not None


_RULES = {
    "initializer": initializers,
    "regularizer": keras.regularizers,
    "constraint": constraints,
}
