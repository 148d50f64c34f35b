"""What a search found: a table, a picture, the best model, a file of results."""

import json
import platform
import sys

import keras
import keras_tuner
import numpy as np
from matplotlib.figure import Figure

import keras_coffee

# KerasTuner's own notes among the hyperparameters.
NOTES = "tuner/"


def ranked(tuner):
    """Finished trials, the best first, as dictionaries for JSON."""
    trials = tuner.oracle.get_best_trials(len(tuner.oracle.trials))
    finished = [trial for trial in trials if trial.status == "COMPLETED"]
    return [
        {
            "rank": rank,
            "trial": trial.trial_id,
            "score": _number(trial.score),
            "accuracy": _number(_metric(trial, "val_accuracy")),
            "parameters": int(_metric(trial, "parameters")),
            "epochs": int(_metric(trial, "epochs")),
            "seconds": round(_metric(trial, "seconds"), 1),
            "hyperparameters": _active(trial.hyperparameters),
        }
        for rank, trial in enumerate(finished, start=1)
    ]


def table(trials, rows=10):
    """The best trials as text; a hyperparameter that another one disables is a dash."""
    names = list(dict.fromkeys(name for trial in trials for name in trial["hyperparameters"]))
    lines = [["rank", "score", "accuracy", "parameters", *names]]
    for trial in trials[:rows]:
        shown = [f"{trial['score']:.4f}", f"{trial['accuracy']:.4f}", str(trial["parameters"])]
        values = [_short(trial["hyperparameters"].get(name, "-")) for name in names]
        lines.append([str(trial["rank"]), *shown, *values])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def draw(trials, target, file):
    """Accuracy against parameters, a point a trial, the best one ringed."""
    axes = Figure(figsize=(7, 4.5), layout="constrained").subplots()
    axes.axhline(target, color="0.7", lw=1, zorder=0)
    counts = [trial["parameters"] for trial in trials]
    axes.scatter(counts, [trial["accuracy"] for trial in trials], s=22, alpha=0.7)
    best = trials[0]
    ring = {"s": 140, "facecolors": "none", "edgecolors": "C1", "linewidths": 2}
    label = f"best: {best['parameters']} parameters, {best['accuracy']:.4f}"
    axes.scatter([best["parameters"]], [best["accuracy"]], label=label, **ring)
    axes.set_xscale("log", base=2)
    # From one power of two to another, so that at least these two have a number.
    ends = np.floor(np.log2(min(counts) - 1)), np.ceil(np.log2(max(counts) + 1))
    axes.set_xlim(*np.exp2(ends))
    axes.set(xlabel="parameters", ylabel="validation accuracy")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    axes.figure.savefig(file, dpi=120)


def save_best(tuner, file):
    """Saves the best model, and gives its loss and accuracy on the test data."""
    (model,) = tuner.get_best_models()
    _, _, test = tuner.hypermodel.load_data()
    loss, accuracy = model.evaluate(test, verbose=0)
    # A copy without the optimizer, for the one of a model trained on torch loads nowhere else.
    keras.Sequential([*model.inputs, *model.layers]).save(file)
    return {"loss": loss, "accuracy": accuracy}


def write_results(file, identity, trials, test):
    framework = sys.modules[keras.config.backend()]
    modules = (keras_coffee, keras, keras_tuner, np, framework)
    versions = {module.__name__: module.__version__ for module in modules}
    content = {
        **identity,
        "versions": versions | {"python": platform.python_version()},
        "seconds": round(sum(trial["seconds"] for trial in trials), 1),
        "best": trials[0],
        "test": test,
        "trials": trials,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")


def _metric(trial, name):
    return trial.metrics.get_best_value(name)


def _number(value):
    return round(float(value), 6)


def _active(hyperparameters):
    """Values in use, in the order of the space."""
    values = {
        hp.name: hyperparameters.values[hp.name]
        for hp in hyperparameters.space
        if hyperparameters.is_active(hp) and not hp.name.startswith(NOTES)
    }
    # Among values that were given KerasTuner has 0 and 1 for no and yes.
    return values | {name: bool(values[name]) for name in ("output_filter",) if name in values}


def _short(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)
