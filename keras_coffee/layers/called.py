"""Calls of layers that are not the library's own."""

from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.ops.arguments import dtype_of


def called(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
    """What a layer gives for tensors without masks.

    `Layer.__call__` takes several times as long as a small layer itself. If it would only call
    `call`, that is called directly.
    """
    return layer.call(*args, **kwargs) if _is_plain(layer, args) else layer(*args, **kwargs)


def _is_plain(layer: keras.layers.Layer, args: tuple[Any, ...]) -> bool:
    policy = layer.dtype_policy
    return (
        layer.built
        and type(layer) in _PLAIN
        and policy.quantization_mode is None
        and policy.compute_dtype == policy.variable_dtype
        and all(ops.is_tensor(x) and _is_in(policy.compute_dtype, x) for x in args)
        and keras.distribution.distribution() is None
    )


def _is_in(dtype: str, x: Tensor) -> bool:
    """Whether Keras would leave a tensor as it is: it casts floating-point numbers alone."""
    own = dtype_of(x)
    return own == dtype or own.startswith(("int", "uint", "bool"))


# The same in training and inference. No classes that derive from them.
_PLAIN = frozenset(
    getattr(keras.layers, name)
    for name in (
        "Dense",
        "Embedding",
        "LayerNormalization",
        "RMSNormalization",
        "ReversibleEmbedding",
    )
    if hasattr(keras.layers, name)
)
