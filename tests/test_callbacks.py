import keras
import numpy as np
import pytest

from keras_coffee.callbacks import StopAtTarget


class Scripted(keras.callbacks.Callback):
    """Gives the metric "quality" a value of its own choice at the end of every epoch."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        logs["quality"] = self.values[epoch]


def epochs_run(values, callback):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2, 1), "float32")
    callbacks = [Scripted(values), callback]
    history = model.fit(x, x, epochs=len(values), callbacks=callbacks, verbose=0)
    return len(history.epoch)


@pytest.mark.parametrize(
    "values, expected",
    [
        ([0.2, 0.9, 0.95], 2),
        ([0.2, 0.91, 0.1], 2),
        ([0.95, 0.1, 0.1], 1),
        ([0.1, 0.2, 0.89], 3),
        ([float("nan"), 0.2, 0.9, 0.1], 3),
    ],
    ids=["at the target", "above it", "in the first epoch", "never", "NaN is not good"],
)
def test_stops_after_the_first_epoch_that_reaches_the_target(values, expected):
    assert epochs_run(values, StopAtTarget("quality", 0.9)) == expected


def test_works_on_a_metric_of_validation():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.ones((2, 1), "float32")
    stop = StopAtTarget("val_mae", 0.0)
    history = model.fit(x, x, validation_data=(x, x), epochs=3, callbacks=[stop], verbose=0)
    assert len(history.epoch) == 1


def test_an_unknown_metric_is_an_error_that_names_the_known_ones():
    with pytest.raises(KeyError, match=r"monitors 'val_acc'.*\['loss', 'quality'\]"):
        epochs_run([0.5], StopAtTarget("val_acc", 0.9))
