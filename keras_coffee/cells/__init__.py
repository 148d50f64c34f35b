"""The mathematics of one step: what the recurrences are, without loops."""

from keras_coffee.cells.coffee import CoffeeCell as CoffeeCell
from keras_coffee.cells.readout import read_state as read_state
from keras_coffee.cells.selective import SelectiveCell as SelectiveCell
