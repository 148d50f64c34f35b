"""Training rules of the paper that Keras has no callback for."""

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
