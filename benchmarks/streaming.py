"""What a token costs, as a stream goes on.

    KERAS_BACKEND=jax python benchmarks/streaming.py
    KERAS_BACKEND=torch python benchmarks/streaming.py --tokens 20000

Feeds a model of three layers, and one of four residual blocks, one token at a time and compares:
the outputs with those of the whole sequence at once, the time of a token in the first tenth of the
stream with that in the last, and with that of `model.predict` of one token, which has no past. The
time is that of the processor, all threads together.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import numpy as np

from keras_coffee import CoffeeLayer, S6Layer, Stream

BATCH = 1


def three_layers(dim=16):
    return keras.Sequential(
        [
            keras.Input((None, dim)),
            CoffeeLayer(8),
            keras.layers.LayerNormalization(),
            S6Layer(8),
            keras.layers.Dense(dim),
        ],
        name="three_layers",
    )


def residual_blocks(dim=64):
    x = inputs = keras.Input((None, dim))
    for _ in range(4):
        x = x + CoffeeLayer(8)(keras.layers.LayerNormalization()(x))
    return keras.Model(inputs, x, name="residual_blocks")


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
        start = time.process_time()
        outputs_t, state = step(tokens[:, t], state)
        outputs[:, t] = keras.ops.convert_to_numpy(outputs_t)
        seconds[t] = time.process_time() - start
    return outputs, seconds


def predict(model, tokens, repeats=100):
    """The median seconds of `model.predict` of one token, after the first call."""
    seconds = []
    for _ in range(1 + repeats):
        start = time.process_time()
        model.predict(tokens[:, :1], verbose=0)
        seconds.append(time.process_time() - start)
    return np.median(seconds[1:])


def report(model, length):
    shape = (BATCH, length, model.inputs[0].shape[-1])
    tokens = np.random.default_rng(0).normal(size=shape).astype("float32")
    outputs, seconds = feed(Stream(model), tokens)
    whole = keras.ops.convert_to_numpy(model(tokens))
    error = abs(outputs - whole).max() / abs(whole).max()
    tenth = max(1, length // 10)
    first, last = (1e6 * np.median(part) for part in (seconds[:tenth], seconds[-tenth:]))
    print(
        f"{keras.config.backend()}, {model.name}: {length} tokens, "
        f"median {first:.0f} µs a token in the first tenth, {last:.0f} µs in the last, "
        f"ratio {last / first:.2f}, {1 / np.median(seconds):.0f} tokens a second; "
        f"model.predict of one token {1e6 * predict(model, tokens):.0f} µs; "
        f"largest difference to the full pass {error:.1e} of the largest output"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    length = parser.parse_args().tokens
    for build in (three_layers, residual_blocks):
        keras.utils.set_random_seed(0)
        report(build(), length)


if __name__ == "__main__":
    main()
