"""The same seed gives the same training, bit for bit, and so does one that was interrupted."""

import keras
import numpy as np
import pytest
from recurrent import WITH_LINEARIZED_S6, make, random_inputs

BATCH, LENGTH, DIM = 2, 9, 3
# Three batches.
INPUTS = random_inputs(3 * BATCH, LENGTH, DIM)
TARGETS = 0.5 * INPUTS
EPOCHS = 4


def compiled(name, stateful, seed=0, dropout=0.0):
    keras.utils.set_random_seed(seed)
    layers = [make(name, stateful=stateful), keras.layers.Dropout(dropout), keras.layers.Dense(DIM)]
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, LENGTH, DIM)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(model, *callbacks, shuffle=False):
    return model.fit(
        INPUTS,
        TARGETS,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=shuffle,
        verbose=0,
        callbacks=list(callbacks),
    )


def trained(name):
    model = compiled(name, stateful=False, dropout=0.25)
    fit(model, shuffle=True)
    return model.get_weights()


@pytest.mark.parametrize("name", WITH_LINEARIZED_S6)
def test_two_trainings_with_one_seed_give_identical_weights(name):
    start = compiled(name, stateful=False).get_weights()
    for a, b, before in zip(trained(name), trained(name), start, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != before).any()


class Interruption(keras.callbacks.Callback):
    """As when a process is killed in the middle of the third epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 2 and batch == 1:
            raise KeyboardInterrupt

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


@pytest.mark.parametrize(
    "name, stateful", [("coffee-all", False), *((name, True) for name in WITH_LINEARIZED_S6)]
)
def test_an_interrupted_fit_continues_to_the_weights_of_an_uninterrupted_one(
    name, stateful, tmp_path
):
    # At the end of an epoch Keras saves the weights of layers and optimizer. States of its own
    # recurrent layers are none of them, and neither are the random states of its dropout.
    whole = compiled(name, stateful)
    fit(whole)

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(KeyboardInterrupt):
        fit(compiled(name, stateful), backup(), Interruption())
    # Another process: other weights, another state.
    again = compiled(name, stateful, seed=1)
    again.set_weights([weight + 0.1 for weight in again.get_weights()])
    history = fit(again, backup())
    assert history.epoch == [2, 3]
    for actual, expected in zip(again.weights, whole.weights, strict=True):
        pair = (keras.ops.convert_to_numpy(w) for w in (actual, expected))
        np.testing.assert_array_equal(*pair, err_msg=actual.path)
