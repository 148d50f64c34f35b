"""A whole training step of `fit`: COFFEE beside a GRU of as many parameters, and what kernels save.

    KERAS_BACKEND=jax python benchmarks/training_step.py
    KERAS_BACKEND=torch python benchmarks/training_step.py --lengths 24 --steps 50

First the forecaster of the quick start (257 parameters) and the same with `GRU(4)` (317), in
batches of 32 windows; then the model of `make demo`, in batches of 512 sequences, with kernels and
with KERAS_COFFEE_KERNELS=0. The two sides of a row take turns. A time is the median of calls of
`fit`, divided by its steps, on one pinned core. What the forecasters learn from is random: it makes
no difference.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import arguments


def make_parser() -> argparse.ArgumentParser:
    parser = arguments.parser(__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[24, 200, 784], metavar="T")
    parser.add_argument("--steps", type=int, default=20, help="steps of each call of fit")
    parser.add_argument("--repeats", type=int, default=9, help="timed calls of each side")
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import measuring

EXAMPLES = Path(__file__).parents[1] / "examples"
BATCH, FEATURES, WIDTH = 32, 2, 16


def main() -> None:
    options = make_parser().parse_args()
    where, _, reference = measuring.prepare(options.core)
    rows = [_times(forecasters(length, options.steps), options) for length in options.lengths]
    demo = _times(demonstrations(options.steps), options)
    print(*measuring.environment(reference, where), sep="\n")
    print("\nThe forecaster, ms per step:\n")
    print(measuring.line(["T", "COFFEE", "GRU", "GRU / COFFEE"]))
    print(measuring.line(["---"] * 4))
    for length, times in zip(options.lengths, rows, strict=True):
        print(measuring.line([f"{length}", *_cells(times)]))
    print("\nThe demo, ms per step:\n")
    print(measuring.line(["with kernels", "without", "without / with"]))
    print(measuring.line(["---"] * 3))
    print(measuring.line(_cells(demo)))


def _times(sides: Sequence[Callable[[], Any]], options: Any) -> list[float]:
    """Milliseconds per step of each side."""
    for side in sides:
        side()  # compiles
    times = measuring.take_turns(sides, [options.repeats] * len(sides))
    medians = [statistics.median(processor for processor, _ in side.values()) for side in times]
    return [1e3 * seconds / options.steps for seconds in medians]


def _cells(times: Sequence[float]) -> list[str]:
    first, second = times
    return [f"{first:.2f}", f"{second:.2f}", f"{second / first:.2f}"]


def forecasters(length: int, steps: int) -> list[Callable[[], Any]]:
    """Calls of `fit` for COFFEE and for GRU."""
    import keras
    import numpy as np

    from keras_coffee import CoffeeLayer

    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(BATCH * steps, length, FEATURES)).astype("float32")
    targets = inputs[:, -1, :1]

    def side(layer: keras.layers.Layer) -> Callable[[], Any]:
        dense = keras.layers.Dense(WIDTH), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((None, FEATURES)), dense[0], layer, dense[1]])
        model.compile(keras.optimizers.Adam(0.01), loss="mse")
        return lambda: model.fit(inputs, targets, batch_size=BATCH, verbose=0)

    return [side(CoffeeLayer(n=4, return_sequences=False)), side(keras.layers.GRU(4))]


def demonstrations(steps: int) -> list[Callable[[], Any]]:
    """Calls of `fit` for the demo, with kernels and without."""
    sys.path.append(str(EXAMPLES))
    import induction_head as demo

    settings = demo.make_parser().parse_args(["--steps", str(steps), "--epochs", "1"])
    demo.complete(settings)

    def side(kernels: str) -> Callable[[], Any]:
        train, _ = demo.load_data(settings)
        model = demo.build_model(settings)
        demo.compile_model(model, settings)

        def run():
            # Read when a program is traced, and on PyTorch at each call.
            os.environ["KERAS_COFFEE_KERNELS"] = kernels
            model.fit(train, shuffle=False, verbose=0)

        return run

    return [side("1"), side("0")]


if __name__ == "__main__":
    main()
