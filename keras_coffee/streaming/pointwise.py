"""Layers and operations that treat each step separately in inference."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.layers.graph import arguments_of
from keras_coffee.layers.softmin_logits import SoftminLogits
from keras_coffee.layers.symbol_embedding import SymbolEmbedding
from keras_coffee.streaming.call import Call, has_time, symbols_of

# Where one has an axis, it must be another than those of the batch and of time. No classes that
# derive from them: their `call` may do anything.
_LAYERS = frozenset(
    [SoftminLogits, SymbolEmbedding]
    + [
        getattr(keras.layers, name)
        for name in (
            "Activation",
            "ActivityRegularization",
            "Add",
            "AlphaDropout",
            "Average",
            "BatchNormalization",
            "Concatenate",
            "Dense",
            "Dropout",
            "ELU",
            "Embedding",
            "GaussianDropout",
            "GaussianNoise",
            "Identity",
            "LayerNormalization",
            "LeakyReLU",
            "Masking",
            "Maximum",
            "Minimum",
            "Multiply",
            "Normalization",
            "RMSNormalization",
            "ReLU",
            "Rescaling",
            "ReversibleEmbedding",
            "Softmax",
            "SpatialDropout1D",
            "SpatialDropout2D",
            "SpatialDropout3D",
            "Subtract",
            "TimeDistributed",
            "UnitNormalization",
        )
        if hasattr(keras.layers, name)
    ]
)

# Operations of Keras, such as `x + y` makes in a Functional model; their classes are public by name
# alone.
_OPERATIONS = frozenset(
    """
    Abs Absolute Add All Any Cast Ceil Celu Clip Concatenate Cos Divide DivideNoNan Elu Equal
    Erf Exp Exp2 ExpandDims Expm1 Floor Gelu GetItem Glu Greater GreaterEqual HardSigmoid
    HardSilu HardTanh Identity Isfinite Isnan LayerNorm LeakyRelu Less LessEqual Log Log1p
    LogSigmoid LogSoftmax Logaddexp LogicalAnd LogicalNot LogicalOr Logsumexp Max Maximum Mean
    Min Minimum Mod Multiply NanToNum Negative Normalize NotEqual OneHot OnesLike Power
    Reciprocal Relu Relu6 RMSNorm Round Rsqrt Selu Sigmoid Sign Silu Sin Softmax Softplus
    Softsign Sparsemax Split Sqrt Square Squareplus Squeeze Stack StopGradient Subtract Sum Tan
    Tanh TrueDivide Var Where ZerosLike
    """.split()
)

_ADVICE = {
    "Conv1D": "A Conv1D can with padding='causal' and strides=1, channels last. ",
    "Flatten": "Put it into keras.layers.TimeDistributed. ",
    "Permute": "Put it into keras.layers.TimeDistributed. ",
    "Reshape": "Put it into keras.layers.TimeDistributed. ",
    "SoftminLogits": "A SoftminLogits can with last=1 or last=None. ",
    "Bidirectional": "Take the layer in it alone, which reads forwards. ",
}


def check(call: Call, declared: tuple[type, ...]) -> None:
    """Raises ValueError unless a `Call` treats each step separately.

    Args:
        call: A call of a layer or an operation, with symbolic tensors.
        declared: Classes that the user has declared to treat each step separately.
    """
    operation = call.operation
    inputs = symbols_of((call.args, call.kwargs))
    if not any(map(has_time, inputs)):
        return  # of what the whole stream so far has led to
    if not all(map(has_time, inputs)):
        raise ValueError(
            f"{operation.name!r} combines steps with a tensor that has no axis of time, which in a "
            "stream changes from step to step. Give every input an axis of time, and set "
            "return_sequences=True in recurrent layers."
        )
    if isinstance(operation, declared):
        return
    if _is_known(operation):
        _check_ranks(call)
        if _leaves_time_alone(call, inputs):
            check_activation(operation, inputs[0])
            return
    raise ValueError(
        f"{operation.name!r} of type {type(operation).__name__} may need other steps than the "
        f"present one, so a stream cannot run it. {_advice(operation)}"
    )


def is_last_step(call: Call, known: set[int]) -> bool:
    """Whether outputs `(B, 1, ...)` are the last step: of `SoftminLogits(last=1)`, or made of it.

    Args:
        call: A call of a layer or an operation, with symbolic tensors.
        known: The `id` of the symbolic tensors that are.
    """
    if not all(len(x.shape) > 2 and x.shape[1] == 1 for x in call.outputs):
        return False
    inputs = symbols_of((call.args, call.kwargs))
    if isinstance(call.operation, SoftminLogits) and has_time(inputs[0]):
        return True
    return any(id(x) in known for x in inputs)


def _check_ranks(call: Call) -> None:
    given = arguments_of(call.operation, call.args, call.kwargs)
    shapes = [tuple(x.shape) for x in symbols_of({k: x for k, x in given.items() if k != "mask"})]
    if len(set(map(len, shapes))) > 1:
        raise ValueError(
            f"{call.operation.name!r} combines tensors of the shapes {shapes}. Broadcasting would "
            "put the time of one on another axis. Give all the same number of axes, for example by "
            "keras.ops.expand_dims(x, -1)."
        )


def _advice(operation: Any) -> str:
    kind = type(operation).__name__
    if kind == "GetItem":
        return "For the last output, set return_sequences=False in the last recurrent layer."
    if hasattr(operation, "advance"):
        return "Its `call` is its own: give it an `advance` of its own, which does the same."
    # The classes of operations are not public.
    own = "" if isinstance(operation, keras.layers.Layer) else "call it in a layer of your own and "
    return (
        f"{_ADVICE.get(kind, '')}If it treats each step separately, {own}list its class: "
        "Stream(model, pointwise=[...])."
    )


def _is_known(operation: Any) -> bool:
    if type(operation) is keras.layers.Conv1D:
        return operation.kernel_size == operation.strides == (1,)
    if isinstance(operation, keras.layers.Layer):
        return type(operation) in _LAYERS
    kind = type(operation)
    return kind.__module__.startswith("keras.") and kind.__name__ in _OPERATIONS


def check_activation(layer: Any, inputs: keras.KerasTensor) -> None:
    """Raises ValueError if the activation of a layer looks at other steps than the present one.

    It may be any function, so it is tried on random numbers: on all steps at once, and on each.
    Keras' own look along the features if at all, and JAX would compile them for each width.
    """
    activation = getattr(layer, "activation", None)
    is_of_keras = activation is getattr(
        keras.activations, getattr(activation, "__name__", ""), None
    )
    if activation is None or (is_of_keras and len(inputs.shape) > 2):
        return
    x = _random(inputs, getattr(layer, "units", getattr(layer, "filters", None)))
    message = (
        f"The activation of {layer.name!r} looks at other steps than the present one, so a stream "
        "cannot run it. Take one that treats each step separately: if it has an axis, that of the "
        "features."
    )
    try:
        parts = (activation(part) for part in (x, *ops.split(x, x.shape[1], axis=1)))
        whole, *steps = (ops.convert_to_numpy(ops.cast(part, "float32")) for part in parts)
        found = np.concatenate(steps, axis=1)
    except Exception as error:  # a function for a number of steps alone
        raise ValueError(message) from error
    if found.shape != whole.shape or not np.allclose(found, whole, 1e-4, 1e-5, equal_nan=True):
        raise ValueError(message)


def _random(inputs: keras.KerasTensor, width: int | None) -> Tensor:
    """A few steps of what the activation of a layer gets."""
    shape = [2, 4, *(size or 4 for size in inputs.shape[2:])]
    if width is not None:
        shape[-1] = width
    is_float = width is not None or "float" in inputs.dtype
    x = np.random.default_rng(0).normal(size=shape)
    return ops.cast(ops.convert_to_tensor(x), "float32" if is_float else inputs.dtype)


def _leaves_time_alone(call: Call, inputs: list[keras.KerasTensor]) -> bool:
    if isinstance(call.operation, SoftminLogits) and call.operation.last == 1:
        return True  # it drops steps, and never looks at several
    if not all(map(has_time, call.outputs)):
        return False
    if type(call.operation).__name__ == "GetItem":
        return _takes_all_steps(call.args[1], len(inputs[0].shape))
    rank = max(len(x.shape) for x in (*inputs, *call.outputs))
    return all(axis is not None and axis % rank > 1 for axis in _axes(call.operation))


def _axes(operation: Any) -> list[int | None]:
    """The axes that an operation does not treat entry by entry; None: all."""
    axes = getattr(operation, "axis", ())
    axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    if isinstance(operation, keras.layers.Masking):
        axes.append(-1)
    for name in ("scale", "offset", "mask_value", "x_min", "x_max"):
        # An array is broadcast against the last axes.
        shape = np.shape(getattr(operation, name, 0))
        axes += [k - len(shape) for k, size in enumerate(shape) if size != 1]
    return axes


def _takes_all_steps(key: Any, rank: int) -> bool:
    keys = list(key) if isinstance(key, tuple) else [key]
    for k, one in enumerate(keys):
        if one is Ellipsis:
            others = sum(x is not None for x in keys) - 1
            keys[k : k + 1] = (rank - others) * [slice(None)]
            break
    return all(isinstance(x, slice) and x == slice(None) for x in keys[:2])
