"""What a type checker sees of the installed package; `mypy --strict` passes on this file."""

from typing import assert_type

import keras

import keras_coffee
from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer, Stream
from keras_coffee.callbacks import LowerLearningRate, StopAtTarget
from keras_coffee.datasets import InductionHead
from keras_coffee.layers import FourDirections, SoftminLogits, SymbolEmbedding
from keras_coffee.solvers import Elk, Newton

layer = CoffeeLayer(
    n=8,
    output_filter=True,
    solver=Newton(),
    return_sequences=True,
    gate_initializer="ones",
    readout_constraint=keras.constraints.MaxNorm(1.0),
    name="context",
    dtype="mixed_bfloat16",
)
assert_type(layer, CoffeeLayer)
assert_type(S6Layer(4, solver="associative"), S6Layer)
assert_type(LinearizedS6Layer(4), LinearizedS6Layer)
assert_type(FourDirections(CoffeeLayer(2)), FourDirections)
symbols = SymbolEmbedding(vocabulary_size=9, dim=16, unit_symbol=0)
model = keras.Sequential([symbols, layer, SoftminLogits(symbols, last=1)])
assert_type(Stream(model), Stream)
rules = [StopAtTarget("val_accuracy", 0.99), LowerLearningRate(0.1, 0.005)]
task = InductionHead(length=8, batch_size=4, steps_per_epoch=2)
assert_type(keras_coffee.__version__, str)

# Mistakes are errors: were they none, strict mypy would call these comments unused.
CoffeeLayer("eight")  # type: ignore[arg-type]
CoffeeLayer(n=8, return_sequence=False)  # type: ignore[call-arg]
CoffeeLayer(n=8, return_sequences="no")  # type: ignore[arg-type]
CoffeeLayer(n=8, gate_initializer=3)  # type: ignore[arg-type]
CoffeeLayer(n=8, trainable="no")  # type: ignore[arg-type]
S6Layer(4, units=3)  # type: ignore[call-arg]
CoffeeLayer(n=8, feedback="sigmoidal")  # type: ignore[arg-type]
SoftminLogits(symbols, distance="manhattan")  # type: ignore[arg-type]
S6Layer()  # type: ignore[call-arg]
Elk(window=0.5)  # type: ignore[arg-type]
InductionHead(length="8")  # type: ignore[arg-type]
