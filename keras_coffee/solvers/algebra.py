"""Jacobians as numbers: what solvers do with them, for diagonal and for dense ones.

Every function takes batches: a diagonal is `(..., H)` as vectors are, a dense matrix `(..., H, H)`.
"""

from keras import ops

from keras_coffee._typing import Tensor


class Diagonal:
    """Diagonal matrices, as their diagonals."""

    @staticmethod
    def apply(matrix: Tensor, vector: Tensor) -> Tensor:
        return matrix * vector

    @staticmethod
    def compose(outer: Tensor, inner: Tensor) -> Tensor:
        return outer * inner

    @staticmethod
    def transpose(matrix: Tensor) -> Tensor:
        return matrix

    @staticmethod
    def plus_identity(matrix: Tensor) -> Tensor:
        return matrix + 1

    @staticmethod
    def inverse(matrix: Tensor) -> Tensor:
        return 1 / matrix

    @staticmethod
    def size(matrix: Tensor) -> Tensor:
        """A number of the size of the largest entry, for each matrix: its own, complex or not."""
        if "complex" not in str(matrix.dtype):
            return ops.abs(matrix)
        return ops.maximum(ops.abs(ops.real(matrix)), ops.abs(ops.imag(matrix)))

    @staticmethod
    def of_vectors(x: Tensor) -> Tensor:
        """A factor for each matrix as one for each vector."""
        return x

    @staticmethod
    def of_matrices(x: Tensor) -> Tensor:
        """A factor for each vector as one for each matrix."""
        return x


class Dense:
    """Matrices with all their entries."""

    @staticmethod
    def apply(matrix: Tensor, vector: Tensor) -> Tensor:
        # Keras' matmul computes float64 in float32 on PyTorch.
        return ops.einsum("...ij,...j->...i", matrix, vector)

    @staticmethod
    def compose(outer: Tensor, inner: Tensor) -> Tensor:
        return ops.einsum("...ij,...jk->...ik", outer, inner)

    @staticmethod
    def transpose(matrix: Tensor) -> Tensor:
        return ops.swapaxes(matrix, -1, -2)

    @staticmethod
    def plus_identity(matrix: Tensor) -> Tensor:
        return matrix + ops.eye(matrix.shape[-1], dtype=matrix.dtype)

    @staticmethod
    def inverse(matrix: Tensor) -> Tensor:
        return ops.inv(matrix)

    @staticmethod
    def size(matrix: Tensor) -> Tensor:
        return ops.max(ops.abs(matrix), axis=(-1, -2), keepdims=True)

    @staticmethod
    def of_vectors(x: Tensor) -> Tensor:
        return x[..., 0]

    @staticmethod
    def of_matrices(x: Tensor) -> Tensor:
        return x[..., None]


Algebra = type[Diagonal] | type[Dense]

BY_STRUCTURE: dict[str, Algebra] = {"diagonal": Diagonal, "dense": Dense}


def diagonal_of(matrix: Tensor) -> Tensor:
    """The diagonals of dense matrices."""
    return ops.einsum("...ii->...i", matrix)
