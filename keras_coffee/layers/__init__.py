"""Layers."""

from keras_coffee.layers.coffee import CoffeeLayer as CoffeeLayer
from keras_coffee.layers.four_directions import FourDirections as FourDirections
from keras_coffee.layers.linearized_s6 import LinearizedS6Layer as LinearizedS6Layer
from keras_coffee.layers.s6 import S6Layer as S6Layer
from keras_coffee.layers.softmin_logits import SoftminLogits as SoftminLogits
from keras_coffee.layers.symbol_embedding import SymbolEmbedding as SymbolEmbedding
