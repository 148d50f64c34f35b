"""What a token costs, as a stream goes on.

    KERAS_BACKEND=jax python benchmarks/streaming.py
    KERAS_BACKEND=torch python benchmarks/streaming.py --tokens 20000
    KERAS_BACKEND=jax python benchmarks/streaming.py --generate 64,16,2,256 --tokens 200

Feeds a model of three layers, and one of four residual blocks, one token at a time and compares:
the outputs with those of the whole sequence at once, the time of a token in the first tenth of the
stream with that in the last, and with that of `model.predict` of one token, which has no past. The
time is that of the processor, all threads together.

With --generate it writes tokens instead, each the likeliest after those before it, by Mambas with
random weights; beside `generate` of transformers, which runs on PyTorch in any case, with the same
weights. Logits are compared first. Both take turns.
"""

import argparse
import functools
import os
import time

import arguments


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument(
        "--generate",
        type=arguments.shape_of,
        nargs="+",
        metavar="D,n,layers,vocabulary",
        help="sizes of Mambas that write; 768,16,24,50280 are those of Mamba-130m",
    )
    parser.add_argument("--repeats", type=int, default=5, help="of a text that is generated")
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

os.environ.setdefault("OMP_NUM_THREADS", "1")

# transformers imports it through PyTorch. Loaded after TensorFlow, it ends the process.
try:
    import triton  # noqa: F401
except ImportError:
    pass

import keras
import measuring
import numpy as np
from keras import ops

from keras_coffee import CoffeeLayer, S6Layer, Stream
from keras_coffee.layers import MambaMixer
from keras_coffee.models import from_transformers, language_model

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


def mambas(dim, n, layers, vocabulary):
    """Ours, and that of transformers with the same weights, or None if it is not installed."""
    try:
        import torch
        from transformers import MambaConfig, MambaForCausalLM
    except ImportError as error:
        print(f"left out: transformers: {error}")
        return language_model(vocabulary, dim, [MambaMixer(n) for _ in range(layers)]), None
    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=vocabulary,
        hidden_size=dim,
        state_size=n,
        num_hidden_layers=layers,
        initializer_range=0.02,  # with its default, 24 layers amplify rounding
        eos_token_id=None,  # a text of full length
        pad_token_id=0,
    )
    theirs = MambaForCausalLM(config).eval()
    return from_transformers(theirs), theirs


def greedy(model):
    """From a token and a state the likeliest next token, the logits and the new state."""
    stream = Stream(model)

    def step(token, state):
        logits, state = stream.step(token, state)
        return ops.cast(ops.argmax(logits, -1), "int32"), logits, state

    if keras.config.backend() != "jax":
        return compiled(step), stream.get_initial_state(BATCH)
    import jax

    # The weights as arguments: as constants they would be copied into the program.
    @jax.jit
    def run(weights, token, state):
        with keras.StatelessScope(zip(model.variables, weights, strict=True)):
            return step(token, state)

    weights = [x.value for x in model.variables]
    return functools.partial(run, weights), stream.get_initial_state(BATCH)


def write(step, state, length, fed=None):
    """Tokens `(T,)`, of which 0 is the first, and the logits of each. `fed`: the tokens to take."""
    token, tokens, logits = np.zeros(BATCH, "int32"), [], []
    for t in range(length):
        token = np.full(BATCH, fed[t], "int32") if fed is not None else token
        tokens.append(int(ops.convert_to_numpy(token)[0]))
        token, found, state = step(token, state)
        if fed is not None:
            logits.append(ops.convert_to_numpy(found)[0])
    return np.array(tokens), logits


def report_generation(sizes, length, repeats):
    model, theirs = mambas(*sizes)
    step, state = greedy(model)
    runs = {"ours": lambda: write(step, state, length)}
    tokens, _ = runs["ours"]()
    if theirs is not None:
        import torch

        def generate():
            start = torch.zeros((BATCH, 1), dtype=torch.long)
            options = {"max_new_tokens": length - 1, "do_sample": False}
            return theirs.generate(start, **options)[0]

        runs["transformers"] = generate
        expected = generate()
        with torch.inference_mode():
            whole = theirs(expected[None]).logits[0].numpy()
        _, logits = write(step, state, length, fed=expected.tolist())
        (error,) = measuring.differences([np.stack(logits)], [whole])
        if error > measuring.TOLERANCE:
            raise SystemExit(f"Nothing was timed: logits are off by {error:.1e}.")
        same = int((tokens == expected.numpy()).sum())
        print(f"logits off by {error:.1e} of the largest; {same} of {length} tokens the same")
    times = measuring.take_turns(list(runs.values()), [repeats] * len(runs))
    seconds = [np.array([x[turn][0] for turn in range(repeats)]) for x in times]
    for name, found in zip(runs, seconds, strict=True):
        low, middle, high = np.quantile(length / found, (0.25, 0.5, 0.75))
        ratio = np.median(found / seconds[0])
        print(
            f"{keras.config.backend()}, Mamba {sizes}, {name}: {length} tokens, "
            f"{middle:.4g} ({low:.4g}-{high:.4g}) a second, {ratio:.3g} times the time of ours"
        )


def main():
    options = make_parser().parse_args()
    for sizes in options.generate or ():
        report_generation(sizes, options.tokens, options.repeats)
    for build in () if options.generate else (three_layers, residual_blocks):
        keras.utils.set_random_seed(0)
        report(build(), options.tokens)


if __name__ == "__main__":
    main()
