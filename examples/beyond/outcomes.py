"""What the runs of a task reached: the better of two rates, and figures of a run."""

import collections
import statistics

import records
from experiments import BEYOND_IT
from models import MIXERS

TITLES = {
    "coffee": "COFFEE",
    "filter": "COFFEE, output filter",
    "inputgate": "COFFEE, gate sees the input",
    "linearized": "Linearized S6",
    "mamba": "S6, Mamba's",
    "mingru": "minGRU",
    "lru": "LRU",
    "gru": "GRU",
    "lstm": "LSTM",
}
# Of a wide table a narrow screen shows the first columns.
BEST_KNOWN_FIRST = sorted(MIXERS, key=lambda mixer: mixer not in ("gru", "lstm"))
VARIANTS = {
    (1, "parameters"): "One layer, equal parameters",
    (2, "parameters"): "Two layers, equal parameters",
    (1, "states"): "One layer, equal states",
    (2, "states"): "Two layers, equal states",
}
FIRST = next(iter(VARIANTS))


def grouped(by_row, kind="Beyond"):
    """The runs of each task, mixer, depth and size, by their rate, of one class of experiments."""
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in (run for own in by_row.values() for run in records.main_runs(own)):
        own = run["settings"]
        if run["experiment"] != kind:
            continue
        key = own["task"], own["mixer"], own["depth"], own["equal"]
        runs[key][own["learning_rate"]].append(run)
    return runs


def best(by_rate):
    """The runs at the rate that is best by validation; none if there are none."""
    return max(by_rate.values(), key=merit, default=[])


def merit(runs):
    """Accuracy in validation; of equal ones the smaller loss."""
    return mean(runs, validation), -mean(runs, lambda run: min(run["history"]["val_loss"]))


def validation(run):
    return run["history"]["val_accuracy"][run["best_epoch"] - 1]


def first(run):
    return run["accuracy"]


def beyond(run):
    """The accuracy in the hardest of the tests."""
    return min(run["accuracy"], *run["further"].values(), 1.0)


def mean(runs, figure):
    return statistics.mean(map(figure, runs))


def works(runs):
    return mean(runs, beyond) >= BEYOND_IT
