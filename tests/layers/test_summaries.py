"""What `model.summary()` and `keras.utils.plot_model` say of each layer, wrappers included."""

import re

import keras
import pytest

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.layers import LRU, FourDirections, MinGRU, SoftminLogits, SymbolEmbedding

SYMBOLS = SymbolEmbedding(9, 4)
# Layers behind an input, with the shape of their outputs and the number of weights.
CASES = {
    "CoffeeLayer": ((None, 3), [CoffeeLayer(2)], (None, None, 3), 18),
    "last output": ((None, 3), [CoffeeLayer(2, return_sequences=False)], (None, 3), 18),
    "S6Layer": ((None, 3), [S6Layer(2)], (None, None, 3), 27),
    "LinearizedS6Layer": ((None, 3), [LinearizedS6Layer(2)], (None, None, 3), 27),
    "MinGRU": ((None, 3), [MinGRU(4)], (None, None, 4), 32),
    "LRU": ((None, 3), [LRU(4, n=5)], (None, None, 4), 97),
    "Bidirectional": ((None, 3), [keras.layers.Bidirectional(CoffeeLayer(2))], (None, None, 6), 36),
    "TimeDistributed": (
        (5, None, 3),
        [keras.layers.TimeDistributed(CoffeeLayer(2, return_sequences=False))],
        (None, 5, 3),
        18,
    ),
    "FourDirections": ((6, 7), [FourDirections(CoffeeLayer(2))], (None, 26), 156),
    # The embedding's weights are counted once.
    "SoftminLogits": ((None,), [SYMBOLS, SoftminLogits(SYMBOLS, last=1)], (None, 1, 9), 36),
}


@pytest.fixture(params=CASES)
def case(request):
    shape, layers, output_shape, count = CASES[request.param]
    model = keras.Sequential([keras.Input(shape, dtype="float32" if shape[1:] else "int32")])
    for layer in layers:
        model.add(layer)
    return model, output_shape, count


def test_the_summary_has_shapes_and_parameters(case):
    model, output_shape, count = case
    lines = []
    model.summary(print_fn=lines.append)
    text = "\n".join(lines)
    # Between its rules: a name or a shape may take several lines.
    row = next(
        row for row in re.split("[├└]", text) if f"({type(model.layers[-1]).__name__})" in row
    )
    assert str(output_shape) in row
    assert re.search(rf"Total params: {count} ", text)
    assert "unbuilt" not in text


def test_the_diagram_has_a_box_for_each_layer_with_its_shapes(case):
    model, output_shape, _ = case
    diagram = keras.utils.model_to_dot(
        model, show_shapes=True, show_dtype=True, show_layer_names=True, show_trainable=True
    )
    boxes = [node.get_label() for node in diagram.get_nodes() if node.get_label()]
    assert len(boxes) == len(model.layers)
    assert type(model.layers[-1]).__name__ in boxes[-1]
    assert str(output_shape) in boxes[-1]
    assert "?" not in boxes[-1]


def test_a_layer_that_returns_its_state_shows_both_shapes():
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, CoffeeLayer(2, return_state=True)(inputs))
    lines = []
    model.summary(print_fn=lines.append)
    assert "(None, None, 3)" in "\n".join(lines)
    assert "(None, 3, 2)" in "\n".join(lines)
