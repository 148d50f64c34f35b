"""What a token costs, as a stream goes on.

    KERAS_BACKEND=jax python benchmarks/streaming.py
    KERAS_BACKEND=torch python benchmarks/streaming.py --tokens 20000

Feeds a model of three layers one token at a time and compares: the outputs with those of the whole
sequence at once, and the time of a token in the first tenth of the stream with that in the last.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import numpy as np

from keras_coffee import CoffeeLayer, S6Layer, Stream

BATCH, DIM = 1, 16


def build():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((None, DIM)),
            CoffeeLayer(8),
            keras.layers.LayerNormalization(),
            S6Layer(8),
            keras.layers.Dense(DIM),
        ]
    )


def compiled(function):
    """As a user would compile it."""
    match keras.config.backend():
        case "jax":
            import jax

            return jax.jit(function)
        case "tensorflow":
            import tensorflow as tf

            return tf.function(function)
        case "torch":
            import torch

            torch.set_num_threads(1)
            return torch.inference_mode()(function)


def feed(stream, tokens):
    """Outputs of all tokens, and the seconds that each took."""
    step, state = compiled(stream.step), stream.get_initial_state(BATCH)
    outputs, seconds = np.empty_like(tokens), np.empty(tokens.shape[1])
    step(tokens[:, 0], state)
    for t in range(tokens.shape[1]):
        start = time.perf_counter()
        outputs_t, state = step(tokens[:, t], state)
        outputs[:, t] = keras.ops.convert_to_numpy(outputs_t)
        seconds[t] = time.perf_counter() - start
    return outputs, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    arguments = parser.parse_args()
    model = build()
    shape = (BATCH, arguments.tokens, DIM)
    tokens = np.random.default_rng(0).normal(size=shape).astype("float32")
    outputs, seconds = feed(Stream(model), tokens)
    whole = keras.ops.convert_to_numpy(model(tokens))
    error = abs(outputs - whole).max() / abs(whole).max()
    tenth = max(1, arguments.tokens // 10)
    first, last = (1e6 * np.median(part) for part in (seconds[:tenth], seconds[-tenth:]))
    print(
        f"{keras.config.backend()}: {arguments.tokens} tokens, "
        f"median {first:.0f} µs a token in the first tenth, {last:.0f} µs in the last, "
        f"ratio {last / first:.2f}; largest difference to the full pass {error:.1e} of the "
        "largest output"
    )


if __name__ == "__main__":
    main()
