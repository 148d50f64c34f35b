"""A classifier and a forecaster of time series, to be copied: estimators of scikit-learn.

    classifier = SeriesClassifier(epochs=40).fit(series, labels)
    classifier.predict(others)

As in aeon, series are `(N, channels, time)`, or a list of `(channels, time)` if their lengths
differ; one channel may leave its axis out: `(N, time)`. Nested lists and what pandas has are read
as arrays. Needs scikit-learn, which the extra `tuner` brings.
"""

import numbers
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from keras_coffee import CoffeeLayer


def coffee() -> keras.layers.Layer:
    """The layer that is used by default."""
    return CoffeeLayer(8)


class SeriesEstimator(BaseEstimator):
    """What the two have in common: a network of residual blocks, its inputs and its training.

    Args:
        layer: A function without arguments that makes the recurrent layer of a block. It takes and
            gives sequences of `width` features and accepts a mask: a layer of Keras needs
            `return_sequences=True`. Defaults to `CoffeeLayer(8)`.
        width: Integer, features between the blocks. Defaults to 32.
        blocks: Integer, how many there are. Defaults to 2.
        epochs: Integer. Defaults to 40.
        batch_size: Integer. Defaults to 16.
        learning_rate: Of Adam; falls to zero along a cosine. Defaults to 0.01.
        random_state: Integer, the seed that `fit` sets for all random numbers; None: it sets none.
            Defaults to None.
        verbose: What `fit` prints, as in Keras. Defaults to 0.

    Attributes, after `fit`:
        model_: The network, `keras.Model`.
        history_: Its losses, a dictionary of lists.
    """

    _positive = ("width", "blocks", "epochs", "batch_size")

    def __init__(
        self,
        layer: Callable[[], keras.layers.Layer] = coffee,
        *,
        width: int = 32,
        blocks: int = 2,
        epochs: int = 40,
        batch_size: int = 16,
        learning_rate: float = 0.01,
        random_state: int | None = None,
        verbose: int = 0,
    ):
        self.layer = layer
        self.width = width
        self.blocks = blocks
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.verbose = verbose

    def _check_arguments(self):
        """In `fit`, not in `__init__`: scikit-learn sets arguments later too."""
        for name in self._positive:
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or value < 1:
                raise ValueError(f"`{name}` must be a positive integer, received {value!r}.")

    def _network(self, channels: int, outputs: int) -> keras.Model:
        """From padded sequences `(B, T, channels)` and their masks `(B, T)` to `(B, outputs)`."""
        inputs = keras.Input((None, channels))
        mask = keras.Input((None,), dtype="bool")
        x = keras.layers.Dense(int(self.width))(inputs)  # Keras takes no integers of NumPy
        for _ in range(self.blocks):
            mixed = self.layer()(keras.layers.LayerNormalization()(x), mask=mask)
            if mixed.shape[2:] != (self.width,):  # else it might be broadcast
                raise ValueError(
                    f"`layer` must give sequences (batch, time, {self.width}), received the shape "
                    f"{mixed.shape}. Layers of Keras need return_sequences=True."
                )
            x = keras.layers.Add()([x, mixed])
        last = keras.layers.LayerNormalization()(x[:, -1])
        return keras.Model([inputs, mask], keras.layers.Dense(outputs)(last))

    def _train(self, sequences: list[np.ndarray], targets: np.ndarray, outputs: int, loss: Any):
        """Fits a new network to sequences `(T, channels)`."""
        if self.random_state is not None:
            keras.utils.set_random_seed(int(self.random_state))
        steps = np.concatenate(sequences)
        self._mean, self._scale = steps.mean(axis=0), spread(steps)
        self.model_ = self._network(steps.shape[1], outputs)
        total = self.epochs * -(-len(sequences) // self.batch_size)
        rate = keras.optimizers.schedules.CosineDecay(self.learning_rate, total)
        self.model_.compile(keras.optimizers.Adam(rate, clipnorm=1.0), loss)
        self.history_ = self.model_.fit(
            self._padded(sequences),
            targets,
            batch_size=int(self.batch_size),
            epochs=self.epochs,
            verbose=self.verbose,
        ).history

    def _outputs(self, sequences: list[np.ndarray]) -> np.ndarray:
        """What the network says of sequences `(T, channels)`: `(N, outputs)`."""
        channels, given = len(self._mean), sequences[0].shape[1]
        if given != channels:
            raise ValueError(
                f"{type(self).__name__} was fitted on series of {channels} channels, received "
                f"series of {given}. The axes are (N, channels, time)."
            )
        return self.model_.predict(self._padded(sequences), int(self.batch_size), verbose=0)

    def _padded(self, sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Scaled sequences in one array, and a mask that says what of it is not padding.

        Padding comes first, so that the last step of every row is the last of its series.
        """
        scaled = [((x - self._mean) / self._scale).astype("float32") for x in sequences]
        lengths = np.array([len(x) for x in scaled])
        padded = keras.utils.pad_sequences(scaled, dtype="float32", padding="pre")
        return padded, np.arange(lengths.max()) >= lengths.max() - lengths[:, None]


class SeriesClassifier(ClassifierMixin, SeriesEstimator):
    """Says of each series to which class it belongs.

    `score` is the accuracy. Arguments and attributes are those of `SeriesEstimator`, and after
    `fit` also `classes_`, the labels in the order of `predict_proba`'s columns.

    Example:
        >>> random = np.random.default_rng(0)
        >>> series = [random.normal(k % 2, 1, (3, 10 + k)) for k in range(8)]
        >>> classifier = SeriesClassifier(epochs=2).fit(series, ["low", "high"] * 4)
        >>> classifier.predict_proba(series).shape
        (8, 2)
    """

    def fit(self, X: Any, y: Any) -> "SeriesClassifier":
        self._check_arguments()
        sequences, labels = as_sequences(X), column_or_1d(y)
        if len(labels) != len(sequences):
            raise ValueError(f"There are {len(sequences)} series, but {len(labels)} labels.")
        # As objects: in an array of strings NaN would be the class "nan".
        if any(label is None or label != label for label in np.asarray(y, "object").flat):
            raise ValueError("Labels must not be missing, received None or NaN.")
        self.classes_, targets = np.unique(labels, return_inverse=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._train(sequences, targets.astype("int32"), len(self.classes_), loss)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, `(N, classes)`."""
        check_is_fitted(self, "model_")
        logits = self._outputs(as_sequences(X)).astype("float64")
        likely = np.exp(logits - logits.max(axis=1, keepdims=True))
        return likely / likely.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most likely label of each series."""
        most_likely = self.predict_proba(X).argmax(axis=1)
        return self.classes_[most_likely]


class SeriesForecaster(SeriesEstimator):
    """Says what the first channel of a series will be.

    Learns the change from the last step of a window to `horizon` steps after it, from all windows
    of the series that it is given. Other channels help, but must be known only up to now.
    Series are as for `SeriesClassifier`, or one series `(time,)`; one of several channels is `[y]`.

    Args:
        layer: As for `SeriesEstimator`, and so are those after `window`.
        horizon: Integer, how many steps ahead. Defaults to 1.
        window: Integer, how many steps are looked at. Defaults to 48.

    Example:
        >>> series = np.sin(np.arange(200) / 4)
        >>> forecaster = SeriesForecaster(horizon=3, window=24, epochs=2).fit(series[:150])
        >>> forecaster.predict(series).shape
        (1,)
    """

    _positive = (*SeriesEstimator._positive, "horizon", "window")

    def __init__(
        self,
        layer: Callable[[], keras.layers.Layer] = coffee,
        *,
        horizon: int = 1,
        window: int = 48,
        width: int = 32,
        blocks: int = 2,
        epochs: int = 40,
        batch_size: int = 16,
        learning_rate: float = 0.01,
        random_state: int | None = None,
        verbose: int = 0,
    ):
        super().__init__(
            layer,
            width=width,
            blocks=blocks,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            random_state=random_state,
            verbose=verbose,
        )
        self.horizon = horizon
        self.window = window

    def fit(self, y: Any) -> "SeriesForecaster":
        """Learns from one series `(time,)` or from several."""
        self._check_arguments()
        windows, changes = self._windows(y)
        self._unit = spread(changes)
        self._train(windows, changes / self._unit, 1, "mse")
        return self

    def predict(self, y: Any) -> np.ndarray:
        """The value `horizon` steps after the end of each series, `(N,)`. Lengths may be any."""
        check_is_fitted(self, "model_")
        ends = [x[-self.window :] for x in as_sequences(one_or_many(y))]
        return self._unit * self._outputs(ends)[:, 0] + [x[-1, 0] for x in ends]

    def score(self, y: Any) -> float:
        """1 - MSE / MSE of repeating the last value, over all windows: 1 is without error.

        If repeating it is without error, the score is 1 without error and 0 otherwise, like
        scikit-learn's R².
        """
        check_is_fitted(self, "model_")
        windows, changes = self._windows(y)
        errors = self._unit * self._outputs(windows)[:, 0] - changes
        ours, repeated = float(np.mean(errors**2)), float(np.mean(changes**2))
        return 1.0 - ours / repeated if repeated > 0 else float(ours == 0)

    def _windows(self, y: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """All windows `(window, channels)`, and how the first channel changes after each."""
        windows, changes = [], []
        for x in as_sequences(one_or_many(y)):
            for end in range(self.window, len(x) - self.horizon + 1):
                windows.append(x[end - self.window : end])
                changes.append(x[end - 1 + self.horizon, 0] - x[end - 1, 0])
        if not windows:
            raise ValueError(
                f"No series has the {self.window + self.horizon} steps that window={self.window} "
                f"and horizon={self.horizon} need. Make the window shorter."
            )
        return windows, np.array(changes)


def spread(x: np.ndarray) -> np.ndarray:
    """The standard deviation over the first axis, to divide by.

    Of a constant it is 0, or what rounding leaves: then its size is given instead, or 1 for 0.
    """
    size, deviation = np.abs(x).max(axis=0), x.std(axis=0)
    varies = (np.ptp(x, axis=0) > 0) & (deviation > 1e-8 * size)
    return np.where(varies, deviation, np.where(size > 0, size, 1.0))


def rows_of(X: Any) -> list[Any]:
    """What `X` consists of along its first axis: the rows of a frame of pandas, not its names."""
    return list(np.asarray(X) if hasattr(X, "__array__") else X)


def one_or_many(y: Any) -> list[Any]:
    """A list of series, also of one series `(time,)`."""
    rows = rows_of(y)
    return [rows] if rows and np.ndim(rows[0]) == 0 else rows


def as_sequences(X: Any) -> list[np.ndarray]:
    """Series with time last, as in aeon, as arrays `(time, channels)`, as in Keras."""
    series = [np.asarray(x, "float64") for x in rows_of(X)]
    series = [x[None] if x.ndim == 1 else x for x in series]
    if not series:
        raise ValueError("There must be at least one series, received none.")
    for x in series:
        if x.ndim != 2 or 0 in x.shape:
            raise ValueError(f"A series must be (channels, time), received the shape {x.shape}.")
        if len(x) != len(series[0]):
            raise ValueError(
                f"All series must have as many channels, received {len(series[0])} and {len(x)}. "
                "The axes are (N, channels, time)."
            )
        if not np.isfinite(x).all():
            raise ValueError("Series must be finite. Fill in missing values first.")
    return [x.T for x in series]
