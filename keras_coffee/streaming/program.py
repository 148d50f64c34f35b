"""A model as calls in order, with explicit states of its layers."""

import collections
import dataclasses
import inspect
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.layers.part_of_model import input_of
from keras_coffee.streaming.call import Call, filled, has_time, symbols_of
from keras_coffee.streaming.carriers import Carrier, carrier_class
from keras_coffee.streaming.pointwise import check


class Program:
    """The calls of a model, those inside nested models among them.

    Args:
        model: A `keras.Sequential` or Functional model.
        pointwise: Classes of layers that the user has declared to treat each step separately.
    """

    def __init__(self, model: keras.Model, pointwise: tuple[type, ...]):
        self._pointwise = pointwise
        self._times_called: collections.Counter[str] = collections.Counter()
        self.calls: list[Call] = []
        self.inputs = keras.tree.map_structure(_of_any_length, input_of(model))
        self.flat_inputs = keras.tree.flatten(self.inputs)
        self.outputs = self._walk(model, self.inputs, "")

    @property
    def carriers(self) -> list[tuple[Carrier, list[str]]]:
        """The layers with states, and the names of these."""
        return [(call.operation, call.states) for call in self.calls if call.states]

    @property
    def operations(self) -> list[Any]:
        """What is called, each once."""
        return list({id(call.operation): call.operation for call in self.calls}.values())

    def run(self, inputs: list[Tensor], state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """Outputs for a block of steps, and the states after it."""
        new: dict[str, Tensor] = {}
        values = dict(zip(map(id, self.flat_inputs), inputs, strict=True))
        for call in self.calls:
            args, kwargs = filled(call.args, values), filled(call.kwargs, values)
            if call.states:
                kwargs["states"] = [state[name] for name in call.states]
            outputs = call.run(*args, **kwargs)
            if not call.states:  # carriers return a list
                outputs = [outputs] if ops.is_tensor(outputs) else keras.tree.flatten(outputs)
            new.update(zip(call.states, outputs[1:], strict=False))
            # A layer that returns no states has fewer outputs than its carrier.
            values.update(zip(map(id, call.outputs), outputs, strict=False))
        return keras.tree.map_structure(lambda x: values[id(x)], self.outputs), new

    def _walk(self, model: Any, inputs: Any, path: str) -> Any:
        """Appends the calls of a model on symbolic inputs, and returns its symbolic outputs."""
        if isinstance(model, keras.Sequential):
            _check_call(model, keras.Sequential)
            for layer in model.layers:
                inputs = self._call(path, layer, inputs)
            return inputs
        end = _End()
        reached: list[Any] = []

        def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
            if operation is not end:
                return self._call(path, operation, *args, **kwargs)
            reached.extend(args)
            return end(inputs)  # `clone_model` makes a model of it; this is the shortest

        # The public way to walk a Functional model, in the order in which it runs.
        ended = keras.Model(input_of(model), end(model.output))
        _check_call(model, type(ended))
        inputs = keras.tree.pack_sequence_as(input_of(model), keras.tree.flatten(inputs))
        keras.models.clone_model(
            ended, input_tensors=inputs, clone_function=lambda layer: layer, call_function=call
        )
        return reached[0]

    def _call(self, path: str, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Appends a call, or those of the model that is called, and returns symbolic outputs."""
        _check_inference(operation, kwargs)
        can_carry = has_time(symbols_of((args, kwargs))[0])
        can_carry = can_carry and not isinstance(operation, self._pointwise)
        if can_carry and is_graph(operation):
            _check_masks(operation, args[0], kwargs.get("mask"))
            return self._walk(operation, args[0], self._path(path, operation) + ".")
        _check_inside(operation)
        outputs = operation(*args, **kwargs)
        call = Call(operation, args, kwargs, keras.tree.flatten(outputs), [])
        call = dataclasses.replace(call, has_masks=_has_masks(call))
        carrier = carrier_class(operation) if can_carry else None
        if carrier is None:
            check(call, self._pointwise)
        else:
            call = self._carried(carrier, call, self._path(path, operation))
        self.calls.append(call)
        return outputs

    def _carried(self, carrier_of: type[Carrier], call: Call, path: str) -> Call:
        layer = call.operation
        given = inspect.signature(layer.call).bind(*call.args, **call.kwargs).arguments
        if given.get("initial_state") is not None:
            raise ValueError(
                f"{layer.name!r} is given an initial_state, but in a stream it continues from "
                "the previous step. Build the model without it, and set that state of the stream."
            )
        inputs, mask = call.args[0], given.get("mask")
        is_masked = mask is not None or _carries_mask(inputs)
        carrier = carrier_of(layer, inputs, call.outputs[0], is_masked)
        carrier.build(inputs.shape)
        marks = {"mask": mask, "reset": given.get("reset")}
        return Call(carrier, (inputs,), marks, call.outputs, carrier.state_names(path))

    def _path(self, path: str, operation: Any) -> str:
        """The name of a layer, after those of the models around it, distinct for each call."""
        path += operation.name
        self._times_called[path] += 1
        times = self._times_called[path]
        return path if times == 1 else f"{path}.call_{times}"


def is_graph(model: Any) -> bool:
    """Whether a model is a `keras.Sequential` or a Functional one."""
    return isinstance(model, keras.Model) and isinstance(model, (keras.Sequential, keras.Function))


def _of_any_length(x: keras.KerasTensor) -> keras.KerasTensor:
    if len(x.shape) < 2:
        raise ValueError(
            f"The input {x.name!r} has the shape {tuple(x.shape)}, but a stream takes sequences "
            "with time as their second axis."
        )
    return keras.Input(batch_shape=(x.shape[0], None, *x.shape[2:]), dtype=x.dtype, name=x.name)


def _check_call(model: keras.Model, own: Any) -> None:
    if type(model).call is not own.call:
        raise ValueError(
            f"{model.name!r} has a `call` of its own, which a stream cannot look into. Make it a "
            "keras.Sequential or a Functional model. If it treats each step separately, list its "
            "class in Stream(model, pointwise=[...])."
        )


def _check_inference(operation: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("training"):
        raise ValueError(
            f"{operation.name!r} is called with training=True in the model, but a stream computes "
            "what layers do in inference. Build the model without it."
        )


def _check_inside(operation: Any) -> None:
    """`_check_inference` of the calls in a model that runs as one piece, in a wrapper or not."""
    if isinstance(operation, keras.layers.Wrapper):
        _check_inside(operation.layer)
    elif isinstance(operation, keras.Sequential):
        for layer in operation.layers:
            _check_inside(layer)
    elif is_graph(operation):
        _check_calls(operation)


def _check_calls(model: keras.Model) -> None:
    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        _check_inference(operation, kwargs)
        _check_inside(operation)
        return operation(*args, **kwargs)

    plain = keras.Model(input_of(model), model.output)
    keras.models.clone_model(plain, clone_function=lambda layer: layer, call_function=call)


def _check_masks(model: keras.Model, inputs: Any, mask: Any) -> None:
    is_given = any(x is not None for x in keras.tree.flatten(mask))
    if is_given and not any(map(_carries_mask, symbols_of(inputs))):
        raise ValueError(
            f"{model.name!r} is given a mask that its inputs do not carry. In a stream, give it to "
            "the layers in the model, as an input of that."
        )


class _End(keras.layers.Layer):
    """Put behind the outputs of a model to see what they are made of."""

    def call(self, inputs: Any) -> Tensor:
        return keras.tree.flatten(inputs)[0]

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        return None


class _Mask(keras.layers.Layer):
    """Finds out whether a symbolic tensor carries a mask, which Keras tells layers only."""

    found = False

    def call(self, inputs: Tensor) -> Tensor:
        return inputs

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        self.found = previous_mask is not None


def _has_masks(call: Call) -> bool:
    tensors = symbols_of((call.args, call.kwargs, call.outputs))
    return call.kwargs.get("mask") is not None or any(map(_carries_mask, tensors))


def _carries_mask(x: keras.KerasTensor) -> bool:
    layer = _Mask()
    layer(x)
    return layer.found
