import keras
import numpy as np
import pytest

from keras_coffee.callbacks import LowerLearningRate, StopAtTarget


class Scripted(keras.callbacks.Callback):
    """Gives the metric "quality" a value of its own choice at the end of every epoch."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        logs["quality"] = self.values[epoch]


def epochs_run(values, callback):
    return len(rates_of(values, callback))


def rates_of(values, callback, learning_rate=0.01):
    """The learning rate after each epoch."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(learning_rate), "mse")
    rates = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    x = np.ones((2, 1), "float32")
    callbacks = [Scripted(values), callback, Watch()]
    model.fit(x, x, epochs=len(values), callbacks=callbacks, verbose=0)
    return rates


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
    with pytest.raises(KeyError, match=r"monitors 'acc'.*\['loss', 'quality'\]"):
        epochs_run([0.5], StopAtTarget("acc", 0.9))


def test_an_epoch_without_validation_is_passed_over():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.ones((2, 1), "float32")
    settings = {"validation_data": (x, x), "validation_freq": 2, "epochs": 4, "verbose": 0}
    lower = LowerLearningRate(0.001, below=np.inf, monitor="val_loss")
    with pytest.warns(UserWarning, match="monitors 'val_.*of this epoch"):
        history = model.fit(x, x, callbacks=[lower, StopAtTarget("val_mae", 0.0)], **settings)
    assert len(history.epoch) == 2
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001)
    with (
        pytest.warns(UserWarning, match="StopAtTarget monitors 'val_acc'"),
        pytest.raises(KeyError, match="StopAtTarget monitors 'val_acc'.*'val_mae'"),
    ):
        model.fit(x, x, callbacks=[StopAtTarget("val_acc", 1.0)], **settings)


@pytest.mark.parametrize(
    "values, expected",
    [
        ([0.9, 0.4, 0.3], [0.01, 0.005, 0.005]),
        ([0.4, 0.9, 0.3], [0.005, 0.005, 0.005]),
        ([0.45, 0.46, 0.9], [0.01, 0.01, 0.01]),
        ([float("nan"), 0.9, 0.1], [0.01, 0.01, 0.005]),
    ],
    ids=["once", "never raised again", "not at the threshold", "NaN is not below"],
)
def test_the_learning_rate_is_lowered_once_the_metric_is_below(values, expected):
    lower = LowerLearningRate(0.005, below=0.45, monitor="quality")
    np.testing.assert_allclose(rates_of(values, lower), expected, rtol=1e-6)


def test_a_rate_that_is_lower_already_stays():
    lower = LowerLearningRate(0.005, below=0.45, monitor="quality")
    rates = rates_of([0.1, 0.1], lower, learning_rate=0.001)
    np.testing.assert_allclose(rates, [0.001, 0.001], rtol=1e-6)


def test_the_training_loss_is_what_is_monitored_by_default():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    x = np.ones((2, 1), "float32")
    for target, expected in ((x + 0.5, 1e-6), (x + 0.7, 1e-6), (x + 0.1, 1e-7)):
        model.fit(x, target, callbacks=[LowerLearningRate(1e-7, below=0.2)], verbose=0)
        rate = float(model.optimizer.learning_rate)
        # The first loss, 0.25, and the second, 0.49, are above the threshold; the third is not.
        assert rate == pytest.approx(expected)


def test_the_lowered_rate_is_restored_with_the_optimizer(tmp_path):
    def model():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    x = np.zeros((2, 1), "float32")
    trained, restored = model(), model()
    trained.fit(x, x, callbacks=[LowerLearningRate(0.005, below=0.45)], verbose=0)
    trained.save_weights(tmp_path / "model.weights.h5")
    restored.optimizer.build(restored.trainable_variables)
    restored.load_weights(tmp_path / "model.weights.h5")
    assert float(restored.optimizer.learning_rate) == pytest.approx(0.005)


@pytest.mark.parametrize("rate", [0, -0.1, float("nan"), float("inf"), "a", "0.5", None])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="`learning_rate` must be a positive number, received"):
        LowerLearningRate(rate, below=0.45)


def test_a_schedule_is_refused_by_keras():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    lower = LowerLearningRate(0.005, below=0.45, monitor="quality")
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        rates_of([0.1], lower, learning_rate=schedule)


def test_the_rate_of_an_optimizer_that_scales_the_loss_is_lowered():
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(scaling, "mse")
    x = np.zeros((2, 1), "float32")
    model.fit(x, x, callbacks=[LowerLearningRate(0.005, below=0.45)], verbose=0)
    assert float(scaling.inner_optimizer.learning_rate) == pytest.approx(0.005)


def test_an_unknown_metric_is_named_by_the_callback_that_monitors_it():
    with pytest.raises(KeyError, match=r"LowerLearningRate monitors 'error'.*\['loss', 'qual"):
        rates_of([0.5], LowerLearningRate(0.005, below=0.45, monitor="error"))
