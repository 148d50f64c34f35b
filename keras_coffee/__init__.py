"""Recurrent state-space layers with feedback for Keras 3, on JAX, TensorFlow and PyTorch."""

import importlib as _importlib
from types import ModuleType as _ModuleType

from keras_coffee import backend as _backend  # noqa: F401  First: it says which backend is missing.
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


def __getattr__(name: str) -> _ModuleType:
    """`keras_coffee.visualization`, imported when it is asked for: it needs matplotlib."""
    if name == "visualization":
        return _importlib.import_module("keras_coffee.visualization")
    message = f"module {__name__!r} has no attribute {name!r}"
    if isinstance(getattr(layers, name, None), type):
        message += f". It is keras_coffee.layers.{name}"
    raise AttributeError(message)
