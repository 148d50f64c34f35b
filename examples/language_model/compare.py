"""Bits per character of Mamba, COFFEE and GRU with as many parameters and training steps.

    KERAS_BACKEND=jax python examples/language_model/compare.py           20 minutes, one busy core
    KERAS_BACKEND=jax python examples/language_model/compare.py report    the table of the docs

The first half of the rows that are kept chooses the learning rate, the other half judges. Each
finished run is one file in `results/language_model/`, and is not run again.
"""

import collections
import functools
import math
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "beyond"))

import tables

os.environ.setdefault("KERAS_BACKEND", "jax")

if __name__ == "__main__":
    # --help and mistakes end here: what follows needs a backend.
    chosen = tables.arguments(__doc__, seeds=1)

import characters
import numpy as np

RESULTS = pathlib.Path("results/language_model")
PAGE = pathlib.Path("docs/language_models.md")
RATES = (0.004, 0.01)
TITLES = {"mamba": "Mamba", "coffee": "COFFEE", "gru": "GRU"}


def run(text, arguments):
    """Trains one model, judges it and lets it write."""
    begin = time.perf_counter()
    model, _ = characters.train(text, arguments)
    seconds = time.perf_counter() - begin
    train, kept = characters.rows_of(text, arguments.length)
    halves = np.array_split(kept, 2)
    chooses, judges = (
        model.evaluate(rows[:, :-1], rows[:, 1:], verbose=0) / math.log(2) for rows in halves
    )
    written = characters.generate(
        model, arguments.prompt, arguments.new, arguments.temperature, arguments.seed
    )
    return {
        "validation": chooses,
        "bits": judges,
        "steps": arguments.epochs * math.ceil(len(train) / arguments.batch_size),
        "parameters": model.count_params(),
        "seconds": round(seconds, 1),
        "written": written,
    }


def run_all(text, seeds, options=("--epochs=1",)):
    for seed in range(seeds):
        for rate in RATES:
            for mixer in TITLES:
                given = [f"--mixer={mixer}", f"--learning-rate={rate}", f"--seed={seed}", *options]
                arguments = characters.parser().parse_args(given)
                settings = {"mixer": mixer, "rate": rate, "seed": seed}
                file = RESULTS / f"{mixer}-rate{rate:g}.seed{seed}.json"
                tables.keep(file, settings, functools.partial(run, text, arguments))


def report():
    """Writes the table and what the models wrote into the page, between its two marks."""
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for found in tables.read(RESULTS):
        runs[found["mixer"]][found["rate"]].append(found)
    lines = [
        "| | parameters | " + " | ".join(f"rate {rate:g}" for rate in RATES) + " | minutes |",
        "|---" * (3 + len(RATES)) + "|",
    ]
    samples = []
    for mixer, title in TITLES.items():
        by_rate = runs[mixer]
        best = min(by_rate, key=lambda rate: np.mean([x["validation"] for x in by_rate[rate]]))
        cells = []
        for rate in RATES:
            cell = tables.spread([found["bits"] for found in by_rate[rate]])
            cells.append(f"**{cell}**" if rate == best else cell)
        own = by_rate[best]
        minutes = f"{np.mean([found['seconds'] for found in own]) / 60:.1f}"
        lines.append(f"| {title} | {own[0]['parameters']:,} | {' | '.join(cells)} | {minutes} |")
        samples.append(f"{title}:\n\n```text\n{sample(own[0])}\n```\n")
    tables.fill(PAGE, "characters", "\n".join([*lines, "", *samples]))


def sample(found):
    """The prompt and what follows, up to the last whole word, without runs of blanks."""
    prompt = characters.parser().get_default("prompt")
    whole = (prompt + found["written"]).rpartition(" ")[0]
    lines = (" ".join(line.split()) for line in whole.splitlines())
    return "\n".join(line for line in lines if line)


if __name__ == "__main__":
    report() if chosen.what == "report" else run_all(characters.python_help(), chosen.seeds)
