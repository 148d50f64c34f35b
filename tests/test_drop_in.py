"""Scripts that people have for `keras.layers.GRU`, with only the layer's name changed.

They say `return_sequences` either way, and their embeddings are as wide as their GRUs.

Their shapes are those of Keras' guides: a text classifier, a stateful forecaster, a seq2seq model
with its step-by-step decoder, and a stack. Each runs with GRU itself first; with every layer on
PyTorch and at night, by day elsewhere with two of them, each of which is in two scripts.
"""

import keras
import numpy as np
import pytest
from nightly import IS_THOROUGH

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.layers import MinGRU

BACKEND = keras.config.backend()
LAYERS = (keras.layers.GRU, CoffeeLayer, S6Layer, LinearizedS6Layer, MinGRU)
# Where each script is compiled for each layer.
BY_DAY = {
    "test_text_classifier": (CoffeeLayer, MinGRU),
    "test_stateful_forecaster": (CoffeeLayer, LinearizedS6Layer),
    "test_sequence_to_sequence": (LinearizedS6Layer, S6Layer),
    "test_a_stack": (S6Layer, MinGRU),
}
# The size of GRU's state. Some of ours keep as many features as come in, with as many states each.
UNITS = 4
BATCH, LENGTH = 4, 6


@pytest.fixture(params=LAYERS, ids=lambda layer: layer.__name__)
def layer_class(request):
    if not IS_THOROUGH and request.param not in BY_DAY[request.function.__name__]:
        pytest.skip("takes long to compile; the script is tried with it on PyTorch")
    keras.utils.set_random_seed(0)
    return request.param


def tokens(*shape):
    """Numbers from 1 to 9, with zeros at the end."""
    numbers = np.random.default_rng(0).integers(1, 10, size=shape)
    numbers[::2, -2:] = 0
    return numbers


def test_text_classifier(layer_class):
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(10, UNITS, mask_zero=True),
            keras.layers.Bidirectional(layer_class(UNITS, return_sequences=False)),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    texts, labels = tokens(BATCH, LENGTH), np.array([0, 1, 1, 0])
    losses = model.fit(texts, labels, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert model.predict(texts, verbose=0).shape == (BATCH, 1)


class ResetStates(keras.callbacks.Callback):
    """What every stateful script has."""

    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model.layers:
            if hasattr(layer, "reset_states"):
                layer.reset_states()


def test_stateful_forecaster(layer_class):
    if layer_class is keras.layers.GRU and BACKEND == "torch":
        pytest.skip("GRU changes its state in place, and backward fails on PyTorch")
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(BATCH, LENGTH, UNITS)),
            layer_class(UNITS, return_sequences=False, stateful=True),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    # Four long series, each cut into windows that follow one another from batch to batch.
    steps = np.arange(3 * LENGTH)[:, None] * np.array([0.3, 0.5, 0.7, 1.1])
    series = np.stack([np.sin(steps + phase) for phase in range(BATCH)])
    windows = np.concatenate(np.split(series, 3, axis=1)).astype("float32")
    targets = windows[:, -1, :1]
    losses = model.fit(
        windows,
        targets,
        batch_size=BATCH,
        epochs=20,
        shuffle=False,
        verbose=0,
        callbacks=[ResetStates()],
    ).history["loss"]
    assert losses[-1] < losses[0]
    first, second = (model.predict(windows[:BATCH], verbose=0) for _ in range(2))
    if layer_class is keras.layers.GRU and BACKEND == "jax":
        # Its state stays zero inside of `fit` and `predict`: the script runs, for nothing.
        np.testing.assert_array_equal(first, second)
    else:
        assert not np.allclose(first, second)
    model.layers[0].reset_states()
    again = model.predict(windows[:BATCH], verbose=0)
    model.layers[0].reset_states()
    np.testing.assert_array_equal(model.predict(windows[:BATCH], verbose=0), again)


def test_sequence_to_sequence(layer_class):
    # Training with the true previous token, then a decoder that is fed with its own output.
    encoder = layer_class(UNITS, return_sequences=False, return_state=True)
    decoder = layer_class(UNITS, return_sequences=True, return_state=True)
    embedding = keras.layers.Embedding(10, UNITS, mask_zero=True)
    dense = keras.layers.Dense(10, activation="softmax")

    encoder_inputs = keras.Input((None,), dtype="int32")
    decoder_inputs = keras.Input((None,), dtype="int32")
    _, state = encoder(embedding(encoder_inputs))
    decoded, _ = decoder(embedding(decoder_inputs), initial_state=state)
    model = keras.Model([encoder_inputs, decoder_inputs], dense(decoded))
    model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    source, target = tokens(BATCH, LENGTH), tokens(BATCH, LENGTH + 1)[:, ::-1]
    pair = [source, target[:, :-1]]
    losses = model.fit(pair, target[:, 1:], epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]

    encoder_model = keras.Model(encoder_inputs, state)
    state_input = keras.Input(state.shape[1:])
    decoded, new_state = decoder(embedding(decoder_inputs), initial_state=[state_input])
    decoder_model = keras.Model([decoder_inputs, state_input], [dense(decoded), new_state])
    exact = model.predict(pair, verbose=0)
    state = encoder_model.predict(source, verbose=0)
    # A decoder that gets one token at a time sees no padding before the first one that counts.
    last = target[:, 2:-1]
    for k in range(2):
        _, state = decoder_model.predict([target[:, k : k + 1], state], verbose=0)
    for k in range(last.shape[1]):
        scores, state = decoder_model.predict([last[:, k : k + 1], state], verbose=0)
        np.testing.assert_allclose(scores[:, 0], exact[:, k + 2], rtol=1e-4, atol=1e-5)


def test_a_stack(layer_class):
    model = keras.Sequential(
        [
            keras.Input((None, UNITS)),
            layer_class(UNITS, return_sequences=True),
            keras.layers.LayerNormalization(),
            layer_class(UNITS, return_sequences=True, go_backwards=True),
            # Without normalization S6, whose outputs are cubic in its inputs, would overflow.
            keras.layers.LayerNormalization(),
            layer_class(UNITS, return_sequences=False),
            keras.layers.Dense(3),
        ]
    )
    model.compile("adam", "mse")
    inputs = np.random.default_rng(0).normal(size=(BATCH, LENGTH, UNITS))
    losses = model.fit(inputs, np.ones((BATCH, 3)), epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert model.predict(inputs, verbose=0).shape == (BATCH, 3)
