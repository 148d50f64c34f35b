"""A model as calls in order, with explicit states of its layers."""

import collections
import dataclasses
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.layers.graph import arguments_of, calls_in, input_of, is_graph
from keras_coffee.streaming.call import Call, filled, has_time, symbols_of
from keras_coffee.streaming.carriers import Carrier, carrier_class
from keras_coffee.streaming.pointwise import check, is_last_step


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
        # Of symbolic tensors `(B, 1, ...)` that are the last of the steps of a block.
        self._last: set[int] = set()
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

    def has_steps(self, x: keras.KerasTensor) -> bool:
        """Whether a symbolic output has an axis that is of length 1 at a step."""
        return has_time(x) or id(x) in self._last

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
        inputs = self._entered(model, inputs)
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
        keras.models.clone_model(
            ended, input_tensors=inputs, clone_function=lambda layer: layer, call_function=call
        )
        return reached[0]

    def _entered(self, model: Any, inputs: Any) -> Any:
        """Inputs as Keras hands them to a model: in its structure, and of its dtypes."""
        own = input_of(model)
        if isinstance(inputs, dict) and not isinstance(own, dict):
            inputs = [inputs[x.name] for x in keras.tree.flatten(own)]
        pairs = zip(keras.tree.flatten(inputs), keras.tree.flatten(own), strict=True)
        return keras.tree.pack_sequence_as(own, [self._cast(model, *pair) for pair in pairs])

    def _cast(self, model: Any, x: keras.KerasTensor, own: keras.KerasTensor) -> Any:
        if len(x.shape) != len(own.shape):
            raise ValueError(
                f"{model.name!r} takes the shape {tuple(own.shape)}, but is called with "
                f"{tuple(x.shape)} in the model. Give it that many axes, for example by "
                "keras.ops.expand_dims(x, -1)."
            )
        if x.dtype == own.dtype:
            return x
        cast = _Cast(own.dtype)
        outputs = cast(x)
        self.calls.append(Call(cast, (x,), {}, [outputs], []))
        if id(x) in self._last:
            self._last.add(id(outputs))
        return outputs

    def _call(self, path: str, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Appends a call, or those of the model that is called, and returns symbolic outputs."""
        given = arguments_of(operation, args, kwargs)
        _check_inference(operation, given)
        first = symbols_of(list(given.values()))[0]  # of the inputs, in whatever order given
        is_declared = isinstance(operation, self._pointwise)
        if self.has_steps(first) and is_graph(operation) and not is_declared:
            inputs = next(iter(given.values()))
            _check_masks(operation, inputs, given.get("mask"))
            return self._walk(operation, inputs, self._path(path, operation) + ".")
        for inner, arguments in calls_in(operation):
            _check_inference(inner, arguments)
            _check_stateless(inner)
        outputs = operation(*args, **kwargs)
        call = Call(operation, args, kwargs, keras.tree.flatten(outputs), [])
        call = dataclasses.replace(call, has_masks=_has_masks(call))
        carrier = carrier_class(operation) if has_time(first) and not is_declared else None
        if carrier is None:
            _check_stateless(operation)
            check(call, self._pointwise)
        else:
            call = self._carried(carrier, call, given, self._path(path, operation))
        self.calls.append(call)
        if is_last_step(call, self._last):
            self._last.update(map(id, call.outputs))
        return outputs

    def _carried(
        self, carrier_of: type[Carrier], call: Call, given: dict[str, Any], path: str
    ) -> Call:
        layer, inputs, mask = call.operation, next(iter(given.values())), given.get("mask")
        if given.get("initial_state") is not None:
            raise ValueError(
                f"{layer.name!r} is given an initial_state, but in a stream it continues from "
                "the previous step. Build the model without it, and set that state of the stream."
            )
        marks = {"mask": mask, "reset": given.get("reset")}
        for name, mark in marks.items():
            if mark is not None and not any(map(has_time, symbols_of(mark))):
                raise ValueError(
                    f"{layer.name!r} is given a {name} that is not made of the stream's inputs. "
                    "Make it an input of the model: keras.Input((None,), dtype='bool')."
                )
        is_masked = mask is not None or _carries_mask(inputs)
        carrier = carrier_of(layer, inputs, call.outputs[0], is_masked)
        carrier.build(inputs.shape)
        return Call(carrier, (inputs,), marks, call.outputs, carrier.state_names(path))

    def _path(self, path: str, operation: Any) -> str:
        """The name of a layer, after those of the models around it, distinct for each call."""
        path += operation.name
        self._times_called[path] += 1
        times = self._times_called[path]
        return path if times == 1 else f"{path}.call_{times}"


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


def _check_inference(operation: Any, arguments: dict[str, Any]) -> None:
    if arguments.get("training"):
        raise ValueError(
            f"{operation.name!r} is called with training=True in the model, but a stream computes "
            "what layers do in inference. Build the model without it."
        )


def _check_stateless(operation: Any) -> None:
    if getattr(operation, "stateful", False):
        raise ValueError(
            f"{operation.name!r} is stateful and would keep a state of its own between the pieces. "
            "Build it with stateful=False."
        )


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


class _Cast(keras.layers.Layer):
    """A cast that keeps masks."""

    def __init__(self, to: str):
        super().__init__()
        self.autocast = False
        self.supports_masking = True
        self._to = to

    def call(self, inputs: Tensor) -> Tensor:
        return ops.cast(inputs, self._to)


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
