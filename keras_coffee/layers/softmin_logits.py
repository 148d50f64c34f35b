"""From output vectors back to symbols: the nearest vector wins."""

import types
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_coffee._checks import one_of, positive_integer
from keras_coffee._typing import Tensor
from keras_coffee.layers.arguments import at_least_float32, check_real
from keras_coffee.layers.symbol_embedding import SymbolEmbedding
from keras_coffee.ops.arguments import dtype_of

# Differences are brought near 1 before they are squared. These powers of two leave their squares
# representable over the whole range of the dtype, subnormal numbers included, and leave room for
# gradients too: a scale near the largest number would overflow when one above 1 is multiplied in.
_LARGEST_SCALE = {"float32": 2.0**96, "float64": 2.0**960}

# NumPy has no bfloat16. The number is (2 - 2^-7) 2^127.
_LARGEST = {name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")}
_LARGEST["bfloat16"] = (2.0 - 2.0**-7) * 2.0**127


@keras.saving.register_keras_serializable(package="keras_coffee")
class SoftminLogits(keras.layers.Layer):
    """Scores every symbol by how near its vector is to the output.

        d_i     = ‖y - e_i‖², or ‖y - e_i‖ with distance="euclidean"
        logit_i = log(p_i / (1 - p_i)),  p = softmin(d)
                = -d_i - log Σ_{j ≠ i} exp(-d_j)

    The vectors e_i are those of the embedding, so the layer adds no weights. The second form is
    computed: values and gradients are finite for every finite output, including a distance of zero
    (its subgradient is zero). A distance, or a square, above the largest number counts as that. NaN
    and infinity give NaN.

    Meant for small vocabularies: it forms the difference of every output from every vector, which
    takes B·T·V·D numbers, or B·last·V·D. Squared norms and a product of matrices would need only
    B·T·V, but they cancel where an output is near a vector, and small distances would be lost.

    The layer and its embedding stay tied through saving, loading and `keras.models.clone_model`:
    a layer made from a config takes the embedding of the same name that its input comes from.

    Args:
        embedding: The `SymbolEmbedding` to score against, with at least two symbols.
        last: Positive integer or `None`. Keeps the last positions only, those that are asked
            for in a task; the others are never computed. Defaults to `None`, all positions.
        distance: `"squared_euclidean"` or `"euclidean"`. The paper says only "Euclidean distance";
            the squared one reproduces its numbers. Any two squared distances differ by an affine
            function of the output. Defaults to `"squared_euclidean"`.
        **kwargs: `name`, `dtype`, `trainable` and other arguments of `keras.layers.Layer`.

    Input shape:
        (B, T, D) with D = `embedding.dim`; (B, D) too where `last` is None.

    Output shape:
        (B, T, V), or (B, last, V), in the layer's compute dtype. Computed in at least float32.

    Raises:
        ValueError: if the embedding has one symbol only, if `last` is not a positive integer or
            greater than T, if `distance` is unknown, or if the input's features differ from
            `embedding.dim`.
        TypeError: if `embedding` is not a `SymbolEmbedding`.

    Example:
        >>> embedding = SymbolEmbedding(9, 16)
        >>> model = keras.Sequential([embedding, SoftminLogits(embedding, last=1)])
        >>> model(np.zeros((4, 10), "int32")).shape
        (4, 1, 9)
        >>> model.count_params()
        144

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", Appendix "Core Module
        Architecture".
    """

    def __init__(
        self,
        embedding: SymbolEmbedding,
        last: int | None = None,
        distance: Literal["euclidean", "squared_euclidean"] = "squared_euclidean",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False
        _check_embedding(embedding)
        one_of("distance", distance, _DISTANCES)
        # Out of sight of Keras, which tracks a layer assigned to an attribute for good, until
        # `build`: before that a layer made from a config may still find another one to tie to.
        self._tie = types.SimpleNamespace(embedding=embedding, restored=False, shared=False)
        self.last = None if last is None else positive_integer("last", last)
        self.distance = distance

    @property
    def embedding(self) -> SymbolEmbedding:
        """The embedding whose vectors the outputs are compared with."""
        return self._tie.embedding

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self._check_shape(input_shape)
        self._tracked_embedding = self.embedding
        if not self.embedding.built:
            self.embedding.build()

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self._tie.restored and not self.built:
            self._tie_to_source_of(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Tensor) -> Tensor:
        self._check_shape(inputs.shape)
        check_real(f"The input of {self.name!r}", inputs)
        if self.last is not None:
            inputs = inputs[..., -self.last :, :]
        table = self.embedding.table()
        dtype = at_least_float32(inputs, table)
        measure = _DISTANCES[self.distance]
        distances = measure(ops.cast(inputs, dtype), ops.cast(table, dtype))
        return self._to_compute_dtype(_logits_of_softmin(distances))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        self._check_shape(input_shape)
        symbols = self.embedding.vocabulary_size
        if self.last is None:
            return (*input_shape[:-1], symbols)
        return (*input_shape[:-2], self.last, symbols)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "embedding": keras.saving.serialize_keras_object(self.embedding),
            "last": self.last,
            "distance": self.distance,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SoftminLogits":
        # A config from before there was a choice was of plain distances.
        config = {"distance": "euclidean", **config}
        embedding = config["embedding"]
        if isinstance(embedding, SymbolEmbedding):
            return super().from_config(config)
        config["embedding"] = keras.saving.deserialize_keras_object(embedding)
        layer = super().from_config(config)
        # Keras numbers the objects that occur more than once in a file, and finds them itself.
        layer._tie.restored, layer._tie.shared = True, "shared_object_id" in embedding
        return layer

    def get_build_config(self) -> None:
        """Leaves building to the first call, when the source of the input is known."""
        return None

    def _tie_to_source_of(self, inputs: Tensor) -> None:
        for layer in _layers_before(inputs):
            if isinstance(layer, SymbolEmbedding) and layer.name == self.embedding.name:
                self._tie.embedding = layer
                return
        if isinstance(inputs, keras.KerasTensor) and not self._tie.shared:
            warnings.warn(
                f"The SoftminLogits {self.name!r} was made from a config, and its input comes from "
                f"no SymbolEmbedding named {self.embedding.name!r}. It now has vectors of its own. "
                "If it should share them, put both layers into one model, not a nested one.",
                stacklevel=3,
            )

    def _check_shape(self, shape: tuple[int | None, ...]) -> None:
        if len(shape) < 2 + (self.last is not None) or shape[-1] != self.embedding.dim:
            expected = "(B, T, D)" if self.last else "(B, T, D) or (B, D)"
            raise ValueError(
                f"SoftminLogits expects {expected} with D = {self.embedding.dim}, the `dim` of its "
                f"embedding; received the shape {tuple(shape)}. Give the layer before it "
                f"{self.embedding.dim} features, or the embedding another `dim`."
            )
        if self.last is not None and shape[-2] is not None and shape[-2] < self.last:
            raise ValueError(
                f"SoftminLogits keeps the last {self.last} positions; received the shape "
                f"{tuple(shape)}, which has only {shape[-2]}. Lower `last`, or give longer "
                "sequences."
            )

    def _to_compute_dtype(self, logits: Tensor) -> Tensor:
        if dtype_of(logits) == self.compute_dtype:
            return logits
        largest = _LARGEST[self.compute_dtype]
        return ops.cast(ops.clip(logits, -largest, largest), self.compute_dtype)


def _check_embedding(embedding: Any) -> None:
    if not isinstance(embedding, SymbolEmbedding):
        raise TypeError(
            "SoftminLogits is tied to the SymbolEmbedding of the model; received "
            f"{embedding!r} of type {type(embedding).__name__}. Pass that layer object itself."
        )
    if embedding.vocabulary_size < 2:
        raise ValueError(
            "The logits compare each symbol with the others; received an embedding with "
            f"vocabulary_size={embedding.vocabulary_size}. Use at least two symbols."
        )


def _distances(outputs: Tensor, table: Tensor) -> Tensor:
    """Euclidean distances (…, V) of outputs (…, D) from the rows of a table (V, D)."""
    largest_scale = _LARGEST_SCALE[dtype_of(outputs)]
    # Halves, since the difference of two finite numbers may overflow.
    halves = 0.5 * ops.expand_dims(outputs, -2) - 0.5 * table  # (…, V, D)
    scale = ops.max(ops.abs(halves), axis=-1, keepdims=True, initial=0)
    scale = ops.stop_gradient(ops.clip(scale, 1.0 / largest_scale, largest_scale))
    squares = ops.sum(ops.square(halves / scale), axis=-1)
    return _capped(_safe_root(squares), 2.0 * ops.squeeze(scale, axis=-1))


def _squared_distances(outputs: Tensor, table: Tensor) -> Tensor:
    """Their squares. No scale: one that is too small for the dtype is rightly zero."""
    largest = _LARGEST[dtype_of(outputs)]
    halves = 0.5 * ops.expand_dims(outputs, -2) - 0.5 * table  # (…, V, D)
    # A product, since the derivative of `square` doubles first, which may overflow.
    quarters = ops.sum(halves * halves, axis=-1)
    finite = ops.max(ops.abs(halves), axis=-1, initial=0) <= largest
    overflows = ops.logical_and(quarters > 0.25 * largest, finite)
    return ops.where(overflows, ops.full_like(quarters, largest), 4.0 * quarters)


_DISTANCES = {"euclidean": _distances, "squared_euclidean": _squared_distances}


def _safe_root(squares: Tensor) -> Tensor:
    # The square root has no gradient at 0, and `where` alone would give NaN there: 0 times inf.
    zero = ops.equal(squares, 0)
    root = ops.sqrt(ops.where(zero, ops.ones_like(squares), squares))
    return ops.where(zero, ops.zeros_like(root), root)


def _capped(root: Tensor, scale: Tensor) -> Tensor:
    # Only a product of two finite numbers is capped: an infinite output has no logits.
    largest = _LARGEST[dtype_of(root)]
    product = root * scale
    overflows = ops.logical_and(product > largest, root <= largest)
    return ops.where(overflows, ops.full_like(product, largest), product)


def _logits_of_softmin(distances: Tensor) -> Tensor:
    """log(p / (1 - p)) of p = softmin(distances), (…, V), in O(V) memory a position.

    For every symbol but the nearest, the sum over the others holds the nearest one's exp(0) = 1,
    so that taking a term out of the full sum is accurate. For the nearest one it is not, and its
    sum is formed anew.
    """
    scores = -distances
    nearest = ops.one_hot(ops.argmax(scores, axis=-1), scores.shape[-1], dtype="bool")
    first = _peak(scores)
    weights = ops.exp(scores - first)
    rest = ops.sum(weights, axis=-1, keepdims=True) - weights
    elsewhere = scores - first - ops.log(ops.where(nearest, ops.ones_like(rest), rest))
    runners_up = ops.where(nearest, ops.full_like(scores, -np.inf), scores)
    second = _peak(runners_up)
    rest = ops.sum(ops.exp(runners_up - second), axis=-1, keepdims=True)
    return ops.where(nearest, scores - second - ops.log(rest), elsewhere)


def _peak(scores: Tensor) -> Tensor:
    return ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True, initial=-np.inf))


def _layers_before(tensor: Tensor) -> Iterator[Any]:
    """Layers that a symbolic tensor was computed by, those of nested models included."""
    pending, seen = [tensor], set()
    while pending:
        history = getattr(pending.pop(), "_keras_history", None)
        if history is None or id(history.operation) in seen:
            continue
        seen.add(id(history.operation))
        yield from _with_nested(history.operation)
        pending.extend(keras.tree.flatten(history.operation.input))


def _with_nested(layer: Any) -> Iterator[Any]:
    yield layer
    if isinstance(layer, keras.Model):
        for inner in layer.layers:
            yield from _with_nested(inner)
