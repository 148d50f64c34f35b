"""Other readings of the paper's text, for rows that did not come out at first."""

import dataclasses

import keras
from induction_heads import InductionHeads
from keras import ops
from mnist import FourDirectionMnist

from keras_coffee import CoffeeLayer
from keras_coffee.layers import SoftminLogits


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreeTransition(InductionHeads):
    """λ is not kept in [-2, 0]."""

    def recurrence(self):
        return CoffeeLayer(self.n, transition_constraint=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquaredDistance(InductionHeads):
    """The distance to a symbol's vector is squared."""

    def logits(self, embedding):
        return SquaredSoftminLogits(embedding, last=self.target_length)


@keras.saving.register_keras_serializable(package="keras_coffee_paper")
class SquaredSoftminLogits(SoftminLogits):
    """-d_i - log Σ_{j ≠ i} exp(-d_j) with d_i = ‖y - e_i‖², not for outputs that overflow in it."""

    def call(self, inputs):
        outputs, vectors = inputs[:, -self.last :, None], self.embedding.table()
        distances = ops.sum(ops.square(outputs - vectors), axis=-1)
        others = 1 - ops.eye(vectors.shape[0], dtype=distances.dtype)
        # -log 0 for the symbol itself: a number that no distance of the task comes near.
        weighted = -distances[..., None, :] - 1e9 * (1 - others)
        return -distances - ops.logsumexp(weighted, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearestPixel(FourDirectionMnist):
    """Images as torchvision's `RandomAffine` turns them by default; it would not move them."""

    translation: float = 0.0
    interpolation = "nearest"
