"""The estimators with COFFEE and with a GRU, on series of aeon's wheel.

    KERAS_BACKEND=jax python examples/time_series/compare.py           ten minutes on one core
    KERAS_BACKEND=jax python examples/time_series/compare.py report    the table of the docs

Each finished run is one file in `results/time_series/`, and is not run again. The wheel is fetched
from the package index and not installed.
"""

import collections
import functools
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "beyond"))

import tables

if __name__ == "__main__":
    # --help and mistakes end here: what follows needs a backend.
    arguments = tables.arguments(__doc__, seeds=3)

import keras
import numpy as np
import series
from estimators import SeriesClassifier, SeriesForecaster, coffee

RESULTS = pathlib.Path("results/time_series")
PAGE = pathlib.Path("docs/when_to_use.md")
TITLES = {
    "JapaneseVowels": "JapaneseVowels, 7 to 29 steps: accuracy",
    "ItalyPowerDemand": "ItalyPowerDemand, 24 steps: accuracy",
    "Airline": "Airline, 12 months ahead: score",
}


def gru():
    return keras.layers.GRU(32, return_sequences=True)


LAYERS = {"coffee": coffee, "gru": gru}


def classify(name, epochs, seed, layer):
    """The estimator after `fit`, and its accuracy on the archive's test set."""
    classifier = SeriesClassifier(layer, epochs=epochs, random_state=seed)
    classifier.fit(*series.labelled(name, "TRAIN"))
    return classifier, classifier.score(*series.labelled(name, "TEST"))


def foresee(seed, layer):
    """The same for the logarithm of airline passengers, of which the last three years are judged.

    The value twelve months before, which `score` compares with, is that of the same month.
    """
    file = series.archive() / "Airline" / "Airline.csv"
    passengers = np.log(np.loadtxt(file, delimiter=",", skiprows=1, usecols=1))
    forecaster = SeriesForecaster(layer, horizon=12, window=24, epochs=200, random_state=seed)
    forecaster.fit(passengers[:108])
    return forecaster, forecaster.score(passengers[108 - 24 - 11 :])


TASKS = {
    "JapaneseVowels": functools.partial(classify, "JapaneseVowels", 40),
    "ItalyPowerDemand": functools.partial(classify, "ItalyPowerDemand", 200),
    "Airline": foresee,
}


def run(task, layer, seed):
    begin = time.perf_counter()
    estimator, score = TASKS[task](seed, LAYERS[layer])
    seconds = round(time.perf_counter() - begin, 1)
    return {"score": score, "parameters": estimator.model_.count_params(), "seconds": seconds}


def run_all(seeds):
    for seed in range(seeds):
        for task in TASKS:
            for layer in LAYERS:
                settings = {"task": task, "layer": layer, "seed": seed}
                file = RESULTS / f"{task}-{layer}.seed{seed}.json"
                tables.keep(file, settings, functools.partial(run, task, layer, seed))


def report():
    """Writes the table into the page, between its two marks."""
    runs = collections.defaultdict(list)
    for found in tables.read(RESULTS):
        runs[found["task"], found["layer"]].append(found)
    lines = ["| | COFFEE, n = 8 | GRU of 32 units |", "|---|---|---|"]
    for task, title in TITLES.items():
        cells = [
            f"{tables.spread([x['score'] for x in own])}, {own[0]['parameters']:,} parameters"
            for own in (runs[task, layer] for layer in LAYERS)
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    tables.fill(PAGE, "estimators", "\n".join(lines))


if __name__ == "__main__":
    report() if arguments.what == "report" else run_all(arguments.seeds)
