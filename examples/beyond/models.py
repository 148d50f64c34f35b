"""The same models around any recurrent layer, which is made by `layer(n, **arguments)`."""

import functools

import keras
from keras import ops
from series import PADDING

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.layers import LRU, MinGRU

WIDTH = 32  # of residual blocks


def gru(n, **arguments):
    """As wide as a block where it is in one, for there is no n then."""
    units = n if n == 64 else WIDTH
    return keras.layers.GRU(units, **{"return_sequences": True, **arguments})


def coffee(n, **arguments):
    return CoffeeLayer(n, **arguments)


def coffee_paper(n, **arguments):
    return CoffeeLayer(n, start="paper", **arguments)


def s6(n, **arguments):
    return S6Layer(n, **arguments)


def s6_paper(n, **arguments):
    return S6Layer(n, start="paper", **arguments)


def s6_mamba(n, **arguments):
    return S6Layer.mamba(n, **arguments)


LAYERS = {function.__name__: function for function in (gru, coffee, coffee_paper)}
LAYERS |= {function.__name__: function for function in (s6, s6_paper, s6_mamba)}


def swapped(layer, features, outputs):
    """`layer(64)` instead of `GRU(64)`."""
    inputs = keras.Input((None, features))
    hidden = layer(64, return_sequences=False)(keras.layers.Masking(PADDING)(inputs))
    return keras.Model(inputs, keras.layers.Dense(outputs)(hidden))


def blocks(depth):
    """`depth` residual blocks of `layer(8)`, and the last step."""

    def build(layer, features, outputs):
        inputs = keras.Input((None, features))
        hidden = keras.layers.Dense(WIDTH)(keras.layers.Masking(PADDING)(inputs))
        for _ in range(depth):
            normed = keras.layers.LayerNormalization()(hidden)
            hidden = keras.layers.Add()([hidden, layer(8)(normed)])
        return keras.Model(inputs, keras.layers.Dense(outputs)(LastStep()(hidden)))

    return build


MODELS = {"swapped": swapped, "two blocks": blocks(2), "four blocks": blocks(4)}


def sequences(layer):
    """The Keras layer as ours are by default."""
    return functools.partial(layer, return_sequences=True)


# Mixers of `gated`: how they are made from a size, and the sizes that give one block of WIDTH about
# 4,500 parameters, and those that give it 64 numbers as its state.
MIXERS = {
    "coffee": (CoffeeLayer, 15, 2),
    "filter": (functools.partial(CoffeeLayer, output_filter=True), 11, 2),
    "inputgate": (functools.partial(CoffeeLayer, input_gate="full"), 4, 2),
    "linearized": (LinearizedS6Layer, 4, 2),
    "mamba": (S6Layer.mamba, 13, 2),
    "mingru": (MinGRU, 27, 64),
    "lru": (lambda n: LRU(n, n), 18, 32),
    "gru": (sequences(keras.layers.GRU), 16, 64),
    "lstm": (sequences(keras.layers.LSTM), 14, 32),
}


def gated(mixers, vocabulary, classes):
    """Symbols to logits at each step, by residual blocks."""
    inputs = keras.Input((None,), dtype="int32")
    norm = functools.partial(keras.layers.RMSNormalization, epsilon=1e-5)
    hidden = gated_blocks(keras.layers.Embedding(vocabulary, WIDTH)(inputs), mixers, norm)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


def gated_series(mixers, features, classes):
    """Series to logits, by the same blocks and the mean over steps.

    Their norm is another one, because `RMSNormalization` hands on no mask.
    """
    inputs = keras.Input((None, features))
    hidden = keras.layers.Dense(WIDTH)(keras.layers.Masking(PADDING)(inputs))
    hidden = gated_blocks(hidden, mixers, keras.layers.LayerNormalization)
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(inputs, keras.layers.Dense(classes)(pooled))


def gated_blocks(hidden, mixers, norm):
    """As Mamba's, without its convolution: norm, projections, mixer and gate."""
    for mixer in mixers:
        normed = norm()(hidden)
        mixed = mixer(keras.layers.Dense(WIDTH, use_bias=False)(normed))
        gate = keras.layers.Dense(mixed.shape[-1], "silu", use_bias=False)(normed)
        product = keras.layers.Multiply()([mixed, gate])
        projected = keras.layers.Dense(WIDTH, use_bias=False)(product)
        hidden = keras.layers.Add()([hidden, projected])
    return norm()(hidden)


class LastStep(keras.layers.Layer):
    """The last step that counts, of sequences padded behind."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        if mask is None:
            return inputs[:, -1]
        last = ops.sum(ops.cast(mask, "int32"), axis=1) - 1
        return ops.take_along_axis(inputs, last[:, None, None], axis=1)[:, 0]

    def compute_mask(self, inputs, mask=None):
        return None
