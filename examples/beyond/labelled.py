"""Series with a label each, from the UEA and UCR archives, in the blocks of experiments.py.

Mixers have the same sizes as there. Labels are read from the mean over the steps. Features have
mean 0 and variance 1 in training; a quarter of each class in the training set is for validation;
tests are the archives' own.

    KERAS_BACKEND=jax python examples/beyond/labelled.py

prints how accurate the nearest neighbour is on the archives' sets of one feature, which they
publish.
"""

import argparse
import dataclasses

if __name__ == "__main__":
    # --help and mistakes end here: what follows needs a backend.
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()

import keras
import numpy as np
import series
from experiments import RATES, Beyond, Task
from models import MIXERS, gated_series
from rows import Row

from keras_coffee.datasets.generators import generator_of

HELD_OUT = 4  # one sequence in so many is for validation


def thousand(title, make, batch_size, chance, why):
    """A task of 1,000 steps."""
    settings = {"train": {}, "tests": {"test": {}}, "works": (), "epochs": 10}
    settings |= {"batch_size": batch_size, "chance": chance}
    return Task(title=title, make=make, why=why, **settings)


TASKS = {
    "demand": thousand(
        "ItalyPowerDemand", series.demand, 32, 0.50, "0.95 to 0.97 with every layer."
    ),
    "vowels": thousand(
        "JapaneseVowels", series.vowels, 32, 0.24, "GRU and LSTM 0.98, the others 0.96 and more."
    ),
    "motions": thousand(
        "BasicMotions", series.motions, 16, 0.25, "0.95 and more with every layer."
    ),
    "leaves": thousand(
        "OSULeaf",
        series.leaves,
        32,
        0.23,
        "0.6 to 0.8. A shape is a pattern of some fifty steps. GRU and LSTM are ahead, because "
        "their units see one another.",
    ),
    "appliances": thousand(
        "ACSF1",
        series.appliances,
        16,
        0.10,
        "0.6 to 0.8. S6 and LRU are ahead, whose states start with many rates of decay.",
    ),
}


class Sequences(keras.utils.PyDataset):
    """Batches `(series, labels)`, the same on every backend.

    Args:
        series: Array `(number, time, features)`.
        labels: Integers `(number,)`.
        batch_size: Sequences in a batch.
        steps: Batches in an epoch, each drawn anew. Defaults to None: all sequences in order.
        seed: Of what is drawn.
    """

    def __init__(self, series, labels, batch_size, steps=None, seed=0):
        super().__init__()
        self.series, self.labels = series, labels
        self.batch_size, self.steps, self.seed = batch_size, steps, seed
        self.epoch = 0

    def __len__(self):
        return self.steps or -(-len(self.labels) // self.batch_size)

    def __getitem__(self, index):
        chosen = slice(index * self.batch_size, (index + 1) * self.batch_size)
        if self.steps:
            generator = generator_of(self.seed, self.epoch, index)
            chosen = generator.choice(len(self.labels), self.batch_size, replace=False)
        return self.series[chosen], self.labels[chosen]

    def on_epoch_end(self):
        self.epoch += 1


def standardized(data):
    """The series with features of mean 0 and variance 1 in training. Padding stays."""
    counts = data.train[0][(data.train[0] != series.PADDING).any(axis=-1)]
    mean, deviation = counts.mean(axis=0), counts.std(axis=0)

    def scaled(x, y):
        padding = (x == series.PADDING).all(axis=-1, keepdims=True)
        return np.where(padding, x, (x - mean) / deviation), y

    return dataclasses.replace(data, train=scaled(*data.train), test=scaled(*data.test))


def nearest(data):
    """The accuracy of the label that the nearest series in training has, by Euclid's distance."""
    (known, labels), (asked, expected) = data.train, data.test
    distances = [np.square(known - one).sum(axis=(1, 2)) for one in asked]
    return np.mean(labels[np.argmin(distances, axis=1)] == expected)


def held_out(labels, seed):
    """Whether each sequence is for validation: equal shares of all classes, drawn by a seed."""
    order = generator_of(seed).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(len(labels), bool)
    chosen[by_class[::HELD_OUT]] = True
    return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled(Beyond):
    """One set with one mixer."""

    tasks = TASKS

    def build_model(self):
        data = TASKS[self.task].make()
        return gated_series(self.mixers(), data.train[0].shape[-1], data.classes)

    def load_data(self, seed):
        data = standardized(TASKS[self.task].make())
        x, y = data.train
        held = held_out(y, seed)
        rest = Sequences(x[~held], y[~held], self.batch_size, self.steps, seed)
        return rest, Sequences(x[held], y[held], 64), Sequences(*data.test, 64)


ROWS = [
    Row(
        f"labelled-{task}-{mixer}-rate{rate:g}",
        f"{TASKS[task].title}, {mixer}, rate {rate:g}",
        Labelled.of(task, mixer=mixer, learning_rate=rate),
        None,
    )
    for rate in RATES
    for task in TASKS
    for mixer in MIXERS
]

if __name__ == "__main__":
    for name in ("demand", "leaves", "appliances"):
        print(f"{TASKS[name].title}: {nearest(TASKS[name].make()):.4f}")
