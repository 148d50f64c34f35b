"""Tasks of the paper as data sets."""

from keras_coffee.datasets.augmented_images import AugmentedImages as AugmentedImages
from keras_coffee.datasets.induction_head import InductionHead as InductionHead
from keras_coffee.datasets.mnist import load_mnist as load_mnist
