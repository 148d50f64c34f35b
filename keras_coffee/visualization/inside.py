"""A `CoffeeLayer` inside a model: its inputs, what it does, and the layers after it."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_coffee.layers import CoffeeLayer, SoftminLogits
from keras_coffee.layers.graph import input_of, part_of
from keras_coffee.layers.kept_states import kept_states


@dataclasses.dataclass(frozen=True)
class Run:
    """What a layer did with some sequences, in the order in which it took the steps.

    Args:
        layer: The layer.
        states: x(0), …, x(T), `(B, T + 1, D, n)`.
        gates: Δ(1), …, Δ(T), `(B, T, D, n)`.
        symbols: The model's inputs `(B, T)`, if they are integers.
    """

    layer: CoffeeLayer
    states: np.ndarray
    gates: np.ndarray
    symbols: np.ndarray | None

    def outputs(self) -> np.ndarray:
        """C x(k), or what the output filter makes of it, `(B, T + 1, D)`."""
        states = ops.convert_to_tensor(self.states)
        # COFFEE's outputs see the state alone.
        return ops.convert_to_numpy(self.layer.cell().read(states, None))


def follow(model: keras.Model, inputs: Any, layer: CoffeeLayer | str | None) -> Run:
    """Runs a model up to a layer, and the layer in view."""
    layer = coffee_layer(model, layer)
    batches = _batches(model, inputs)
    if len(batches[0]) == 0:
        raise ValueError("There is nothing to draw: `inputs` hold no sequence.")
    features, mask, state, reset = _layer_inputs(model, layer, batches)
    if state is None:
        (state,) = _carried(layer, len(features)) or layer.get_initial_state(len(features))
    features, mask, reset = layer.in_order(features, mask, reset)
    states, gates = layer.trajectory(features, state, mask, reset)
    states, gates, start = (ops.convert_to_numpy(x) for x in (states, gates, state))
    states = np.concatenate([start[:, None], states], axis=1)
    if not np.isfinite(states).all():
        raise ValueError(
            f"The states of {layer.name!r} are not finite. Inputs that are NaN or infinite, a "
            'symbol that its embedding does not know, and feedback="linear", which may grow '
            "without bound, make such states."
        )
    return Run(layer, states, gates, _symbols(batches, gates.shape[:2], layer.go_backwards))


def _carried(layer: CoffeeLayer, batch: int) -> list[Any]:
    """The carried states, if they are of as many sequences."""
    return [state for state in layer.states or [] if state.shape[0] == batch]


def coffee_layer(model: keras.Model, layer: CoffeeLayer | str | None = None) -> CoffeeLayer:
    """The chosen `CoffeeLayer` of a model, or its only one."""
    if not hasattr(model, "inputs"):
        raise ValueError(
            f"{getattr(model, 'name', model)!r} of type {type(model).__name__} must be a built "
            "keras.Sequential or a Functional model. Begin it with keras.Input or call it once; a "
            "subclassed model can't be looked into."
        )
    found = {x.name: x for x in model.layers if isinstance(x, CoffeeLayer)}
    if not found:
        has = [f"{x.name} ({type(x).__name__})" for x in model.layers]
        raise ValueError(
            f"{model.name!r} has no CoffeeLayer among its layers, which are {has}. Other layers "
            "have no such picture, and one inside another layer or model can't be reached; pass "
            "that model itself."
        )
    if layer is None and len(found) == 1:
        return next(iter(found.values()))
    for name, candidate in found.items():
        if layer is candidate or layer == name:
            return candidate
    raise ValueError(
        f"`layer` must be one of the CoffeeLayers of {model.name!r}, which are {list(found)}; "
        f"received {getattr(layer, 'name', layer)!r}."
    )


def rest_of_model(model: keras.Model, layer: CoffeeLayer) -> tuple[keras.Model, tuple[int, ...]]:
    """The layers after a layer as a model, and the shape of one of the outputs that it takes.

    Where the outputs have a mask, that is a second input of the model.
    """
    outputs = keras.tree.flatten(layer.output)[0]
    if len(model.outputs) != 1 or model.outputs[0].shape[-1] in (None, 1):
        raise ValueError(
            f"{model.name!r} must have one output with the scores of at least two classes, has "
            f"the shapes {[x.shape for x in model.outputs]}."
        )
    if outputs is model.outputs[0] or model.layers[-1] is layer:
        raise ValueError(
            f"{layer.name!r} is the last layer of {model.name!r}, so that nothing makes class "
            "scores of its outputs. Add a layer that does, such as SoftminLogits or Dense."
        )
    shape = outputs.shape[1:]
    if shape[0] is None:
        # SoftminLogits keeps as many steps as it is told to, and can do with no fewer.
        kept = [x.last or 1 for x in model.layers if isinstance(x, SoftminLogits)]
        shape = (max(kept, default=1), *shape[1:])
    if isinstance(model, keras.Sequential):
        # A chain, made anew: a reloaded one has called its layers more than once, so that
        # `layer.output` need not belong to it.
        after = model.layers[model.layers.index(layer) + 1 :]
        return keras.Sequential([keras.Input(shape, dtype=outputs.dtype), *after]), shape
    probe = _Probe()
    probe(outputs)
    # The outputs, and their mask if they have one, which later layers may ask for.
    given = keras.tree.flatten(probe.input)
    return part_of(model, layer, given, model.outputs[0]), shape


def _layer_inputs(model, layer, batches):
    """Features, mask, initial state and resets that a layer is given; the last two may be None."""
    given = layer.symbolic_arguments()
    features, mask = _Probe()(given["inputs"])
    wanted = {"mask": mask} | given | {"inputs": features}
    part = part_of(model, layer, model.inputs, wanted)
    with kept_states(part):
        found = part(batches, training=False)
    return tuple(found.get(name) for name in ("inputs", "mask", "initial_state", "reset"))


class _Probe(keras.layers.Layer):
    """Hands out what it is given, and the mask that comes with it."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.autocast = False

    def call(self, inputs, mask=None):
        return inputs, ops.ones(ops.shape(inputs)[:2], "bool") if mask is None else mask

    def compute_mask(self, inputs, previous_mask):
        return [None, None]

    def compute_output_spec(self, inputs, mask=None):
        return (
            keras.KerasTensor(inputs.shape, inputs.dtype),
            keras.KerasTensor(inputs.shape[:2], "bool"),
        )


def _batches(model: keras.Model, inputs: Any) -> list[Any]:
    """The array for each of `model.inputs`; a single sequence as a batch of one."""
    if isinstance(inputs, dict):
        symbols = input_of(model)
        # Keras sorts the keys, and takes the names of tensors where there are none.
        is_dict = isinstance(symbols, dict)
        keys = sorted(symbols) if is_dict else [x.name for x in model.inputs]
        if not inputs.keys() >= set(keys):
            raise ValueError(f"`inputs` must have the keys {keys}, received {sorted(inputs)}.")
        inputs = [inputs[key] for key in keys]
    elif len(model.inputs) == 1:
        is_list = isinstance(inputs, (list, tuple)) and len(inputs) == 1
        inputs = inputs if is_list and hasattr(inputs[0], "shape") else [inputs]
    arrays = [ops.convert_to_numpy(x) for x in inputs]
    missing = [len(s.shape) - x.ndim for s, x in zip(model.inputs, arrays, strict=False)]
    return [x[None] for x in arrays] if set(missing) == {1} else arrays


def _symbols(batches: list[Any], shape: tuple[int, ...], backwards: bool) -> np.ndarray | None:
    for batch in batches:
        array = ops.convert_to_numpy(batch)
        if array.dtype.kind in "iu" and array.shape == shape:
            return array[:, ::-1] if backwards else array
    return None
