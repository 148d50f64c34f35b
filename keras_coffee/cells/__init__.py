"""The mathematics of one step of each recurrence."""

from keras_coffee.cells.affine import AffineCell as AffineCell
from keras_coffee.cells.cell import Cell as Cell
from keras_coffee.cells.cell import LinearCell as LinearCell
from keras_coffee.cells.coffee import CoffeeCell as CoffeeCell
from keras_coffee.cells.elman import ElmanCell as ElmanCell
from keras_coffee.cells.gated import DiagonalGRUCell as DiagonalGRUCell
from keras_coffee.cells.lru import LRUCell as LRUCell
from keras_coffee.cells.masked import MaskedCell as MaskedCell
from keras_coffee.cells.masked import ResetCell as ResetCell
from keras_coffee.cells.min_gru import MinGRUCell as MinGRUCell
from keras_coffee.cells.selective import SelectiveCell as SelectiveCell
