"""Layers."""

from keras_coffee.layers.block import Block as Block
from keras_coffee.layers.causal_conv import CausalConv1D as CausalConv1D
from keras_coffee.layers.coffee import CoffeeLayer as CoffeeLayer
from keras_coffee.layers.declared_weights import WeightSpec as WeightSpec
from keras_coffee.layers.four_directions import FourDirections as FourDirections
from keras_coffee.layers.linearized_s6 import LinearizedS6Layer as LinearizedS6Layer
from keras_coffee.layers.lru import LRU as LRU
from keras_coffee.layers.mamba_mixer import MambaMixer as MambaMixer
from keras_coffee.layers.min_gru import MinGRU as MinGRU
from keras_coffee.layers.recurrent import RecurrentLayer as RecurrentLayer
from keras_coffee.layers.recurrent import StateSpec as StateSpec
from keras_coffee.layers.s6 import S6Layer as S6Layer
from keras_coffee.layers.softmin_logits import SoftminLogits as SoftminLogits
from keras_coffee.layers.state_space import StateSpaceLayer as StateSpaceLayer
from keras_coffee.layers.symbol_embedding import SymbolEmbedding as SymbolEmbedding
