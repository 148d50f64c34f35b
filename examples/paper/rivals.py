"""Tables 1, 3 and 5 with other layers and other starts: is S6 beaten?

Each runs at three learning rates, of which the best by validation counts, for at most twice the
steps that the paper gives COFFEE in Table 1.
"""

import statistics

import records
from induction_heads import InductionHeads
from mnist import FourDirectionMnist
from rows import Row

S6 = {"unit_symbol": None, "embeddings": "standard_normal"}
LAYERS = {
    "coffee": ("COFFEE, the paper's start", {}),
    "coffee-series": ("COFFEE, default start", {}),
    "s6": ("S6, the paper's start", S6),
    "s6-series": ("S6, default start", S6),
    "s6-mamba": ("`S6Layer.mamba`", S6),
    "gru": ("GRU of 8 units", {"dim": 8}),
    "lstm": ("LSTM of 7 units", {"dim": 7}),
}
SMALL = {
    f"{layer}-d{dim}": (title.format(dim), {"layer": layer, "dim": dim, "n": 1} | settings)
    for layer, title, settings in (
        ("coffee", "COFFEE, n=1, D={}", {"unit_symbol": None}),
        ("gru", "GRU of {} units", {}),
    )
    for dim in (2, 3, 4)
}
RATES = (0.003, 0.01, 0.03)
# Of each its title, what it changes, and its layers.
TASKS = {
    "noise0": ("Table 1", {}, LAYERS),
    "noise1": ("Table 3, one symbol of noise", {"noise_length": 1}, LAYERS),
    "length64": ("Table 5, 64 symbols", {"length": 64}, LAYERS),
    "small": ("Table 1 with few parameters, for at most 60,000 steps", {"epochs": 24}, SMALL),
}


def row(task, layer, rate):
    task_title, changes, layers = TASKS[task]
    title, settings = layers[layer]
    settings = {"layer": layer, "steps": 2_500, "epochs": 8, "learning_rate": rate} | settings
    label = f"{title}; {task_title}; a learning rate of {rate}"
    return Row(name_of(task, layer, rate), label, InductionHeads(**settings | changes), None)


def name_of(task, layer, rate):
    return f"rivals-{task}-{layer}-{rate}"


# By the paper's settings for COFFEE, of which it was not tuned for these.
IMAGES = {
    "gru": ("GRU of 6 units", {"n": 6}),
    "s6-mamba": ("`S6Layer.mamba`, n=2", {}),
    "coffee-series": ("COFFEE, n=2, default start", {}),
}
RIVALS = [
    Row(
        f"rivals-mnist-{layer}",
        f"{title}; MNIST in four directions",
        FourDirectionMnist(layer=layer, **settings),
        None,
    )
    for layer, (title, settings) in IMAGES.items()
] + [
    row(task, layer, rate)
    for task, (_, _, layers) in TASKS.items()
    for layer in layers
    for rate in RATES
]
IMAGE_COLUMNS = ("", "parameters", "accuracy", "seeds", "minutes")
COLUMNS = ("", "parameters", *(f"rate {rate}" for rate in RATES), "seeds")


def tables(runs):
    """For each task its title, and a line for each layer that was run on it."""
    for task, (title, _, layers) in TASKS.items():
        lines = [line(task, layer, runs) for layer in layers]
        yield title, [found for found in lines if found]


def images(runs):
    """A line for each layer that was run on MNIST in four directions, the paper's among them."""
    for name, title in {
        "mnist-coffee": "COFFEE, n=2, the paper's start",
        "mnist-coffee-output-filter": "COFFEE with output filter",
        "mnist-s6-n2": "S6, n=2, the paper's start",
        "tried-mnist-normalized": "COFFEE, n=2, the paper's start, pixels of mean 0 and variance 1",
        "tried-mnist-s6-n2-normalized": "S6, n=2, the paper's start, such pixels",
        **{f"rivals-mnist-{layer}": title for layer, (title, _) in IMAGES.items()},
    }.items():
        own = records.main_runs(runs[name])
        if own:
            minutes = statistics.mean(run["seconds"] for run in own) / 60
            accuracy_, count = accuracy(own), str(len(own))
            yield [title, f"{own[0]['parameters']:,}", accuracy_, count, f"{minutes:.1f}"]


def line(task, layer, runs):
    tried = {rate: records.main_runs(runs[name_of(task, layer, rate)]) for rate in RATES}
    counts = {rate: str(len(own)) for rate, own in tried.items() if own}
    if not counts:
        return None
    best = max(counts, key=lambda rate: merit(tried[rate]))
    found = {rate: f"{accuracy(tried[rate])} after {steps(tried[rate]):,.0f}" for rate in counts}
    found[best] = f"**{found[best]}**"
    parameters = str(tried[best][0]["parameters"])
    seeds = ", ".join(counts.values() if len({*counts.values()}) > 1 else [counts[best]])
    return [TASKS[task][2][layer][0], parameters, *(found.get(rate, "") for rate in RATES), seeds]


def merit(runs):
    """By validation: reaching the target soon, or else getting near it."""
    reached = all(run["stopped_by"] == "target" for run in runs)
    best = statistics.mean(max(run["history"]["val_accuracy"]) for run in runs)
    return reached, -steps(runs) * reached, best


def accuracy(runs):
    return f"{statistics.mean(run['accuracy'] for run in runs):.4f}"


def steps(runs):
    return statistics.mean(run["epochs"] * run["settings"]["steps"] for run in runs)
