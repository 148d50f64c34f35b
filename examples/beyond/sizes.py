"""What width, states, depth and learning rate are worth, on the quick start's series.

    KERAS_BACKEND=jax python examples/beyond/sizes.py           about 20 minutes on one core
    KERAS_BACKEND=jax python examples/beyond/sizes.py report    writes docs/building.md

One setting changes at a time, the others are those of `BASE`. Each finished run is one file in
`results/sizes/`, and is not run again.
"""

import collections
import functools
import pathlib
import time

import tables

if __name__ == "__main__":
    # --help and mistakes end here: what follows needs a backend.
    arguments = tables.arguments(__doc__, seeds=3)

import keras
import numpy as np
from series import TASKS

from keras_coffee import CoffeeLayer

RESULTS = pathlib.Path("results/sizes")
PAGE = pathlib.Path("docs/building.md")
BASE = {"width": 32, "n": 8, "blocks": 2, "rate": 0.01}
VALUES = {
    "width": (4, 8, 16, 32, 64),
    "n": (1, 2, 4, 8, 16, 32),
    "blocks": (1, 2, 4, 8),
    "rate": (0.001, 0.003, 0.01, 0.03, 0.1),
}
TITLES = {"width": "width D", "n": "states n", "blocks": "blocks", "rate": "learning rate"}
EPOCHS = 8


def settings():
    """Every setting once, the one of `BASE` first."""
    changed = [BASE | {name: value} for name, values in VALUES.items() for value in values]
    return [dict(pairs) for pairs in dict.fromkeys(tuple(s.items()) for s in [BASE, *changed])]


def build(features, width, n, blocks):
    """Residual blocks of normalized `CoffeeLayer`s, and the last step."""
    inputs = keras.Input((None, features))
    hidden = keras.layers.Dense(width)(inputs)
    for _ in range(blocks):
        mixed = CoffeeLayer(n)(keras.layers.LayerNormalization()(hidden))
        hidden = keras.layers.Add()([hidden, mixed])
    return keras.Model(inputs, keras.layers.Dense(1)(hidden[:, -1]))


def run(series, seed, rate, **sizes):
    """Trains one model; its error is that of the part that it has not seen."""
    keras.utils.set_random_seed(seed)
    model = build(series.train[0].shape[-1], **sizes)
    model.compile(keras.optimizers.Adam(rate), "mse")
    begin = time.perf_counter()
    model.fit(*series.train, epochs=EPOCHS, verbose=0)
    seconds = time.perf_counter() - begin
    inputs, targets = series.test
    error = model.predict(inputs, verbose=0) - targets
    return {
        "error": float(series.unit * np.sqrt(np.mean(error**2))),
        "parameters": model.count_params(),
        "seconds": round(seconds, 1),
    }


def run_all(seeds):
    series = TASKS["weather"]()
    for seed in range(seeds):
        for chosen in settings():
            name = "-".join(f"{key}{value}" for key, value in chosen.items())
            file = RESULTS / f"{name}.seed{seed}.json"
            again = functools.partial(run, series, seed, **chosen)
            tables.keep(file, chosen | {"seed": seed}, again)


def report():
    """Writes the tables into the page."""
    errors, parameters = collections.defaultdict(list), {}
    for result in tables.read(RESULTS):
        key = tuple(result[name] for name in BASE)
        errors[key].append(result["error"])
        parameters[key] = result["parameters"]
    parts = []
    for name, values in VALUES.items():
        keys = [tuple((BASE | {name: value}).values()) for value in values]
        means = [tables.mean(errors[key]) for key in keys]
        counts = [f"{parameters[key]:,}" for key in keys]
        lines = [[TITLES[name], *map(str, values)], ["---"] * (len(values) + 1)]
        lines += [["error", *means], ["parameters", *counts]]
        parts.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
    tables.fill(PAGE, "sizes", "\n".join(parts))


if __name__ == "__main__":
    report() if arguments.what == "report" else run_all(arguments.seeds)
