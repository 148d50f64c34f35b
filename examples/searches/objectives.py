"""What a search looks for: the best accuracy, or the fewest parameters that reach one."""

import keras
import keras_tuner
import numpy as np

OBJECTIVES = {
    "accuracy": keras_tuner.Objective("val_accuracy", "max"),
    "fewest-parameters": keras_tuner.Objective("fewest_parameters", "min"),
}


def fewest_parameters(parameters, accuracy, target, largest):
    """A number that is least for the smallest model at the target.

    At the target or above it: the parameters, plus the error, which is below 1 and so only orders
    models of one size. Below it: above every number of the first kind, growing with the error, so
    that a search sees which way is up before anything has reached the target.

    Args:
        parameters: Of the model.
        accuracy: Of the model, from 0 to 1.
        target: The accuracy to reach.
        largest: Parameters of the largest model in the search.
    """
    error = 1 - accuracy
    return parameters + error if accuracy >= target else (largest + 1) * (1 + error)


def count_parameters(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


class LogFewestParameters(keras.callbacks.Callback):
    """Adds the number to the metrics of each epoch; to stand before callbacks that read it."""

    def __init__(self, target, largest):
        super().__init__()
        self.target = target
        self.largest = largest

    def on_epoch_end(self, epoch, logs=None):
        parameters = count_parameters(self.model)
        accuracy = float(logs["val_accuracy"])
        logs["fewest_parameters"] = fewest_parameters(
            parameters, accuracy, self.target, self.largest
        )
