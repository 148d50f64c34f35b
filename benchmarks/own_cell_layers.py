"""The recurrence of own_cell.py, as a cell of ours and as one for `keras.layers.RNN`."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_coffee.cells import Cell
from keras_coffee.layers import RecurrentLayer, StateSpec, WeightSpec


def advance(feedback, state, gate, candidate):
    z = ops.sigmoid(feedback * state + gate)
    return state + z * (candidate - state)


@dataclasses.dataclass(frozen=True)
class GatedCell(Cell):
    feedback: Any
    structure = "diagonal"
    broadcasts = True

    def step(self, state, inputs):
        return advance(self.feedback, state, *inputs)


class Gated(RecurrentLayer):
    WEIGHTS = {"feedback": WeightSpec(("units",), "ones")}

    def __init__(self, units: int):
        super().__init__()
        self.units = units

    def state_specs(self, dim):
        return [StateSpec((self.units,))]

    def output_size(self, dim):
        return self.units

    def scan(self, inputs, initial_state, mask):
        pair = tuple(ops.split(inputs, 2, axis=-1))
        return self.run_cell(GatedCell(self.feedback), pair, initial_state, mask)


class KerasCell(keras.layers.Layer):
    def __init__(self, units: int):
        super().__init__()
        self.state_size = self.output_size = units

    def build(self, input_shape):
        self.feedback = self.add_weight(shape=(self.state_size,), initializer="ones")

    def call(self, inputs, states):
        # One tensor a step is all that `keras.layers.RNN` takes.
        state = advance(self.feedback, states[0], *ops.split(inputs, 2, axis=-1))
        return state, [state]
