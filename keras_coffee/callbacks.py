"""Callbacks for training: two rules of the paper, and a monitor of the solvers."""

import math
import warnings
from typing import Any

import keras
import numpy as np

from keras_coffee import solvers
from keras_coffee._checks import as_float
from keras_coffee.layers import CoffeeLayer
from keras_coffee.layers.graph import input_of, part_of
from keras_coffee.layers.kept_states import kept_states


class StopAtTarget(keras.callbacks.Callback):
    """Stops training after the first epoch in which a metric reaches a target.

    Args:
        monitor: Name of a metric that grows as the model gets better, for example
            `"val_accuracy"`.
        target: The value to reach.

    Raises:
        KeyError: at the end of an epoch, if there is no such metric. If the metric is one of
            validation and the epoch had none, it only warns.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse", metrics=["accuracy"])
        >>> x, y = np.ones((8, 1)), np.ones((8, 1))
        >>> history = model.fit(x, y, verbose=0, callbacks=[StopAtTarget("accuracy", 0.995)])

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", appendix "Experiment
        settings": training ends early once the performance is good.
    """

    def __init__(self, monitor: str, target: float):
        super().__init__()
        self.monitor = monitor
        self.target = target

    def on_epoch_end(self, epoch, logs=None):
        if _value_of(self, logs) >= self.target:
            self.model.stop_training = True


class LowerLearningRate(keras.callbacks.Callback):
    """Lowers the learning rate after the first epoch in which a metric is below a threshold.

    It is never raised again, and a lower rate is kept. Training restored from a backup continues
    with the reached rate, which is saved with the optimizer.

    Args:
        learning_rate: Positive number, the rate from then on.
        below: The threshold.
        monitor: Name of a metric that falls as the model gets better. Defaults to `"loss"`, the
            mean over the epoch's training batches.

    Raises:
        ValueError: if `learning_rate` is not a positive number.
        KeyError: as for `StopAtTarget`.
        TypeError: by Keras, when the rate is to be lowered and the optimizer follows a
            `LearningRateSchedule`.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.Adam(0.01), loss="mse")
        >>> x, y = np.zeros((8, 1)), np.zeros((8, 1))
        >>> lower = LowerLearningRate(0.005, below=0.45)
        >>> history = model.fit(x, y, verbose=0, callbacks=[lower])
        >>> round(float(model.optimizer.learning_rate), 6)
        0.005

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", appendix "MNIST
        Architecture and Results": 0.01, reduced to 0.005 when the training loss fell below 0.450.
    """

    def __init__(self, learning_rate: float, below: float, monitor: str = "loss"):
        super().__init__()
        # An array or tensor may hold the number.
        if not 0 < as_float(np.asarray(learning_rate)[()]) < math.inf:
            raise ValueError(
                f"`learning_rate` must be a positive number, received {learning_rate!r}."
            )
        self.learning_rate = learning_rate
        self.below = below
        self.monitor = monitor

    def on_epoch_end(self, epoch, logs=None):
        if _value_of(self, logs) < self.below:
            rate = float(self.model.optimizer.learning_rate)
            self.model.optimizer.learning_rate = min(rate, self.learning_rate)


class SolverMonitor(keras.callbacks.Callback):
    """Logs at the end of each epoch how a layer is solved in parallel on given data.

    Adds to the logs, and so to the history and to other callbacks that come later, for a layer
    called `coffee`: `coffee_iterations`, the most that any window of any sequence took;
    `coffee_residual`, the largest; `coffee_converged`, the fraction of sequences in which every
    window converged. Growing iterations mean that the layer learns to remember for longer than its
    windows. Masks, resets, an initial state and the direction are those of the layer in the model;
    a stateful layer starts from its present state, which does not change. On PyTorch the dropout
    that follows draws other numbers than without it, as after each `model.predict`.

    Args:
        layer: A `CoffeeLayer` of the model that is trained.
        data: Inputs of the model, a batch of them, as for `model.predict`.
        solver: A solver that iterates, as for `CoffeeLayer`. None, the default: that of the layer.
        batch_size: As for `model.predict`.

    Raises:
        TypeError: if the layer is not a `CoffeeLayer`.
        ValueError: if there is no such solver, or it does not iterate; at the start of training, if
            the model does not have the layer, or is not a Functional or Sequential model; at the
            end of the first epoch at the latest, if the layer was called in another model before.

    Example:
        >>> model = keras.Sequential([keras.Input((20, 3)), CoffeeLayer(4, solver="newton")])
        >>> model.compile(loss="mse")
        >>> x = np.ones((8, 20, 3))
        >>> monitor = SolverMonitor(model.layers[0], x)
        >>> history = model.fit(x, x, verbose=0, callbacks=[monitor]).history
        >>> history[f"{model.layers[0].name}_converged"]
        [1.0]
    """

    def __init__(self, layer: Any, data: Any, solver: Any = None, batch_size: int | None = None):
        super().__init__()
        if not isinstance(layer, CoffeeLayer):
            raise TypeError(
                f"SolverMonitor watches a CoffeeLayer, received {type(layer).__name__}. No other "
                "layer iterates."
            )
        self.layer = layer
        self.data = data
        self.solver = solvers.get(layer.solver if solver is None else solver, layer.KIND)
        if not isinstance(self.solver, solvers.Newton | solvers.Elk):
            raise ValueError(
                "SolverMonitor watches iterations, and the solver "
                f'{solver or layer.solver!r} of a CoffeeLayer has none. Pass solver="newton".'
            )
        self.batch_size = batch_size
        self._probe: Any = None

    def on_train_begin(self, logs=None):
        model = self.model
        is_built = hasattr(model, "inputs")
        if not (is_built or isinstance(model, keras.Sequential)):
            raise ValueError(
                "SolverMonitor watches a layer of a Functional or Sequential model, received "
                f"{type(model).__name__}. Make the model of the layers' calls on keras.Input."
            )
        if self.layer not in model.layers:
            raise ValueError(
                f"SolverMonitor watches the layer {self.layer.name!r}, which is not among "
                f"model.layers of {model.name!r}. Give it a layer of the model that is trained."
            )
        # A Sequential without keras.Input may know its inputs only after the first step.
        self._probe = self._part() if is_built else None

    def _part(self) -> keras.Model:
        found = _Probe(self.layer, self.solver)(**self.layer.symbolic_arguments())
        return part_of(self.model, self.layer, input_of(self.model), found)

    def on_epoch_end(self, epoch, logs=None):
        self._probe = self._probe or self._part()
        with kept_states(self._probe):
            iterations, residual, converged = self._probe.predict(
                self.data, batch_size=self.batch_size, verbose=0
            )
        if logs is not None:
            logs[f"{self.layer.name}_iterations"] = int(iterations.max())
            logs[f"{self.layer.name}_residual"] = float(residual.max())
            logs[f"{self.layer.name}_converged"] = float(converged.mean())


class _Probe(keras.layers.Layer):
    """Solves a layer for the inputs that it gets."""

    def __init__(self, layer, solver):
        super().__init__()
        # Keras would round a state to the compute dtype.
        self.autocast = False
        self.supports_masking = True
        self.watched = layer
        self.solver = solver

    def call(self, inputs, initial_state=None, mask=None, inputs_mask=None, reset=None):
        # `inputs_mask` is where Keras puts the mask of the inputs if there is another tensor too.
        mask = inputs_mask if mask is None else mask
        state = self.watched.states if initial_state is None else initial_state
        inputs, mask, reset = self.watched.in_order(inputs, mask, reset)
        return self.watched.solve(inputs, state, mask, solver=self.solver, reset=reset)[1:]

    def compute_mask(self, inputs, previous_mask):
        return [None] * 3

    def compute_output_spec(
        self, inputs, initial_state=None, mask=None, inputs_mask=None, reset=None
    ):
        batch = inputs.shape[:1]
        dtypes = "int32", self.watched.state_dtype, "bool"
        return tuple(keras.KerasTensor(batch, dtype) for dtype in dtypes)


def _value_of(callback: Any, logs: dict[str, Any] | None) -> float:
    """The metric that a callback monitors; NaN, which passes no threshold, without validation."""
    logs = logs or {}
    if callback.monitor in logs:
        return logs[callback.monitor]
    message = (
        f"{type(callback).__name__} monitors {callback.monitor!r}, which is not among the "
        f"metrics of this epoch: {sorted(logs)}."
    )
    # With `validation_freq` of `fit` it may come in a later epoch.
    if not callback.monitor.startswith("val_") or any(name.startswith("val_") for name in logs):
        raise KeyError(message)
    warnings.warn(message, stacklevel=2)
    return math.nan
