"""Layers called without `Layer.__call__` give what they give with it."""

import keras
import numpy as np
import pytest
from recurrent import to_numpy

from keras_coffee.layers.called import called


def inputs(dtype="float32"):
    return keras.ops.convert_to_tensor(np.linspace(-1, 1, 24).reshape(2, 3, 4), dtype)


class Doubling(keras.layers.Dense):
    def __call__(self, inputs):
        return 2 * super().__call__(inputs)


@pytest.mark.parametrize("kind", [keras.layers.Dense, Doubling])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_policies_and_own_classes_are_respected(kind, policy, dtype):
    layer = kind(5, dtype=policy)
    unbuilt, built = called(layer, inputs(dtype)), called(layer, inputs(dtype))
    expected = layer(inputs(dtype))
    for actual in (unbuilt, built):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(
            *(to_numpy(keras.ops.cast(x, "float32")) for x in (actual, expected))
        )


def test_a_quantized_layer_stays_quantized():
    layer = keras.layers.Dense(5)
    layer.build((None, None, 4))
    layer.quantize("int8")
    np.testing.assert_array_equal(to_numpy(called(layer, inputs())), to_numpy(layer(inputs())))


def test_integers_and_other_arguments_are_handed_on():
    layer = keras.layers.ReversibleEmbedding(7, 4)
    tokens = keras.ops.convert_to_tensor([[1, 2]])
    np.testing.assert_array_equal(to_numpy(called(layer, tokens)), to_numpy(layer(tokens)))
    logits = called(layer, inputs(), reverse=True)
    np.testing.assert_array_equal(to_numpy(logits), to_numpy(layer(inputs(), reverse=True)))


def test_arrays_become_tensors():
    layer = keras.layers.Dense(5)
    assert keras.ops.is_tensor(called(layer, np.ones((2, 4), "float32")))
