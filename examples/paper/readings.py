"""Other readings of the paper's text, for rows that did not reach the paper at first."""

import dataclasses

from induction_heads import InductionHeads
from mnist import FourDirectionMnist

from keras_coffee import CoffeeLayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreeTransition(InductionHeads):
    """λ is not kept in [-2, 0]."""

    def recurrence(self):
        return CoffeeLayer(self.n, start="paper", transition_constraint=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearestPixel(FourDirectionMnist):
    """Images as torchvision's `RandomAffine` turns them by default; it would not move them."""

    translation: float = 0.0
    interpolation = "nearest"
