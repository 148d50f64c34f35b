"""The same model around any recurrent layer."""

import keras
from series import PADDING


def swap(layer, series, n=64):
    """`layer(n)` in the place of `GRU(n)`: the sequence, the layer, a Dense."""
    inputs, hidden = _begin(series)
    return _end(inputs, layer(n, return_sequences=False)(hidden), series)


def blocks(depth, layer, series, n=8, width=32):
    """`depth` residual blocks of `layer(n)`, of equal width, and the last step."""
    inputs, hidden = _begin(series)
    hidden = keras.layers.Dense(width)(hidden)
    for block in range(depth):
        last = block == depth - 1
        mixed = layer(n, width=width)(keras.layers.LayerNormalization()(hidden))
        hidden = keras.layers.Add()([hidden, mixed])
    return _end(inputs, LastStep()(hidden), series)
