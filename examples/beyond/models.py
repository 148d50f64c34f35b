"""The same models around any recurrent layer, which is made by `layer(n, **arguments)`."""

import keras
from keras import ops
from series import PADDING

from keras_coffee import CoffeeLayer, S6Layer

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
    """`layer(64)` in the place of `GRU(64)`."""
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
