"""What the recurrent layers share: the surface of Keras' own recurrent layers."""

import abc
from typing import Any, ClassVar

import keras
from keras import ops

from keras_coffee import backend, solvers
from keras_coffee._typing import Tensor
from keras_coffee.layers import arguments
from keras_coffee.layers.declared_weights import DeclaredWeights
from keras_coffee.ops import masking


class Recurrence(DeclaredWeights, abc.ABC):
    """A recurrence over time as a layer: `(B, T, D)` to `(B, T, D)`, or to the last `(B, D)`.

    Masks, states, statefulness and both directions are as in Keras' recurrent layers. A subclass
    lists its weights and computes in `scan`.
    """

    # Whether it is linear in its state, which decides what can solve it.
    KIND: ClassVar[solvers.Kind] = "linear"

    def __new__(cls, *args: Any, **kwargs: Any):
        arguments.refuse_units(cls.__name__, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        n: int,
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
        self.n = arguments.positive_integer("n", n)
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.zero_output_for_mask = zero_output_for_mask
        found = solvers.get(solver, self.KIND, recompute=recompute)
        self.solver = solver if isinstance(solver, str) else found
        self.recompute = recompute
        self._state = None

    @abc.abstractmethod
    def scan(
        self, inputs: Tensor, initial_state: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Outputs `(B, T, D)` and the final state `(B, D, n)`.

        The inputs are in `state_dtype`, with zeros at masked steps.
        """

    def build(self, inputs_shape, initial_state_shape=None):
        arguments.check_sequences(type(self).__name__, tuple(inputs_shape))
        batch, _, dim = inputs_shape
        self.add_declared_weights({"D": dim, "n": self.n})
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: dim})
        self.state_size = [(dim, self.n)]
        if self.stateful:
            self._build_state(batch, dim)

    def _build_state(self, batch, dim):
        if batch is None:
            raise ValueError(
                f"{self.name!r} is stateful and keeps a state for each sequence of a batch, so the "
                "size of the batch must be known. Give it as keras.Input(batch_shape=(batch, time, "
                "features))."
            )
        # A weight like the others: so every backend carries it through compiled steps and saves it.
        self._state = self.add_weight(
            name="state",
            shape=(batch, dim, self.n),
            dtype=self.state_dtype,
            initializer="zeros",
            trainable=False,
            autocast=False,
        )

    @property
    def state_dtype(self) -> str:
        """The dtype that the recurrence runs in, and of its states: float32 at least."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    @property
    def states(self):
        """The state carried from batch to batch, in a list, or None if there is none."""
        return None if self._state is None else [self._state]

    def get_initial_state(self, batch_size: int) -> list[Tensor]:
        """The state before the first step, zeros `(B, D, n)`, in a list as Keras has it."""
        return [ops.zeros((batch_size, *self._built_state_size()), self.state_dtype)]

    def _built_state_size(self):
        if not self.built:
            raise ValueError(
                f"The features of {self.name!r} are not known yet. Call or build the layer first."
            )
        return self.state_size[0]

    def reset_state(self) -> None:
        """Sets the carried state to zeros. Nothing happens if the layer is not stateful."""
        if self._state is not None:
            self._state.assign(ops.zeros(self._state.shape, self.state_dtype))

    reset_states = reset_state

    def save_own_variables(self, store):
        for key, weight in self._by_key().items():
            store[key] = weight

    def load_own_variables(self, store):
        weights, saved = self._by_key(), set(store.keys())
        state = weights.pop("state", None)
        # The state is not part of the match: a stateless layer takes the weights of a stateful one
        # and the other way round, and a layer for another batch starts from zeros.
        if saved - {"state"} != set(weights):
            raise ValueError(
                f"{self.name!r} has the weights {list(weights)}, but "
                f"{sorted(saved - {'state'})} were saved. Give the layer the arguments that it was "
                "saved with, and call or build it before."
            )
        for key, weight in weights.items():
            weight.assign(store[key])
        if state is not None:
            fits = "state" in saved and tuple(store["state"].shape) == tuple(state.shape)
            state.assign(store["state"] if fits else ops.zeros(state.shape, self.state_dtype))

    def _by_key(self):
        """Weights by name, which Keras saves by number: others of the same shape would fit."""
        weights = {name: getattr(self, name) for name in self.weight_specs() if self.built}
        return weights if self._state is None else {**weights, "state": self._state}

    def call(self, inputs, initial_state=None, mask=None, training=None, inputs_mask=None):
        # `inputs_mask` is where Keras puts the mask of the inputs if there is an initial state too.
        mask = inputs_mask if mask is None else mask
        state = self._initial_state(inputs, initial_state)
        outputs, final_state = self._run(inputs, state, mask)
        if self._state is not None:
            # A copy, since compiled steps may reuse the variable's memory while the caller holds
            # the state that is returned.
            self._state.assign(ops.copy(ops.stop_gradient(final_state)))
        if not self.return_sequences:
            outputs = outputs[:, -1]
        return (outputs, final_state) if self.return_state else outputs

    def _initial_state(self, inputs, given):
        if self._state is not None:
            self._check_carried_state(inputs.shape[0], self._state.shape[0])
        if given is None:
            # A copy, since the variable changes before a gradient is computed.
            return None if self._state is None else ops.copy(self._state.value)
        return arguments.single_state(given)

    def _check_carried_state(self, batch, size):
        if backend.is_converted_to_onnx():
            raise ValueError(
                f"{self.name!r} is stateful, and ONNX has nothing to keep a state in: every call "
                "of the file would start from the same one. Export the model with "
                "return_state=True and initial_state=, and hand the state on."
            )
        if batch not in (None, size):
            received = batch if isinstance(batch, int) else "unknown size"
            raise ValueError(
                f"{self.name!r} is stateful and keeps a state for a batch of {size} sequences, "
                f"received a batch of {received}. Drop batches of another size, or build a layer "
                "for this one."
            )

    def _run(self, inputs, state, mask):
        """Outputs in the compute dtype and the final state, in the order of processing."""
        # Complex inputs are left to the op, which refuses them: a cast would drop a part of them.
        if not keras.backend.standardize_dtype(inputs.dtype).startswith("complex"):
            inputs = ops.cast(ops.cast(inputs, self.compute_dtype), self.state_dtype)
        mask = masking.as_mask(mask, inputs)
        if self.go_backwards:
            inputs = ops.flip(inputs, axis=1)
            mask = None if mask is None else ops.flip(mask, axis=1)
        # The ops replace what stands at masked steps too, but only after some layers have
        # projected it.
        outputs, state = self.scan(masking.zero_masked(inputs, mask), state, mask)
        if self.zero_output_for_mask:
            outputs = masking.zero_masked(outputs, mask)
        return ops.cast(outputs, self.compute_dtype), state

    def project(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Inputs times a weight. A product of matrices is what the compute dtype is there for."""
        low = (ops.cast(x, self.compute_dtype) for x in (inputs, weight))
        # `ops.matmul` computes float64 in float32 on PyTorch.
        return ops.cast(ops.einsum("btd,dk->btk", *low), inputs.dtype)

    def advance(
        self, inputs: Tensor, state: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Some steps of a stream, in the order of time.

        Args:
            inputs: u, `(B, K, D)` for K steps.
            state: The state before them, `(B, D, n)`: that of the call before, or
                `layer.get_initial_state(B)`.
            mask: `(B, K)`, False where a step is passed over.

        Returns:
            Outputs of all these steps, `(B, K, D)`, and the state after them, `(B, D, n)`,
            whatever `return_sequences` and `return_state` say. The carried state of a stateful
            layer is neither read nor changed.

        Raises:
            ValueError: if the layer goes backwards or is not built, or a shape does not fit.
        """
        self.check_stream()
        inputs, (dim, _) = ops.convert_to_tensor(inputs), self._built_state_size()
        if len(inputs.shape) != 3 or inputs.shape[-1] != dim:
            raise ValueError(
                f"`inputs` of {self.name!r} must have shape (batch, time, {dim}), time being 1 for "
                f"a single step, received {tuple(inputs.shape)}."
            )
        return self._run(inputs, arguments.single_state(state), mask)

    def check_stream(self) -> None:
        """Raises ValueError if the layer needs more than the present and the past."""
        if self.go_backwards:
            raise ValueError(
                f"{self.name!r} goes backwards: its first output needs the last input, so it can't "
                "follow a stream."
            )

    def step(self, inputs_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of a stream: `advance` without the axis of time.

        Args:
            inputs_t: u(k), `(B, D)`.
            state: x(k-1), `(B, D, n)`; for the first step `layer.get_initial_state(B)`.

        Returns:
            Outputs y(k), `(B, D)`, and the state x(k), `(B, D, n)`.

        Raises:
            ValueError: if the layer goes backwards, or a shape does not fit.
        """
        outputs, state = self.advance(ops.expand_dims(inputs_t, 1), state)
        return outputs[:, 0], state

    def compute_mask(self, inputs, previous_mask):
        mask = None
        if self.return_sequences and previous_mask is not None:
            mask = keras.tree.flatten(previous_mask)[0]
        if mask is not None and self.go_backwards:
            # The outputs come in the order of processing, and so does their mask.
            mask = ops.flip(mask, axis=1)
        return [mask, None] if self.return_state else mask

    def compute_output_shape(self, inputs_shape, initial_state_shape=None):
        batch, length, dim = inputs_shape
        outputs = (batch, length, dim) if self.return_sequences else (batch, dim)
        return (outputs, (batch, dim, self.n)) if self.return_state else outputs

    def compute_output_spec(
        self, inputs, initial_state=None, mask=None, training=None, inputs_mask=None
    ):
        shapes = self.compute_output_shape(inputs.shape)
        if not self.return_state:
            return keras.KerasTensor(shapes, self.compute_dtype)
        dtypes = self.compute_dtype, self.state_dtype
        return tuple(keras.KerasTensor(*pair) for pair in zip(shapes, dtypes, strict=True))

    def get_config(self):
        solver = self.solver
        return {
            **super().get_config(),
            "n": self.n,
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
