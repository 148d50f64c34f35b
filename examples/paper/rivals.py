"""Tables 1 and 3 with other layers and other starts: is S6 beaten, or only badly started?

Each runs at three learning rates, of which the best by validation counts, for at most twice the
steps that the paper gives COFFEE in Table 1.
"""

import functools
import statistics

import records
from induction_heads import InductionHeads
from rows import Row

PAPER_S6 = {"unit_symbol": None, "embeddings": "standard_normal"}
LAYERS = {
    "coffee": ("COFFEE, the paper's start", {}),
    "coffee-series": ("COFFEE, default start", {}),
    "s6": ("S6, the paper's start", PAPER_S6),
    "s6-series": ("S6, default start", PAPER_S6),
    "s6-mamba": ("`S6Layer.mamba`", PAPER_S6),
    "gru": ("GRU of 8 units", {"dim": 8}),
    "lstm": ("LSTM of 7 units", {"dim": 7}),
}
RATES = (0.003, 0.01, 0.03)
TASKS = {0: "Table 1", 1: "Table 3, one symbol of noise"}
Short = functools.partial(InductionHeads, steps=2_500, epochs=8)


def name_of(noise, layer, rate):
    return f"rivals-noise{noise}-{layer}-{rate}"


RIVALS = [
    Row(
        name_of(noise, layer, rate),
        f"{title}; {TASKS[noise]}; a learning rate of {rate}",
        Short(layer=layer, noise_length=noise, learning_rate=rate, **settings),
        None,
    )
    for noise in TASKS
    for layer, (title, settings) in LAYERS.items()
    for rate in RATES
]


def table(runs):
    """A row for each layer: parameters, then accuracy, steps and rate on each task."""
    columns = ["", "parameters"]
    for title in TASKS.values():
        columns += [f"{title}: accuracy", "steps", "rate", "other rates"]
    return columns, [
        [
            title,
            parameters(layer, runs),
            *(cell for noise in TASKS for cell in cells(noise, layer, runs)),
        ]
        for layer, (title, _) in LAYERS.items()
    ]


def parameters(layer, runs):
    known = [run for rate in RATES for run in runs[name_of(0, layer, rate)]]
    return str(known[0]["parameters"]) if known else ""


def cells(noise, layer, runs):
    """Accuracy, steps and rate of the best rate; then accuracies of the others."""
    tried = {rate: records.main_runs(runs[name_of(noise, layer, rate)]) for rate in RATES}
    tried = {rate: own for rate, own in tried.items() if own}
    if not tried:
        return ["not run yet", "", "", ""]
    best = max(tried, key=lambda rate: mean(max(x["history"]["val_accuracy"]) for x in tried[rate]))
    own = tried.pop(best)
    steps = mean(run["epochs"] * run["settings"]["steps"] for run in own)
    others = ", ".join(f"{accuracy(x)} ({rate})" for rate, x in tried.items())
    return [f"{accuracy(own)} ({len(own)})", f"{steps:,.0f}", str(best), others]


def accuracy(runs):
    return f"{mean(run['accuracy'] for run in runs):.4f}"


def mean(values):
    return statistics.mean(values)
