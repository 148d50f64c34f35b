"""Vectors for the symbols of a finite vocabulary."""

import numbers
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_coffee import constraints, initializers
from keras_coffee._checks import positive_integer
from keras_coffee._typing import Tensor, is_integer
from keras_coffee.layers.arguments import at_least_float32, check_real
from keras_coffee.ops.arguments import dtype_of


@keras.saving.register_keras_serializable(package="keras_coffee")
class SymbolEmbedding(keras.layers.Layer):
    """Turns symbols into learned vectors.

        u(k) = E[s(k)]

    the row of the table E (V, D) that belongs to the symbol s(k).

    A symbol outside the vocabulary raises an error in eager calls with a list or NumPy array.
    Compiled code cannot check values: the vector is NaN there, on every backend, and never that of
    another symbol. (Keras casts inputs to the dtype of `keras.Input` first.)

    Args:
        vocabulary_size: Positive integer, V. The symbols are 0, …, V - 1.
        dim: Positive integer, D, the features of a vector.
        unit_symbol: Integer in [0, V) or `None`. The vector of this symbol is fixed to ones and its
            D entries are no parameters; the paper shows that this costs nothing. Defaults to
            `None`.
        embeddings_initializer: Initializer of the whole table (V, D), from which the row of
            `unit_symbol` is then dropped. Defaults to `"orthonormal_symbols"`, the QR
            decomposition of the paper.
        embeddings_regularizer: Regularizer of the trainable vectors. Defaults to `None`.
        embeddings_constraint: Constraint of the trainable vectors. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable` and other arguments of `keras.layers.Layer`.

    Input shape:
        Symbols of any shape, usually (B, T), of an integer dtype or as whole floats.

    Output shape:
        The input shape and D after it, usually (B, T, D), in the layer's compute dtype.

    Raises:
        ValueError: if a size is not a positive integer, if `unit_symbol` is not a symbol of a
            vocabulary of at least two, or if the layer is given a symbol outside the vocabulary.

    Example:
        >>> embedding = SymbolEmbedding(9, 16, unit_symbol=0)
        >>> embedding(np.array([[3, 0, 7]])).shape
        (1, 3, 16)
        >>> embedding.count_params()
        128

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", Appendix "Core Module
        Architecture"; for `unit_symbol`, Proposition 1 (ii).
    """

    def __init__(
        self,
        vocabulary_size: int,
        dim: int,
        unit_symbol: int | None = None,
        embeddings_initializer: Any = "orthonormal_symbols",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # As in keras.layers.Embedding: a low compute dtype must not round the symbols.
        self.autocast = False
        self.vocabulary_size = positive_integer("vocabulary_size", vocabulary_size)
        self.dim = positive_integer("dim", dim)
        self.unit_symbol = self._checked_unit_symbol(unit_symbol)
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = constraints.get(embeddings_constraint)

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        learned = self.vocabulary_size - (self.unit_symbol is not None)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(learned, self.dim),
            initializer=self._initial_embeddings,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
            autocast=False,
        )

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if _is_known(inputs):
            inputs = self._checked_symbols(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Tensor) -> Tensor:
        check_real(f"The symbols for {self.name!r}", inputs)
        symbols = _comparable(inputs)
        inside = ops.logical_and(symbols >= 0, symbols < self.vocabulary_size)
        rows = ops.cast(ops.where(inside, symbols, ops.zeros_like(symbols)), "int32")
        inside = ops.logical_and(inside, ops.equal(ops.cast(rows, symbols.dtype), symbols))
        vectors = ops.cast(ops.take(self.table(), rows, axis=0), self.compute_dtype)
        return ops.where(ops.expand_dims(inside, -1), vectors, float("nan"))

    def table(self) -> Tensor:
        """Gives the vectors of all symbols, the fixed one included.

        Returns:
            The table (V, D) in the dtype of the weight. Gradients flow to the trainable vectors.

        Raises:
            ValueError: if the layer is not built yet.

        Example:
            >>> embedding = SymbolEmbedding(9, 16, unit_symbol=0)
            >>> embedding.build()
            >>> embedding.table().shape
            (9, 16)
        """
        if not self.built:
            raise ValueError(
                f"The vectors of the SymbolEmbedding {self.name!r} do not exist yet. Call the "
                "layer or its `build()` first."
            )
        # A slice is a tensor on every backend; TensorFlow would hand out the variable itself.
        learned = self.embeddings[:]
        if self.unit_symbol is None:
            return learned
        before, after = learned[: self.unit_symbol], learned[self.unit_symbol :]
        pieces = [before, ops.ones((1, self.dim), dtype=learned.dtype), after]
        # XLA on TensorFlow has no gradient of an empty slice.
        return ops.concatenate([piece for piece in pieces if piece.shape[0] > 0])

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape, self.dim)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "dim": self.dim,
            "unit_symbol": self.unit_symbol,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
        }

    def _initial_embeddings(self, shape: tuple[int, int], dtype: str | None = None) -> Tensor:
        table = self.embeddings_initializer((self.vocabulary_size, self.dim), dtype=dtype)
        if self.unit_symbol is None:
            return table
        return ops.concatenate([table[: self.unit_symbol], table[self.unit_symbol + 1 :]])

    def _checked_unit_symbol(self, symbol: int | None) -> int | None:
        if symbol is None:
            return None
        if not is_integer(symbol) or not 0 <= symbol < self.vocabulary_size:
            raise ValueError(
                f"`unit_symbol` must be None or an integer in [0, {self.vocabulary_size}), a "
                f"symbol of the vocabulary; received {symbol!r}."
            )
        if self.vocabulary_size == 1:
            raise ValueError(
                "`unit_symbol` fixes one vector of several; received vocabulary_size=1, which "
                "would leave nothing to learn. Pass unit_symbol=None."
            )
        return int(symbol)

    def _checked_symbols(self, inputs: Any) -> np.ndarray:
        symbols = np.asarray(inputs)
        if symbols.dtype.kind not in "biuf":
            raise ValueError(
                f"SymbolEmbedding takes integers; received an array of dtype {symbols.dtype}. "
                "Number the symbols from 0."
            )
        inside = (symbols >= 0) & (symbols < self.vocabulary_size)
        if symbols.dtype.kind == "f":
            inside &= symbols == np.floor(symbols)
        if not inside.all():
            raise ValueError(
                f"The SymbolEmbedding {self.name!r} knows the symbols 0, …, "
                f"{self.vocabulary_size - 1}; received {symbols[~inside][0]}. Number the symbols "
                "from 0, or raise `vocabulary_size`."
            )
        return symbols


def _is_known(inputs: Any) -> bool:
    if isinstance(inputs, (list, tuple)):
        return all(isinstance(leaf, numbers.Number) for leaf in keras.tree.flatten(inputs))
    return isinstance(inputs, (np.ndarray, numbers.Number))


def _comparable(inputs: Tensor) -> Tensor:
    """Widens symbols until the comparison with any vocabulary size is exact."""
    dtype = dtype_of(inputs)
    if keras.backend.is_float_dtype(dtype):
        return ops.cast(inputs, at_least_float32(inputs))
    return ops.cast(inputs, "int64" if dtype in ("int64", "uint64", "uint32") else "int32")
