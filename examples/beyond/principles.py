"""What a start by the paper's principles is worth: IH0 from it and from N(0, 1).

P1: the state is a memory, so λ = 0 and C = 1. P2: the gate selects what is kept, so w = 1. P3:
where the state is decides what the next symbol does. So the trigger, on the bisector of the first
quadrant, opens all gates, and the targets, large vectors in the third that are far from each other,
close them. The first two hold in IH0 from any start, for only the symbols' vectors are learned.
"""

import dataclasses

import keras
import numpy as np
from induction_heads import Ih0
from keras import ops
from rows import Row

SEEDS = 10


@keras.saving.register_keras_serializable(package="keras_coffee_beyond")
class Principled(keras.initializers.Initializer):
    """Vectors by P3, the trigger's first: (6, …, 6), and vectors of length 10, all negative.

    Directions of the others are drawn, the farthest apart of a hundred drawings.
    """

    def __call__(self, shape, dtype=None):
        count, dim = shape
        generator = np.random.default_rng(np.random.randint(2**31))
        drawn = np.abs(generator.normal(size=(100, count - 1, dim)))
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        cosines = drawn @ drawn.swapaxes(1, 2) - 2 * np.eye(count - 1)
        farthest = drawn[cosines.max(axis=(1, 2)).argmin()]
        vectors = np.concatenate([np.full((1, dim), 6.0), -10 * farthest])
        return ops.convert_to_tensor(vectors, dtype=dtype)


STARTS = {"principles": Principled, "normal": lambda: "standard_normal"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started(Ih0):
    start: str

    def embeddings(self):
        return STARTS[self.start]()


ROWS = [
    Row(f"principles-{start}", f"IH0 from {start}", Started(start=start), None) for start in STARTS
]
