"""Callbacks for training: a rule of the paper, and a look at the solvers."""

from typing import Any

import keras


class StopAtTarget(keras.callbacks.Callback):
    """Stops training after the first epoch in which a metric reaches a target.

    Args:
        monitor: Name of a metric that grows as the model gets better, for example
            `"val_accuracy"`.
        target: The value to reach.

    Raises:
        KeyError: at the end of an epoch, if there is no such metric.

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
        logs = logs or {}
        if self.monitor not in logs:
            raise KeyError(
                f"StopAtTarget monitors {self.monitor!r}, which is not among the metrics of this "
                f"training: {sorted(logs)}."
            )
        if logs[self.monitor] >= self.target:
            self.model.stop_training = True


class SolverMonitor(keras.callbacks.Callback):
    """Logs at the end of each epoch how a layer is solved in parallel on given data.

    Adds to the logs, and so to the history and to other callbacks that come later, for a layer
    called `coffee`: `coffee_iterations`, the most that any window of any sequence took;
    `coffee_residual`, the largest; `coffee_converged`, the part of the sequences of which no window
    had to be run one step after another. Growing iterations say that training makes the layer
    remember for longer than its windows.

    Args:
        layer: A `CoffeeLayer` of the model that is trained.
        data: Inputs of the model, a batch of them, as for `model.predict`.
        solver: As for `CoffeeLayer`. None: that of the layer.
        batch_size: As for `model.predict`.

    Raises:
        ValueError: at the start of training, if the model does not have the layer, or is not a
            Functional or Sequential model.

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
        self.layer = layer
        self.data = data
        self.solver = solver
        self.batch_size = batch_size
        self._probe: Any = None

    def on_train_begin(self, logs=None):
        if self.layer not in getattr(self.model, "layers", ()) or not hasattr(self.model, "inputs"):
            raise ValueError(
                f"SolverMonitor watches the layer {self.layer.name!r}, which is not among "
                f"model.layers of the model that is trained, or the model is neither Functional "
                "nor Sequential."
            )
        probe = _Probe(self.layer, self.solver)
        # The first input alone: masks come with it.
        features = keras.tree.flatten(self.layer.input)[0]
        self._probe = keras.Model(self.model.inputs, probe(features))

    def on_epoch_end(self, epoch, logs=None):
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
        self.supports_masking = True
        self.watched = layer
        self.solver = solver

    def call(self, inputs, mask=None):
        return self.watched.solve(inputs, mask=mask, solver=self.solver)[1:]

    def compute_mask(self, inputs, previous_mask):
        return [None] * 3

    def compute_output_spec(self, inputs, mask=None):
        batch = inputs.shape[:1]
        dtypes = "int32", self.watched.state_dtype, "bool"
        return tuple(keras.KerasTensor(batch, dtype) for dtype in dtypes)
