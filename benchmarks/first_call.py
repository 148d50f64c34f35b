"""What a user waits for at first: the first call and the first training step of a fresh process.

    KERAS_BACKEND=jax python benchmarks/first_call.py

A model of `CoffeeLayer(8)` and `Dense(4)` is called with 32 sequences of 16 steps, then trained on
them for one step; imports are not counted. Each time is the median of `--repeats` processes, which
take turns: with an empty kernel cache, with the kernels of the process before, and without kernels.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import arguments

# The value of KERAS_COFFEE_KERNELS in each.
CASES = {"empty kernel cache": "1", "kept kernels": "1", "KERAS_COFFEE_KERNELS=0": "0"}
TIMES = "first call, s", "first training step, s", "second training step, s"


def make_parser() -> argparse.ArgumentParser:
    parser = arguments.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="processes of each case")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import measuring


def main() -> None:
    options = make_parser().parse_args()
    where, _, reference = measuring.prepare(options.core)
    if options.once:
        print(json.dumps(first_times()))
        return
    found: dict[str, list[list[float]]] = {case: [] for case in CASES}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for case, kernels in CASES.items():
                found[case].append(_times_of_a_process(kernels, cache))
    print(*measuring.environment(reference, where), sep="\n")
    print(measuring.line(["", *TIMES]))
    print(measuring.line(["---"] * (1 + len(TIMES))))
    for case, times in found.items():
        medians = map(statistics.median, zip(*times, strict=True))
        print(measuring.line([case, *(f"{seconds:.2f}" for seconds in medians)]))


def _times_of_a_process(kernels: str, cache: str) -> list[float]:
    """`first_times` of a process on the core of this one."""
    environment = os.environ | {"XDG_CACHE_HOME": cache, "KERAS_COFFEE_KERNELS": kernels}
    command = [sys.executable, __file__, "--once"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def first_times() -> list[float]:
    """Seconds of the first call and of two training steps, in this process."""
    import keras
    import numpy as np

    from keras_coffee import CoffeeLayer

    dense = keras.layers.Dense(4)
    model = keras.Sequential([keras.Input((16, 8)), CoffeeLayer(8, return_sequences=False), dense])
    model.compile("adam", "mse")
    x, y = np.ones((32, 16, 8), "float32"), np.ones((32, 4), "float32")

    def call():
        return keras.ops.convert_to_numpy(model(x))

    def train():
        return model.train_on_batch(x, y)

    times = []
    for step in (call, train, train):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return times


if __name__ == "__main__":
    main()
