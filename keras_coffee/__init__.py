"""Recurrent state-space layers with feedback for Keras 3, on JAX, TensorFlow and PyTorch."""

from keras_coffee import callbacks as callbacks
from keras_coffee import cells as cells
from keras_coffee import constraints as constraints
from keras_coffee import datasets as datasets
from keras_coffee import diagnostics as diagnostics
from keras_coffee import initializers as initializers
from keras_coffee import layers as layers
from keras_coffee import models as models
from keras_coffee import ops as ops
from keras_coffee import solvers as solvers
from keras_coffee._version import __version__ as __version__
from keras_coffee.layers import CoffeeLayer as CoffeeLayer
from keras_coffee.layers import LinearizedS6Layer as LinearizedS6Layer
from keras_coffee.layers import S6Layer as S6Layer
from keras_coffee.streaming import Stream as Stream
