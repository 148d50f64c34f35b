"""Your own recurrence: our layer beside `keras.layers.RNN` over the same step.

    KERAS_BACKEND=torch python benchmarks/own_cell.py
    KERAS_BACKEND=jax python benchmarks/own_cell.py --length 784 --batch 32 --units 32

Both models have the same weights. Their outputs and their losses over a few steps of training are
compared before anything is timed. A time is that of `train_on_batch`, the median of rounds in which
the two take turns.
"""

import argparse
import statistics
from typing import Any

import arguments


def make_parser() -> argparse.ArgumentParser:
    parser = arguments.parser(__doc__)
    for name, default in (("batch", 32), ("length", 784), ("units", 32), ("repeats", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import measuring


def main() -> None:
    options = make_parser().parse_args()
    where, backend, reference = measuring.prepare(options.core)

    import numpy as np

    models = build(options.length, options.units)
    generator = np.random.default_rng(0)
    shape = options.batch, options.length, options.units
    inputs, targets = generator.normal(size=(2, *shape)).astype("float32")
    outputs = [[model.predict_on_batch(inputs)] for model in models]
    found = [[[float(model.train_on_batch(inputs, targets))] for _ in range(3)] for model in models]
    for ours, theirs in zip([*outputs[:1], *found[0]], [*outputs[1:], *found[1]], strict=True):
        difference = max(measuring.differences(ours, theirs))
        if difference > measuring.TOLERANCE:
            raise SystemExit(f"The two differ by {difference:.1e}; nothing is timed.")

    def train(model):
        return lambda: model.train_on_batch(inputs, targets)

    times = measuring.take_turns([train(model) for model in models], [options.repeats] * 2)
    ours, theirs = (statistics.median(clock for _, clock in side.values()) for side in times)
    print("\n".join(measuring.environment(reference, where)))
    print(measuring.line(["backend", "ours, ms", "keras.layers.RNN, ms", "RNN / ours"]))
    print(measuring.line(["---"] * 4))
    cells = [backend, f"{1e3 * ours:.1f}", f"{1e3 * theirs:.1f}", f"{theirs / ours:.2f}"]
    print(measuring.line(cells))


def build(length: int, units: int) -> list[Any]:
    """Our model, and that of `keras.layers.RNN`, with the same weights."""
    import keras
    from own_cell_layers import Gated, KerasCell

    models = []
    for layer in (Gated(units), keras.layers.RNN(KerasCell(units), return_sequences=True)):
        dense = keras.layers.Dense(2 * units)
        models.append(keras.Sequential([keras.Input((length, units)), dense, layer]))
        models[-1].compile(keras.optimizers.SGD(0.1), "mse")
    models[1].set_weights(models[0].get_weights())
    return models


if __name__ == "__main__":
    main()
