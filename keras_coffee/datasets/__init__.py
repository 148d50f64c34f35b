"""Tasks of the paper as data sets."""

from keras_coffee.datasets.induction_head import InductionHead as InductionHead
