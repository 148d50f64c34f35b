"""`Stream`: a whole model, one step or one block at a time."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.layers.arguments import check_real
from keras_coffee.layers.graph import is_graph
from keras_coffee.ops.arguments import cast, dtype_of
from keras_coffee.streaming.program import Program


class Stream:
    """Feeds a model a sequence piece by piece, and carries the state of each layer.

    The outputs are those of the whole sequence, masks included, at a cost per piece that does not
    depend on what came before. A stream holds no state itself: you pass states in and get new ones,
    so you can follow several sequences, copy states and continue from them, and compile it by
    `jax.jit(stream.step)` or `tf.function(stream.step)`. JAX treats the weights as constants:
    compile again after they change.

    The state is a dict with one tensor for each state of each layer, by the layer's name:

    - `"coffee"` for the layer `coffee`, `"encoder.coffee"` for the same in a model `encoder`;
    - `"lstm.0"`, `"lstm.1"` where a layer has several;
    - `"coffee.call_2"` for the second call of a shared layer, in the order in which Keras runs
      the model;
    - `"coffee.output"`, the last output, where a mask may reach the layer: masked steps repeat it.

    To read a state, look it up; to set one, replace it; to start again, take
    `get_initial_state(batch_size)`.

    Args:
        model: A built `keras.Sequential` or a Functional model, with any number of inputs, each a
            sequence `(B, T, ...)`, and of outputs. It may hold the recurrent layers of
            `keras_coffee`, `keras.layers.RNN` and what derives from it (`GRU`, `LSTM`,
            `SimpleRNN`), not backwards; `Conv1D` with `padding="causal"` and `strides=1`; layers
            and operations that treat each step separately, such as `Dense`, `LayerNormalization`,
            `Concatenate` or `x + y`; and further models of those.
        pointwise: Your classes of layers that treat each step separately, also those that derive
            from a layer named above.

    Raises:
        TypeError: if the model is neither.
        ValueError: if the model is not built, a layer needs later steps, the model calls one with
            `training=True`, or two states would have one name.

    Example:
        >>> inputs = keras.Input((None, 3))
        >>> x = inputs + CoffeeLayer(8, name="coffee")(inputs)
        >>> stream = Stream(keras.Model(inputs, keras.layers.GRU(4, name="gru")(x)))
        >>> state = stream.get_initial_state(batch_size=2)
        >>> outputs, state = stream(np.ones((2, 50, 3)), state)
        >>> outputs, state = stream.step(np.ones((2, 3)), state)
        >>> outputs.shape, {name: tuple(x.shape) for name, x in state.items()}
        ((2, 4), {'coffee': (2, 3, 8), 'gru': (2, 4)})
    """

    def __init__(self, model: keras.Model, pointwise: Iterable[type] = ()):
        if not is_graph(model):
            raise TypeError(
                "A stream needs a keras.Sequential or a Functional model, received "
                f"{type(model).__name__}."
            )
        if not model.built:
            raise ValueError(
                f"{model.name!r} is not built. Begin it with keras.Input, or call it once."
            )
        if not hasattr(model, "inputs"):  # Keras keeps the error to itself
            raise ValueError(
                f"{model.name!r} has no symbolic inputs, because one of its layers raises "
                "NotImplementedError for them. Call the layers on a keras.Input to find it."
            )
        self._name = model.name
        self._program = Program(model, tuple(pointwise))
        names = [name for _, own in self._program.carriers for name in own]
        self._check_distinct("states", names)
        self._states = {
            name: (tuple(state.shape[1:]), dtype_of(state))
            for name, state in self.get_initial_state(1).items()
        }

    def get_initial_state(self, batch_size: int) -> dict[str, Tensor]:
        """The states before the first step, by name: zeros, or the layers' own initial states."""
        return {
            name: state
            for carrier, names in self._program.carriers
            for name, state in zip(names, carrier.get_initial_state(batch_size), strict=True)
        }

    def __call__(self, inputs: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """Feeds a block of steps.

        Args:
            inputs: The model's inputs, in the same structure: `(B, K, ...)` for a block of K steps.
            state: The states that the block before it led to, or `get_initial_state`.

        Returns:
            The model's outputs for these steps, and the new states. An output without an axis of
            time, as after `return_sequences=False`, is that for all steps so far. No gradient flows
            from block to block.

        Raises:
            ValueError: if the inputs have another structure or shape than the model's, differ in
                batch size or number of steps, or have no steps; or if the states have other names
                or shapes.
            TypeError: if the inputs are complex and the model's are not.
        """
        blocks = self._checked(inputs, "batch", "steps")
        if blocks[0].shape[1] == 0:
            raise ValueError(
                f"{self._name!r} takes blocks of one step or more, received the shape "
                f"{tuple(blocks[0].shape)}. Leave empty blocks out."
            )
        return self._feed(blocks, state)

    def step(self, inputs_t: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """Feeds one step: as `__call__`, without the axis of time.

        Args:
            inputs_t: The model's inputs at one step: `(B, ...)`.
            state: The states that the step before it led to, or `get_initial_state`.

        Returns:
            The model's outputs at this step, and the new states.
        """
        blocks = [ops.expand_dims(x, 1) for x in self._checked(inputs_t, "batch")]
        outputs, state = self._feed(blocks, state)
        program = self._program
        outputs = keras.tree.map_structure(
            lambda x, symbol: x[:, 0] if program.has_steps(symbol) else x, outputs, program.outputs
        )
        return outputs, state

    def as_model(self) -> keras.Model:
        """One step as a model that takes and returns the states, for export.

        It takes a dict of the inputs at one step and of the states by their names, and returns one
        of the outputs and of the new states, with `new.` before their names: in an ONNX file no
        output may have the name of an input. Inputs and outputs are `"inputs"` and `"outputs"`;
        if there are several, `"inputs.0"`, `"inputs.1"`, or `"inputs.price"` from a dict.

        The weights are those of the stream's model. To save them, save that model.

        Returns:
            A Functional model, for batches of any size.

        Raises:
            ValueError: if a layer with a state has a name that an input or output has too.

        Example:
            >>> model = keras.Sequential([keras.Input((None, 3)), CoffeeLayer(8, name="coffee")])
            >>> stream = Stream(model)
            >>> step = stream.as_model()
            >>> results = step({"inputs": ops.ones((2, 3)), **stream.get_initial_state(2)})
            >>> results["outputs"].shape, results["new.coffee"].shape
            ((2, 3), (2, 3, 8))
        """
        inputs = _named("inputs", self._program.inputs)
        names = [*inputs, *_named("outputs", self._program.outputs), *self._states]
        self._check_distinct("inputs, outputs or states of one step", names)
        specs = {name: ((*x.shape[2:],), x.dtype) for name, x in inputs.items()} | self._states
        symbols = {
            name: keras.Input(shape, dtype=dtype, name=name)
            for name, (shape, dtype) in specs.items()
        }
        return keras.Model(symbols, _Step(self)(symbols), name=f"{self._name}_step")

    def _check_distinct(self, what: str, names: list[str]) -> None:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"Two {what} of {self._name!r} have the name {name!r}. Rename a layer."
                )

    def _feed(self, blocks: list[Tensor], state: Any) -> tuple[Any, dict[str, Tensor]]:
        batch = blocks[0].shape[0]
        return self._program.run(blocks, self._checked_state(state, batch))

    def _checked_state(self, state: Any, batch: int | None) -> dict[str, Tensor]:
        """The states as tensors of their dtypes, if names and shapes are right."""
        names = list(self._states)
        if not isinstance(state, dict) or set(state) != set(names):
            received = str(list(state)) if isinstance(state, dict) else f"a {type(state).__name__}"
            raise ValueError(
                f"The state of a stream of {self._name!r} is a dict of the tensors {names}, "
                f"received {received}. Start with `get_initial_state`."
            )
        return {name: self._checked_tensor(name, state[name], batch) for name in names}

    def _checked_tensor(self, name: str, state: Any, batch: int | None) -> Tensor:
        shape, dtype = self._states[name]
        # Without gradients, or the graph of a long stream would grow with it on PyTorch.
        is_one = ops.is_tensor(state) and dtype_of(state) == dtype
        state = ops.stop_gradient(state if is_one else ops.convert_to_tensor(state, dtype))
        actual = tuple(state.shape)
        if len(actual) != 1 + len(shape) or not all(map(_fits, actual, (batch, *shape))):
            raise ValueError(
                f"The state {name!r} of a stream of {self._name!r} must have the shape "
                f"{(batch, *shape)} here, received {actual}."
            )
        return state

    def _checked(self, inputs: Any, *axes: str) -> list[Tensor]:
        """The inputs, cast as the model itself casts them, if they have these axes and a step's."""
        symbols = self._program.inputs
        is_one = isinstance(symbols, keras.KerasTensor)
        if not is_one or isinstance(inputs, dict):
            self._check_structure(inputs)
        inputs = [inputs] if is_one else keras.tree.flatten(inputs)
        tensors = [
            self._checked_input(ops.convert_to_tensor(x), symbol, axes)
            for x, symbol in zip(inputs, self._program.flat_inputs, strict=True)
        ]
        if len(tensors) > 1:
            self._check_sizes([tuple(x.shape[: len(axes)]) for x in tensors], axes)
        return tensors

    def _check_sizes(self, sizes: list[tuple[int | None, ...]], axes: tuple[str, ...]) -> None:
        first, *others = sizes
        if not all(all(map(_fits, first, other)) for other in others):
            raise ValueError(
                f"All inputs of {self._name!r} must have the same ({', '.join(axes)}), received "
                f"{sizes}."
            )

    def _check_structure(self, inputs: Any) -> None:
        expected = _named("inputs", self._program.inputs)
        if list(_named("inputs", inputs)) != list(expected):
            raise ValueError(
                f"{self._name!r} takes the inputs {list(expected)}, received "
                f"{list(_named('inputs', inputs))}. Give them in the structure in which the model "
                "takes them, and the state behind them."
            )

    def _checked_input(self, x: Tensor, symbol: Any, axes: tuple[str, ...]) -> Tensor:
        if not symbol.dtype.startswith("complex"):
            check_real(f"What {self._name!r} takes", x)
        sizes = symbol.shape[2:]
        own = x.shape[len(axes) :]
        if len(x.shape) != len(axes) + len(sizes) or not all(map(_fits, own, sizes)):
            named = ", ".join(map(str, (*axes, *sizes))) + "," * (len(axes) + len(sizes) == 1)
            raise ValueError(
                f"{self._name!r} takes `({named})` here, received the shape {tuple(x.shape)}. "
                "One sequence is a batch of 1; `step` takes no axis of steps, a call does."
            )
        return cast(x, symbol.dtype)


class _Step(keras.layers.Layer):
    """One step of a stream as a layer, from a dict of inputs and states to one of results."""

    def __init__(self, stream: Stream):
        super().__init__()
        self.autocast = False
        self._stream = stream
        # Keras finds the weights in them.
        self.parts = [x for x in stream._program.operations if isinstance(x, keras.layers.Layer)]

    def call(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        symbols = self._stream._program.inputs
        inputs = [tensors[name] for name in _named("inputs", symbols)]
        state = {name: tensors[name] for name in self._stream._states}
        outputs, state = self._stream.step(keras.tree.pack_sequence_as(symbols, inputs), state)
        return _named("outputs", outputs) | {f"new.{name}": x for name, x in state.items()}

    def compute_output_spec(self, tensors: dict[str, Tensor]) -> dict[str, keras.KerasTensor]:
        batch, program = next(iter(tensors.values())).shape[0], self._stream._program
        outputs = {
            name: keras.KerasTensor((batch, *x.shape[2 if program.has_steps(x) else 1 :]), x.dtype)
            for name, x in _named("outputs", program.outputs).items()
        }
        states = {
            f"new.{name}": keras.KerasTensor((batch, *shape), dtype)
            for name, (shape, dtype) in self._stream._states.items()
        }
        return outputs | states


def _fits(actual: int | None, expected: int | None) -> bool:
    return actual is None or expected is None or actual == expected


def _named(word: str, structure: Any) -> dict[str, Any]:
    """The leaves of a structure by what leads to them: `"inputs.0"`, or `"inputs"` for one."""
    return {
        ".".join((word, *map(str, path))): leaf
        for path, leaf in keras.tree.flatten_with_path(structure)
    }
