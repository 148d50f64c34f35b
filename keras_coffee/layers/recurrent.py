"""What the recurrent layers share: the surface of Keras' own recurrent layers."""

import abc
import inspect
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import keras
from keras import ops

from keras_coffee import backend, solvers
from keras_coffee._typing import Shape, Tensor, is_integer
from keras_coffee.cells.cell import Cell
from keras_coffee.layers import arguments
from keras_coffee.layers.declared_weights import DeclaredWeights, is_state_name
from keras_coffee.ops import masking
from keras_coffee.ops.arguments import as_parameter, cast, check_shape, check_time, dtype_of
from keras_coffee.ops.cell_scan import cell_scan
from keras_coffee.ops.linear_scan import copied_step


class StateSpec(NamedTuple):
    """One state of a recurrence.

    Args:
        shape: Its shape without the axis of the batch.
        dtype: Its dtype, such as the layer's `complex_state_dtype`. None: its `state_dtype`.

    Example:
        >>> StateSpec((3, 4)).shape
        (3, 4)
    """

    shape: tuple[int, ...]
    dtype: str | None = None


class RecurrentLayer(DeclaredWeights, abc.ABC):
    """A recurrence over time as a layer: `(B, T, D)` to `(B, T, F)`, or to the last `(B, F)`.

    This class handles masks, states, statefulness, both directions, streaming and saving, as Keras'
    recurrent layers do. A subclass declares its states (`state_specs`) and the width of its outputs
    (`output_size`), and computes in `scan`. It lists its weights in `WEIGHTS`, or makes them in
    `build` by `add_weight`, each with a unique name, under which it is saved. `state`, `state_0`
    and so on are the names of carried states. `KIND` is `"linear"` by default. A recurrence that is
    not linear in its state sets `KIND = "nonlinear"`, because it takes other solvers.

    Args:
        return_sequences: If True, all outputs are returned, else only the last one. Defaults to
            True (Keras' own recurrent layers: False).
        return_state: If True, the final states are returned too, `(outputs, *states)`. Defaults to
            False.
        go_backwards: If True, time runs backwards, and outputs have that order. Defaults to False.
        stateful: If True, the states at the end of a batch are where the next batch starts, until
            `reset_state()`. The batch size must be known. The states are saved with the layer.
            Defaults to False.
        zero_output_for_mask: If True, masked steps output zeros instead of repeating the previous
            output. Defaults to False.
        solver: `"auto"`, `"sequential"`, a name of a solver that is parallel in time, or a solver
            of `keras_coffee.solvers`. All find the same states; docs/solvers.md compares their
            speed. Defaults to `"auto"`.
        recompute: If True, training keeps about √T states instead of T, and recomputes the others.
            It does not change values, and needs the sequential solver. Defaults to False.
        <weight>_initializer, <weight>_regularizer, <weight>_constraint: For each weight in
            `WEIGHTS`, an object of Keras or its name. Besides Keras' names there are those of
            `keras_coffee.initializers.get`, and the constraint `"stable"`, to [-2, 0].
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`, as for every Keras layer.

    Call arguments:
        inputs: u, `(B, T, D)`. B and T may be unknown.
        initial_state: A tensor, or a list of one for each state. None: zeros, or the carried
            states.
        mask: `(B, T)`, False at steps to skip: the states are held there. None: the mask that the
            inputs carry, if any.
        training: Ignored.
        inputs_mask: Keras sets it if the inputs carry a mask and an initial state or `reset` is
            given too. Use `mask` yourself.
        reset: `(B, T)`, True where a new sequence begins in a row, as in packed batches and
            episodes: the states are zero before that step, whatever came before, initial and
            carried states included, and no gradient goes back past it. At a masked step the zeros
            are held. A layer that goes backwards reads each sequence from its end. None: nowhere.

    Returns:
        Outputs `(B, T, F)`, or `(B, F)` if `return_sequences=False`, in the compute dtype; with
        `return_state` also the final states, in float32 at least.

    Raises:
        ValueError: if `solver` is unknown, the inputs are not `(B, T, D)`, or `return_state` and
            `activity_regularizer` meet a complex state.
        TypeError: if the inputs are complex, or the initial state of a real state is.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass(frozen=True)
        ... class LeakyCell(Cell):
        ...     decay: Any
        ...     structure = "diagonal"
        ...
        ...     def step(self, state, inputs):
        ...         return ops.tanh(self.decay * state + inputs)
        >>> class Leaky(RecurrentLayer):
        ...     KIND = "nonlinear"
        ...     WEIGHTS = {"decay": WeightSpec(("D",), keras.initializers.Constant(0.9))}
        ...
        ...     def state_specs(self, dim):
        ...         return [StateSpec((dim,))]
        ...
        ...     def output_size(self, dim):
        ...         return dim
        ...
        ...     def scan(self, inputs, initial_state, mask, reset=None):
        ...         cell = LeakyCell(self.decay)
        ...         return self.run_cell(cell, inputs, initial_state, mask, reset)
        >>> Leaky()(np.ones((2, 5, 3))).shape
        (2, 5, 3)
    """

    # Whether it is linear in its state, which decides what can solve it.
    KIND: ClassVar[solvers.Kind] = "linear"

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        arguments.check_given(cls, args, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        *,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        solver: str | solvers.Solver = "auto",
        recompute: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        # Keras would round an initial state to the compute dtype; `call` casts what is to be cast.
        self.autocast = False
        self.supports_masking = True
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.zero_output_for_mask = zero_output_for_mask
        found = solvers.get(solver, self.KIND, recompute=recompute)
        self.solver = solver if isinstance(solver, str) else found
        self.recompute = recompute
        self._carried: list[keras.Variable] = []
        # Keras keeps the tensors of a symbolic call, but not which argument each was.
        self._symbolic_resets: weakref.WeakSet[keras.KerasTensor] = weakref.WeakSet()

    # What a subclass says.

    @abc.abstractmethod
    def state_specs(self, dim: int) -> list[StateSpec]:
        """The states, for inputs of `dim` features. Also called before the layer is built."""

    @abc.abstractmethod
    def output_size(self, dim: int) -> int:
        """The length of the last axis of the outputs, for inputs of `dim` features."""

    @abc.abstractmethod
    def scan(
        self,
        inputs: Tensor,
        initial_state: Any,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """The recurrence itself, from the first step given to the last.

        Args:
            inputs: `(B, T, D)`, in `state_dtype`, with zeros at masked steps.
            initial_state: The state before the first step: a tensor, or a list if there are
                several. None: zeros.
            mask: `(B, T)`, booleans. At a step that is False the states must be held and the
                output repeated. None: every step counts.
            reset: `(B, T)`, booleans. Before a step that is True the states must be zero. Passed
                only if it is given, so a layer may do without it.

        Returns:
            Outputs `(B, T, F)` and the final state: a tensor, or a list if there are several.
        """

    # Building.

    def build(self, inputs_shape: Shape, initial_state_shape: Any = None) -> None:
        batch, _, dim = arguments.sequence_shape(type(self).__name__, inputs_shape)
        self.add_declared_weights(dim)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: dim})
        self._dim, self._width = dim, self.output_size(dim)
        self._specs = self.typed_states(dim)
        self.state_size = [shape for shape, _ in self._specs]
        is_complex = any(dtype.startswith("complex") for _, dtype in self._specs)
        if is_complex and self.return_state and self.activity_regularizer is not None:
            raise ValueError(
                f"{self.name!r} has a complex state, which Keras would regularize as an output. "
                "Leave out return_state or activity_regularizer."
            )
        if self.stateful:
            self._carried = self._build_states(batch)

    def _build_states(self, batch: int | None) -> list[keras.Variable]:
        if batch is None:
            raise ValueError(
                f"{self.name!r} is stateful and keeps a state for each sequence of a batch, so the "
                "size of the batch must be known. Give it as keras.Input(batch_shape=(batch, time, "
                "features))."
            )
        # Weights like the others, so that every backend carries them through compiled steps and
        # saves them.
        return [
            self.add_weight(
                name="state" if len(self._specs) == 1 else f"state_{i}",
                shape=(batch, *shape),
                dtype=dtype,
                initializer="zeros",
                trainable=False,
                autocast=False,
            )
            for i, (shape, dtype) in enumerate(self._specs)
        ]

    # States.

    @property
    def state_dtype(self) -> str:
        """The dtype that the recurrence runs in, and of its real states: float32 at least."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    @property
    def complex_state_dtype(self) -> str:
        """The complex dtype of the same precision, for `StateSpec`."""
        return "complex128" if self.state_dtype == "float64" else "complex64"

    @property
    def states(self) -> list[keras.Variable] | None:
        """The states carried from batch to batch, or None if there are none."""
        return list(self._carried) or None

    def get_initial_state(self, batch_size: int) -> list[Tensor]:
        """The states before the first step, zeros, in a list as Keras has it."""
        self._check_built()
        return [ops.zeros((batch_size, *shape), dtype) for shape, dtype in self._specs]

    def or_zeros(self, given: Any, inputs: Tensor) -> list[Tensor]:
        """Given states in a list. None: zeros for inputs `(B, ...)`."""
        if given is None:
            return self.get_initial_state(ops.shape(inputs)[0])
        return list(given) if isinstance(given, (list, tuple)) else [given]

    def reset_state(self) -> None:
        """Sets the carried states to zeros. Does nothing if the layer is not stateful."""
        for state in self._carried:
            state.assign(ops.zeros(state.shape, state.dtype))

    reset_states = reset_state

    def typed_states(self, dim: int) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of each state, for inputs of `dim` features."""
        specs = self.state_specs(dim)
        if not isinstance(specs, (list, tuple)) or not all(map(_is_spec, specs)):
            raise TypeError(
                f"`state_specs` of {type(self).__name__} must return a list with a StateSpec for "
                "each state, of its shape without the batch, such as [StateSpec((units,))], "
                f"received {specs!r}."
            )
        standardize = keras.backend.standardize_dtype
        return [(spec.shape, standardize(spec.dtype or self.state_dtype)) for spec in specs]

    def _check_built(self) -> None:
        if not self.built:
            raise ValueError(
                f"The features of {self.name!r} are not known yet. Call or build the layer first."
            )

    def as_states(self, given: Any, batch: int | None, name: str = "initial_state") -> list[Tensor]:
        """States that came as a tensor or a list, checked, each in its dtype."""
        self._check_built()
        states = list(given) if isinstance(given, (list, tuple)) else [given]
        count = len(self._specs)
        if len(states) != count:
            has = "one state" if count == 1 else f"{count} states"
            shapes = ", ".join(str(("batch", *shape)) for shape in self.state_size).replace("'", "")
            raise ValueError(
                f"{self.name!r} has {has}, {shapes}, received {len(states)} as `{name}`."
            )
        return [
            _as_state(state, name, (batch, *shape), dtype)
            for state, (shape, dtype) in zip(states, self._specs, strict=True)
        ]

    # Saving. `DeclaredWeights` saves weights by name, the carried states among them.

    def load_own_variables(self, store: Any) -> None:
        weights = self.own_weights()
        carried = [weights.pop(state.name) for state in self._carried]
        # States are not part of the match: a stateless layer takes the weights of a stateful one
        # and the other way round, and a layer for another batch starts from zeros.
        saved = {key for key in store.keys() if key in weights or not is_state_name(key)}
        if saved != set(weights):
            raise ValueError(
                f"{self.name!r} has the weights {list(weights)}, but {sorted(saved)} were saved. "
                "Make the layer with the arguments that it was saved with, and build it first."
            )
        for key, weight in weights.items():
            weight.assign(store[key])
        for state in carried:
            fits = state.name in store.keys() and store[state.name].shape == tuple(state.shape)
            state.assign(store[state.name] if fits else ops.zeros(state.shape, state.dtype))

    # Running.

    def call(
        self,
        inputs: Tensor,
        initial_state: Tensor | Sequence[Tensor] | None = None,
        mask: Tensor | None = None,
        training: bool | None = None,
        inputs_mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        mask = inputs_mask if mask is None else mask
        states = self._initial_states(inputs, initial_state)
        outputs, final = self._run(inputs, states, mask, reset)
        for carried, state in zip(self._carried, final, strict=False):  # none, or all
            # A copy, since compiled steps may reuse the variable's memory while the caller holds
            # the state that is returned.
            carried.assign(ops.copy(ops.stop_gradient(state)))
        if not self.return_sequences:
            outputs = copied_step(outputs, -1)
        return (outputs, *final) if self.return_state else outputs

    def _initial_states(self, inputs: Tensor, given: Any) -> list[Tensor] | None:
        if self._carried:
            self._check_carried_states(inputs.shape[0], self._carried[0].shape[0])
        if given is not None:
            return self.as_states(given, inputs.shape[0])
        # Copies, since the variables change before a gradient is computed. By arithmetic, because
        # PyTorch's compiler leaves out a plain copy of what an operator keeps for its gradient.
        return [state.value * 1 for state in self._carried] or None

    def _check_carried_states(self, batch: int | None, size: int) -> None:
        if backend.is_converted_to_onnx():
            raise ValueError(
                f"{self.name!r} is stateful, and an ONNX file cannot keep a state: every call "
                "would start from the same one. Export the model with return_state=True and "
                "initial_state=, and pass the state from call to call."
            )
        if batch not in (None, size):
            received = batch if isinstance(batch, int) else "unknown size"
            raise ValueError(
                f"{self.name!r} is stateful and keeps a state for a batch of {size} sequences, "
                f"received a batch of {received}. Drop batches of another size, or build a layer "
                "for this one."
            )

    def prepare(self, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What `scan` sees of inputs and mask: rounded to the compute dtype, zeros where masked.

        Raises:
            ValueError: if the layer is not built, or a shape does not fit.
            TypeError: if the inputs are complex.
        """
        self._check_built()
        inputs = inputs if ops.is_tensor(inputs) else ops.convert_to_tensor(inputs)
        arguments.check_not_ragged(f"`inputs` of {self.name!r}", inputs)
        if len(inputs.shape) != 3 or inputs.shape[-1] != self._dim:
            raise ValueError(
                f"`inputs` of {self.name!r} must have shape (batch, time, {self._dim}), time being "
                f"1 for a single step, received {tuple(inputs.shape)}."
                # TensorFlow traces a model again for an axis that changed, and hides its length.
                + " None stands for a number that is not the same in every call."
                * (None in inputs.shape)
            )
        arguments.check_real(f"`inputs` of {self.name!r}", inputs)
        check_time(inputs, f"`inputs` of {self.name!r}")
        inputs = cast(cast(inputs, self.compute_dtype), self.state_dtype)
        mask = masking.as_mask(mask, inputs)
        # The ops replace values at masked steps too, but only after some layers have projected
        # them.
        return masking.zero_masked(inputs, mask), mask

    def in_order(
        self, inputs: Tensor, mask: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Inputs, mask and resets as the layer reads them: reversed with `go_backwards`."""
        if not self.go_backwards:
            return inputs, mask, reset
        mask = None if mask is None else ops.flip(mask, axis=1)
        reset = None if reset is None else masking.backwards(reset)
        return ops.flip(inputs, axis=1), mask, reset

    def _run(
        self,
        inputs: Tensor,
        states: list[Tensor] | None,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Outputs in the compute dtype and the final states, in the order of processing."""
        inputs, mask = self.prepare(inputs, mask)
        reset = masking.as_mask(reset, inputs, "reset")
        inputs, mask, reset = self.in_order(inputs, mask, reset)
        initial = states[0] if states is not None and len(states) == 1 else states
        marks = {} if reset is None else {"reset": reset}
        if marks and not _takes(self.scan, "reset"):
            raise ValueError(
                f"`scan` of {self.name!r}, a {type(self).__name__}, takes no `reset`. Give it this "
                "argument, `(batch, time)`, and hand it to what runs the recurrence."
            )
        outputs, final = self._checked_pair(self.scan(inputs, initial, mask, **marks))
        if self.zero_output_for_mask:
            outputs = masking.zero_masked(outputs, mask)
        else:
            outputs = masking.zero_before_first(outputs, mask, reset)
        final = self.as_states(final, inputs.shape[0], "final state")
        return cast(outputs, self.compute_dtype), final

    def _checked_pair(self, result: Any) -> tuple[Tensor, Any]:
        """What `scan` returned, if it is outputs of the declared width and a state."""
        is_pair = isinstance(result, (tuple, list)) and len(result) == 2
        if not is_pair or any(part is None for part in result):
            raise TypeError(
                f"`scan` of {type(self).__name__} must return the outputs and the final state, "
                f"received {_described(result)}. `return self.run_cell(...)` returns both."
            )
        outputs, final = result
        arguments.check_real(f"The outputs of `scan` of {self.name!r}", outputs)
        said = f"(batch, time, {self._width}), as `output_size` says"
        check_shape(outputs, (None, None, self._width), f"outputs of {type(self).__name__}", said)
        return outputs, final

    def run_cell(
        self,
        cell: Cell,
        inputs: Any,
        initial_state: Any,
        mask: Tensor | None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """A cell over time, for `scan`: `cell_scan` with the solver and states of the layer.

        Args:
            cell: The recurrence, with the layer's weights.
            inputs: What its step takes, `(B, T, ...)`, as tensor or tree.
            initial_state: As `scan` gets it. None: zeros.
            mask: As `scan` gets it.
            reset: As `scan` gets it.

        Returns:
            Outputs and the final state, as `scan` returns them.
        """
        if initial_state is None:
            initial_state = self.or_zeros(None, keras.tree.flatten(inputs)[0])
            initial_state = initial_state[0] if len(initial_state) == 1 else initial_state
        return cell_scan(
            cell,
            inputs,
            initial_state,
            mask=mask,
            reset=reset,
            solver=self.solver,
            recompute=self.recompute,
        )

    def project(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Inputs times a weight. Products of matrices use the compute dtype."""
        dtype = self.compute_dtype
        # `ops.matmul` computes float64 in float32 on PyTorch, `ops.einsum` takes eight times as
        # long for one step.
        return cast(cast(inputs, dtype) @ cast(weight, dtype), dtype_of(inputs))

    # Streaming.

    def advance(
        self,
        inputs: Tensor,
        state: Any,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Some steps of a stream, in the order of time.

        Args:
            inputs: u, `(B, K, D)` for K steps.
            state: The state before them: that of the call before, or
                `layer.get_initial_state(B)`. A tensor, or a list of one for each state.
            mask: `(B, K)`, False at steps to skip.
            reset: `(B, K)`, True where a new sequence begins.

        Returns:
            Outputs of all these steps, `(B, K, F)`, and the state after them, a tensor, or a list
            if there are several, independent of `return_sequences` and `return_state`. The carried
            states of a stateful layer are neither read nor changed.

        Raises:
            ValueError: if the layer goes backwards or is not built, or a shape does not fit.
            TypeError: if the inputs are complex.
        """
        self.check_stream()
        inputs = ops.convert_to_tensor(inputs)
        states = self.as_states(state, inputs.shape[0], "state")
        outputs, final = self._run(inputs, states, mask, reset)
        return outputs, final[0] if len(final) == 1 else final

    def check_stream(self) -> None:
        """Raises ValueError if the layer needs later steps."""
        arguments.check_forwards(self)

    def step(self, inputs_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step of a stream: `advance` without the axis of time.

        Args:
            inputs_t: u(k), `(B, D)`.
            state: The state before it; for the first step `layer.get_initial_state(B)`.

        Returns:
            Outputs y(k), `(B, F)`, and the state after the step.

        Raises:
            ValueError: if the layer goes backwards, or a shape does not fit.
        """
        outputs, state = self.advance(ops.expand_dims(inputs_t, 1), state)
        return outputs[:, 0], state

    # What Keras asks.

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        mask = None
        if self.return_sequences and previous_mask is not None:
            mask = keras.tree.flatten(previous_mask)[0]
        if mask is not None and self.go_backwards:
            # The outputs come in the order of processing, and so does their mask.
            mask = ops.flip(mask, axis=1)
        if not self.return_state:
            return mask
        # How many states there are does not depend on the features, unknown before the layer is
        # built.
        states = self.state_size if self.built else self.state_specs(1)
        return [mask, *(None for _ in states)]

    def compute_output_shape(
        self, inputs_shape: Shape, initial_state_shape: Any = None
    ) -> Shape | tuple[Shape, ...]:
        batch, length, dim = arguments.sequence_shape(type(self).__name__, inputs_shape)
        size = self.output_size(dim)
        outputs = (batch, length, size) if self.return_sequences else (batch, size)
        if not self.return_state:
            return outputs
        return (outputs, *((batch, *shape) for shape, _ in self.typed_states(dim)))

    def compute_output_spec(
        self,
        inputs: keras.KerasTensor,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = None,
        inputs_mask: Any = None,
        reset: Any = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        if isinstance(reset, keras.KerasTensor):
            self._symbolic_resets.add(reset)
        shapes = self.compute_output_shape(inputs.shape)
        if not self.return_state:
            return keras.KerasTensor(shapes, self.compute_dtype)
        states = self.typed_states(inputs.shape[-1])
        dtypes = self.compute_dtype, *(dtype for _, dtype in states)
        return tuple(keras.KerasTensor(*pair) for pair in zip(shapes, dtypes, strict=True))

    def get_config(self) -> dict[str, Any]:
        solver = self.solver
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in _FLAGS},
            "solver": (
                solver if isinstance(solver, str) else keras.saving.serialize_keras_object(solver)
            ),
        }


_FLAGS = (
    "return_sequences",
    "return_state",
    "go_backwards",
    "stateful",
    "zero_output_for_mask",
    "recompute",
)


def _is_spec(spec: Any) -> bool:
    is_shape = isinstance(spec, StateSpec) and isinstance(spec.shape, (tuple, list))
    return is_shape and all(map(is_integer, spec.shape))


def _described(result: Any) -> str:
    kind = type(result).__name__
    if not isinstance(result, (tuple, list)):
        return f"a {kind}"
    if len(result) == 2:
        return f"({', '.join(type(part).__name__ for part in result)})"
    return f"a {kind} of {len(result)}"


def _takes(function: Any, name: str) -> bool:
    """Whether a function has an argument of this name, or takes any."""
    parameters = inspect.signature(function).parameters.values()
    return any(x.name == name or x.kind is x.VAR_KEYWORD for x in parameters)


def _as_state(value: Any, name: str, shape: Shape, dtype: str) -> Tensor:
    """A tensor of this shape and dtype: the value itself, if it is one."""
    is_one = ops.is_tensor(value) and tuple(value.shape) == shape
    if is_one and dtype_of(value) == dtype:
        return value
    return as_parameter(value, name, shape, dtype)
