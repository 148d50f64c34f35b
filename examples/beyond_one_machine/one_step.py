"""What the scripts beside it share: a small model, its data, and gradients to compare."""

import keras
import numpy as np
from keras import ops

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer

LAYERS = (CoffeeLayer, S6Layer, LinearizedS6Layer)
# Eight devices divide the batch, four the features.
BATCH, TIME, DIM, STATES = 16, 10, 16, 8


def load_data():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(BATCH, TIME, DIM))
    targets = generator.normal(size=(BATCH, TIME, 1))
    return inputs.astype("float32"), targets.astype("float32")


def build_model(layer, *probes):
    """The same weights at every call. The probes get the layer's outputs."""
    keras.utils.set_random_seed(0)
    layers = [layer(STATES, name="recurrence"), *probes, keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((None, DIM)), *layers])


def fit_one_step(model):
    """Trains one step, and returns the gradients it took."""
    model.compile(keras.optimizers.SGD(learning_rate=1.0, momentum=0.9), loss="mse")
    model.fit(*load_data(), batch_size=BATCH, verbose=0)
    # After the first step the momentum is minus the gradient. The weights would not tell as much:
    # CoffeeLayer keeps its transition within [-2, 0].
    return [-ops.convert_to_numpy(momentum) for momentum in model.optimizer.momentums]


def largest_difference(gradients, expected):
    """The largest difference, relative to the largest element of its gradient."""
    pairs = zip(gradients, expected, strict=True)
    return np.max([np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs])
