"""Search spaces: COFFEE on induction heads, and on MNIST in four directions."""

import functools
import math
import numbers
import sys
import time

import keras
import keras_tuner
import numpy as np
from keras import layers
from objectives import OBJECTIVES, LogFewestParameters, count_parameters

from keras_coffee import CoffeeLayer
from keras_coffee.callbacks import LowerLearningRate, StopAtTarget
from keras_coffee.datasets import AugmentedImages, InductionHead, load_mnist
from keras_coffee.layers import FourDirections, SoftminLogits, SymbolEmbedding

# The symbols 1 to 7, the padding 0, and one that never occurs, as the paper counts parameters.
SYMBOLS = 9
# KerasTuner's choices are of one type, which None is not.
FEEDBACKS = {"sigmoid": "sigmoid", "linear": "linear", "none": None}


def choice(*values, default):
    return functools.partial(keras_tuner.HyperParameters.Choice, values=values, default=default)


def switch(default):
    return functools.partial(keras_tuner.HyperParameters.Boolean, default=default)


def number(low, high, default, sampling="linear"):
    limits = {"min_value": low, "max_value": high, "sampling": sampling}
    return functools.partial(keras_tuner.HyperParameters.Float, default=default, **limits)


def check_value(name, value, default, values=(), **_):
    """Raises unless a parameter can have this value. A number may lie outside its range."""
    if isinstance(default, str):
        fits, expected = value in values, f"one of {', '.join(values)}"
    elif isinstance(default, bool):
        fits, expected = isinstance(value, bool), "yes or no"
    elif isinstance(default, int):
        is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        fits, expected = is_integer and value > 0, "a positive integer"
    else:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        fits, expected = is_number and 0 < value < math.inf, "a positive number"
    if not fits:
        raise ValueError(f"{name} must be {expected}, received {value!r}")


class CoffeeHyperModel(keras_tuner.HyperModel):
    """Builds and trains the model of a trial; KerasTuner calls `build`, then `fit`.

    Args:
        objective: A name in `OBJECTIVES`.
        target: Validation accuracy at which a trial ends, and that `fewest-parameters` asks for.
        patience: Epochs without a gain of 0.01 in validation accuracy after which a trial is given
            up. None: it never is.
        epochs: Of a trial, at most. Hyperband has numbers of its own.
        seed: Of weights and data, the same in every trial.
        only: Values to choose from instead of a parameter's range, by its name.

    Raises:
        ValueError: if `only` has a name that is no parameter, or a value that it can't have.
    """

    SPACE = {}
    SIZES = ()
    SHARED_SETTINGS = ("target", "patience", "epochs", "seed", "only")

    def __init__(self, objective="accuracy", *, target, patience, epochs, seed=0, only=None):
        super().__init__()
        self.objective = OBJECTIVES[objective]
        self.target = target
        self.patience = patience
        self.epochs = epochs
        self.seed = seed
        self.only = {name: list(values) for name, values in (only or {}).items()}
        for name in self.only.keys() - self.SPACE.keys():
            raise ValueError(f"no parameter {name!r}; there are: {', '.join(self.SPACE)}")
        for name, values in self.only.items():
            for value in values:
                check_value(name, value, **self.SPACE[name].keywords)

    def settings(self):
        """What makes two searches the same, for JSON."""
        names = (*self.SHARED_SETTINGS, *self.SETTINGS)
        return {name: getattr(self, name) for name in names}

    def parameter(self, hp, name):
        if name in self.only:
            return hp.Choice(name, self.only[name])
        return self.SPACE[name](hp, name)

    def build(self, hp):
        # Else the weights of a trial would depend on those that ran before it in this process.
        keras.utils.set_random_seed(self.seed)
        model = self.build_layers(hp)
        model.compile(
            keras.optimizers.Adam(self.parameter(hp, "learning_rate")),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            # Several steps in one call, where the backend has that.
            steps_per_execution=1 if keras.config.backend() == "torch" else 10,
        )
        # Hyperband continues a trial from its weights, those of the optimizer included if built.
        model.optimizer.build(model.trainable_variables)
        return model

    def fit(self, hp, model, callbacks=(), epochs=None, initial_epoch=0):
        start = time.perf_counter()
        train, validation, _ = self.load_data()
        # Keras advances the epoch of the data before each pass, and that of validation after too.
        train.epoch, validation.epoch = initial_epoch, 2 * initial_epoch
        history = model.fit(
            train,
            validation_data=validation,
            initial_epoch=initial_epoch,
            epochs=epochs or self.epochs,
            callbacks=[*self.callbacks(hp), *callbacks],
            shuffle=False,
            verbose=1 if sys.stdout.isatty() else 2,
        ).history
        values = history[self.objective.name]
        best = int(np.argmax(values) if self.objective.direction == "max" else np.argmin(values))
        return {name: float(metric[best]) for name, metric in history.items()} | {
            "parameters": count_parameters(model),
            "epochs": initial_epoch + len(values),
            "seconds": time.perf_counter() - start,
        }

    def callbacks(self, hp):
        """New ones for each trial: they have states."""
        # First, for the others to see its number.
        rules = [LogFewestParameters(self.target, self.largest_count)]
        rules.append(StopAtTarget("val_accuracy", self.target))
        if self.patience is not None:
            gain = {"min_delta": 0.01, "mode": "max", "patience": self.patience}
            rules.append(keras.callbacks.EarlyStopping("val_accuracy", **gain))
        return rules

    @functools.cached_property
    def largest_count(self):
        """Parameters of the largest model in the search."""
        hp = keras_tuner.HyperParameters()
        for name in self.SIZES:
            alone = keras_tuner.HyperParameters()
            self.parameter(alone, name)
            hp.values[name] = max(alone.space[0].values)
        return count_parameters(self.build_layers(hp))


class InductionHeadHyperModel(CoffeeHyperModel):
    """Embedding, one `CoffeeLayer`, softmin of the distances.

    Args:
        steps: Training batches in an epoch.
        batch_size: Sequences in a training batch.
        validation_sequences: New ones after each epoch, a multiple of 1000.
        **kwargs: As for `CoffeeHyperModel`.
    """

    SPACE = {
        "n": choice(1, 2, 4, 8, default=8),
        "dim": choice(1, 2, 4, 8, 16, default=16),
        "feedback": choice("sigmoid", "none", "linear", default="sigmoid"),
        "output_filter": switch(False),
        "distance": choice("euclidean", "squared_euclidean", default="squared_euclidean"),
        "learning_rate": number(0.001, 0.1, 0.01, "log"),
    }
    SIZES = ("n", "dim", "output_filter")
    SETTINGS = ("steps", "batch_size", "validation_sequences")

    def __init__(
        self,
        objective="accuracy",
        *,
        steps=2500,
        batch_size=512,
        validation_sequences=10_000,
        target=0.99,
        patience=8,
        epochs=24,
        **kwargs,
    ):
        super().__init__(objective, target=target, patience=patience, epochs=epochs, **kwargs)
        self.steps = steps
        self.batch_size = batch_size
        self.validation_sequences = validation_sequences

    def build_layers(self, hp):
        embedding = SymbolEmbedding(SYMBOLS, self.parameter(hp, "dim"))
        feedback = self.parameter(hp, "feedback")
        # A linear gate never leaves the state 0, and then the output is 0, filtered or not.
        with hp.conditional_scope("feedback", ["sigmoid", "none"]):
            output_filter = bool(self.parameter(hp, "output_filter"))
        layer = CoffeeLayer(
            self.parameter(hp, "n"), FEEDBACKS[feedback], output_filter, start="paper"
        )
        logits = SoftminLogits(embedding, last=1, distance=self.parameter(hp, "distance"))
        return keras.Sequential([keras.Input((None,), dtype="int32"), embedding, layer, logits])

    def load_data(self):
        """Training, validation and test, each at its first epoch."""
        fresh = {"batch_size": 1000, "steps_per_epoch": self.validation_sequences // 1000}
        return (
            InductionHead(batch_size=self.batch_size, steps_per_epoch=self.steps, seed=self.seed),
            InductionHead(split="validation", seed=self.seed, **fresh),
            InductionHead(split="test", seed=self.seed, **fresh),
        )


class MnistHyperModel(CoffeeHyperModel):
    """Rows and columns of an image, from both ends; a hidden layer; ten classes.

    Args:
        batch_size: Images in a training batch.
        images: `"mnist"`, or `"noise"` to see whether everything runs.
        **kwargs: As for `CoffeeHyperModel`.
    """

    SPACE = {
        "n": choice(1, 2, 4, 8, default=2),
        "output_filter": switch(True),
        "head_width": choice(10, 15, 25, 40, 60, default=25),
        "learning_rate": number(0.001, 0.1, 0.01, "log"),
        "rule": choice("constant", "lower", default="lower"),
        "lower_below_loss": number(0.1, 0.8, 0.45),
        "lower_to": number(0.1, 0.9, 0.5),
    }
    SIZES = ("n", "output_filter", "head_width")
    SETTINGS = ("batch_size", "images")

    def __init__(
        self,
        objective="accuracy",
        *,
        batch_size=512,
        images="mnist",
        target=0.99,
        patience=5,
        epochs=30,
        **kwargs,
    ):
        super().__init__(objective, target=target, patience=patience, epochs=epochs, **kwargs)
        self.batch_size = batch_size
        self.images = images

    def build_layers(self, hp):
        # Known to the tuner before the first trial; `callbacks` uses it.
        self.lower_learning_rate(hp)
        output_filter = bool(self.parameter(hp, "output_filter"))
        layer = CoffeeLayer(self.parameter(hp, "n"), output_filter=output_filter, start="paper")
        return keras.Sequential(
            [
                keras.Input((28, 28)),
                layers.Rescaling(1 / 255),
                layers.Reshape((28, 28, 1)),
                layers.CenterCrop(25, 25),
                layers.Reshape((25, 25)),
                FourDirections(layer),
                layers.Dense(self.parameter(hp, "head_width"), "gelu"),
                layers.Dense(10),
            ]
        )

    def lower_learning_rate(self, hp):
        """The rule as callbacks, none if the rate is constant."""
        rate, rule = self.parameter(hp, "learning_rate"), self.parameter(hp, "rule")
        with hp.conditional_scope("rule", ["lower"]):
            below = self.parameter(hp, "lower_below_loss")
            part = self.parameter(hp, "lower_to")
        return [LowerLearningRate(part * rate, below)] if rule == "lower" else []

    def callbacks(self, hp):
        return [*super().callbacks(hp), *self.lower_learning_rate(hp)]

    def load_data(self):
        """Training, validation and test, each at its first epoch."""
        train, validation, test = self.arrays
        unchanged = {"rotation": 0.0, "translation": 0.0, "batch_size": 1000}
        return (
            AugmentedImages(*train, batch_size=self.batch_size, seed=self.seed),
            AugmentedImages(*validation, **unchanged),
            AugmentedImages(*test, **unchanged),
        )

    @functools.cached_property
    def arrays(self):
        if self.images == "mnist":
            return load_mnist(seed=self.seed)
        generator = np.random.default_rng(self.seed)
        images = generator.integers(256, size=(16, 28, 28), dtype=np.uint8)
        return ((images, np.arange(16) % 10),) * 3
