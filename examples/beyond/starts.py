"""What a start is worth: every task with every layer in place of a GRU.

    KERAS_BACKEND=jax python examples/beyond/starts.py                  all of it, about two hours
    KERAS_BACKEND=jax python examples/beyond/starts.py weather --seeds 1
    KERAS_BACKEND=jax python examples/beyond/starts.py report           writes docs/building.md

Each finished run is kept in `results/starts/`; runs that are there are not made again.
"""

import argparse
import collections
import functools
import pathlib
import time

TASK_TITLES = {
    "weather": "temperature: error",
    "seasonal": "season with level shifts: error",
    "co2": "CO₂, 26 weeks ahead: error, ppm",
    "vowels": "JapaneseVowels: accuracy",
}


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = ", ".join(TASK_TITLES)
    parser.add_argument("names", nargs="*", help=f"of {names}, or report; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import keras
import numpy as np
import tables
from models import LAYERS, MODELS
from series import TASKS

RESULTS = pathlib.Path("results/starts")
PAGE = pathlib.Path("docs/building.md")
TITLES = {
    "gru": "GRU",
    "coffee": "COFFEE",
    "coffee_paper": "COFFEE, paper",
    "s6": "S6",
    "s6_paper": "S6, paper",
    "s6_mamba": "S6.mamba",
}
# Epochs and Adam's rate, the same for every layer.
TRAINING = {
    "weather": (8, 0.01),
    "seasonal": (8, 0.003),
    "co2": (15, 0.003),
    "vowels": (40, 0.003),
}


def rows(tasks):
    """Task, model and layer of every row. Four blocks only of what a newcomer would take."""
    for task in tasks:
        for model in MODELS:
            layers = ("gru", "coffee", "s6_mamba") if model == "four blocks" else LAYERS
            yield from ((task, model, layer) for layer in layers)


def run(name, series, model, layer, seed):
    """Trains one model, and judges it on the part that it has not seen."""
    epochs, rate = TRAINING[name]
    keras.utils.set_random_seed(seed)
    built = MODELS[model](LAYERS[layer], series.train[0].shape[-1], series.outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if series.classes else "mse"
    built.compile(keras.optimizers.Adam(rate), loss)
    begin = time.perf_counter()
    history = built.fit(*series.train, epochs=epochs, verbose=0).history
    return {
        "score": score(series, built.predict(series.test[0], verbose=0)),
        "loss": [round(loss, 5) for loss in history["loss"]],
        "parameters": built.count_params(),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def score(series, predicted):
    """The share that is right, or the root mean square error in the unit of the data."""
    targets = series.test[1]
    if series.classes:
        return float(np.mean(predicted.argmax(-1) == targets))
    return float(series.unit * np.sqrt(np.mean((predicted - targets) ** 2)))


def references(series):
    """The errors of what needs no recurrent layer."""
    found = {"the last value": np.zeros_like(series.test[1]), "a season before": series.season}
    found["a linear model"] = linear(*series.train, series.test[0])
    return {"errors": {name: score(series, guess) for name, guess in found.items()}}


def linear(x, y, test):
    """Ridge regression, with the penalty that is best on the last fifth of the training."""
    x, test = (
        np.insert(z.reshape(len(z), -1), 0, 1.0, axis=1).astype("float64") for z in (x, test)
    )
    kept = len(x) * 4 // 5

    def fit(rows, penalty):
        x_, y_ = x[:rows], y[:rows]
        return np.linalg.solve(x_.T @ x_ + penalty * np.eye(x.shape[1]), x_.T @ y_)

    def error(penalty):
        return np.mean((x[kept:] @ fit(kept, penalty) - y[kept:]) ** 2)

    return test @ fit(len(x), min(10.0 ** np.arange(-6, 5), key=error))


def run_all(names, seeds):
    for name in names:
        series = TASKS[name]()
        if series.season is not None:
            file = RESULTS / "references" / f"{name}.json"
            tables.keep(file, {"task": name}, functools.partial(references, series))
        # All seeds of a row before the next would leave no table when stopped.
        for seed in range(seeds):
            for task, model, layer in rows([name]):
                file = RESULTS / f"{task}.{model.replace(' ', '-')}.{layer}.seed{seed}.json"
                settings = {"task": task, "model": model, "layer": layer, "seed": seed}
                tables.keep(
                    file, settings, functools.partial(run, task, series, model, layer, seed)
                )


def report():
    """Writes the tables into the page."""
    scores = collections.defaultdict(list)
    for result in tables.read(RESULTS):
        scores[result["task"], result["model"], result["layer"]].append(result["score"])
    head = ["| | " + " | ".join(TITLES.values()) + " |", "|---" * (len(TITLES) + 1) + "|"]
    lines = head
    for task, title in TASK_TITLES.items():
        for model in MODELS:
            found = [scores[task, model, layer] for layer in TITLES]
            if any(found):
                cells = " | ".join(map(tables.mean, found))
                lines.append(f"| {title}, {model} ({seeds_of(found)}) | {cells} |")
    known = tables.read(RESULTS / "references")
    if known:
        lines += ["", f"| | {' | '.join(known[0]['errors'])} |", "|---|---|---|---|"]
    for found in known:
        cells = " | ".join(f"{error:.3f}" for error in found["errors"].values())
        lines.append(f"| {TASK_TITLES[found['task']]} | {cells} |")
    tables.fill(PAGE, "tables", "\n".join(lines))


def seeds_of(found):
    """How many runs the cells of a row have."""
    counts = sorted({len(scores) for scores in found if scores})
    return f"{' to '.join(map(str, counts))} seed{'s' * (counts[-1] > 1)}"


if __name__ == "__main__":
    arguments = make_parser().parse_args()
    if arguments.names == ["report"]:
        report()
    else:
        run_all(arguments.names or list(TASKS), arguments.seeds)
