"""The induction-head task: say again what followed the trigger the first time.

    noise     ‖ trigger ‖ target ‖ noise           ‖ trigger     answer
    5 2 7 3 3 ‖ 1       ‖ 4      ‖ 6 6 2 5 3 7 2 5 ‖ 1           4

Where the trigger stands and what follows it differs from sequence to sequence, so a model has to
notice it in passing and keep the symbol after it. COFFEE learns to, with 512 parameters; S6, whose
gate sees the input but not the state, gets two thirds right after a hundred times the training.
Training ends once the accuracy is 0.998, which takes 2,000 to 10,000 steps.

    KERAS_BACKEND=jax python examples/induction_head.py
    KERAS_BACKEND=jax python examples/induction_head.py --model s6

The default settings are those of Table 1 of "Context-Selective State Space Models: Feedback is
All You Need". `--help` lists what can be changed; all tables of the paper are in paper/.
"""

import argparse
import functools
import json
import math
import pathlib
import platform
import sys
import time

# The accuracy in the paper for n=8, D=16, length 16.
PAPER = {
    "coffee": 0.99,
    "coffee-no-feedback": 0.74,
    "coffee-linear-feedback": 0.16,
    "linearized-s6": 0.68,
    "s6": 0.68,
    "s6-mamba": 0.68,
}
# Sequences are made of the symbols 1 to 7, and 0 is the padding. The paper's parameter counts,
# 3nD + 8D = 512 for COFFEE and 3nD + D² + 9D = 784 for S6, need one more, which never occurs.
SYMBOLS = 9
# Training ends here: what is counted afterwards on other sequences is at least 0.995, then.
TARGET = 0.998


def make_parser():
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options]",
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = functools.partial(parser.add_argument, metavar="NUMBER", type=positive_integer)
    add("--model", type=str, metavar="", choices=PAPER, default="coffee", help=", ".join(PAPER))
    solvers = "how states are found: auto, sequential; newton, elk for coffee; associative for s6"
    starts = "where weights start: paper, or series, the layers' default"
    add("--start", type=str, metavar="", choices=("paper", "series"), default="paper", help=starts)
    add("--solver", type=str, metavar="", default="auto", help=solvers)
    add("--n", default=8, help="states per feature")
    add("--dim", default=16, help="features, D")
    add("--length", default=16, help="symbols in a sequence")
    add("--trigger-length", default=1, help="symbols in the trigger")
    add("--target-length", default=1, help="symbols in the target")
    add("--noise-length", type=int, default=0, help="noise symbols between trigger and target")
    add("--batch-size", default=512, help="sequences in a training step")
    add("--epochs", default=3, help=f"epochs at most; an accuracy of {TARGET} ends training early")
    add("--steps", default=10_000, help="training steps in an epoch, as the paper counts them")
    add("--validate-every", default=1000, help="training steps in one of the epochs Keras shows")
    add("--seed", type=int, default=0, help="of the weights, the sequences and the trigger")
    add(
        "--output",
        type=pathlib.Path,
        default="outputs/induction_head",
        metavar="DIR",
        help="where to write",
    )
    rate_help = "of Adam (default: 0.003 for s6, else 0.01)"
    add("--learning-rate", type=positive_number, default=argparse.SUPPRESS, help=rate_help)
    unit_help = "symbol whose vector is fixed to ones; auto: 0 for coffee…, none for the others"
    units = ("auto", "none", *map(str, range(SYMBOLS)))
    add("--unit-symbol", type=str, choices=units, default="auto", metavar="", help=unit_help)
    return parser


def positive_integer(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def positive_number(text):
    if not 0 < float(text) < math.inf:
        raise ValueError
    return float(text)


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import keras_coffee  # isort: skip. First, since it says which backend is missing.

import keras

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.callbacks import StopAtTarget
from keras_coffee.datasets import InductionHead
from keras_coffee.layers import SoftminLogits, SymbolEmbedding

LAYERS = {
    "coffee": CoffeeLayer,
    "coffee-no-feedback": functools.partial(CoffeeLayer, feedback=None),
    "coffee-linear-feedback": functools.partial(CoffeeLayer, feedback="linear"),
    "linearized-s6": LinearizedS6Layer,
    "s6": S6Layer,
    "s6-mamba": S6Layer.mamba,
}


def load_data(args):
    task = dict(
        length=args.length,
        trigger_length=args.trigger_length,
        target_length=args.target_length,
        noise_length=args.noise_length,
        seed=args.seed,
    )
    train = InductionHead(**task, batch_size=args.batch_size, steps_per_epoch=args.validate_every)
    validation = InductionHead(**task, batch_size=1000, steps_per_epoch=10, split="validation")
    return train, validation


def build_model(args):
    start = "standard_normal" if args.model.startswith("s6") else "orthonormal_symbols"
    embedding = SymbolEmbedding(SYMBOLS, args.dim, args.unit_symbol, embeddings_initializer=start)
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            embedding,
            LAYERS[args.model](args.n, start=args.start, solver=args.solver),
            SoftminLogits(embedding, last=args.target_length),
        ]
    )


def compile_model(model, args):
    model.compile(
        optimizer=keras.optimizers.Adam(args.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def train_model(model, train, validation, args):
    compile_model(model, args)
    history = model.fit(
        train,
        validation_data=validation,
        epochs=args.epochs * args.steps // args.validate_every,
        callbacks=[StopAtTarget("val_accuracy", TARGET)],
        shuffle=False,  # the same order of batches on every backend
    ).history
    intervals = len(history["loss"])
    return {"steps": [args.validate_every * (k + 1) for k in range(intervals)], **history}


def save(model, history, results, args):
    # A copy without the optimizer, for the one of a model trained on torch loads nowhere else.
    keras.Sequential([*model.inputs, *model.layers]).save(args.output / "model.keras")
    plot_learning_curve(history, args)
    backend = keras.backend.backend()
    versions = {module.__name__: module.__version__ for module in (keras_coffee, keras)}
    versions |= {backend: sys.modules[backend].__version__, "python": platform.python_version()}
    report = {"settings": vars(args), "backend": backend, "versions": versions}
    report |= {"results": results, "history": history}
    (args.output / "results.json").write_text(json.dumps(report, indent=2, default=str) + "\n")


def plot_learning_curve(history, args):
    from matplotlib.figure import Figure  # needed for nothing else here

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        axes.plot(history["steps"], history[quantity], ".-", label="training")
        axes.plot(history["steps"], history[f"val_{quantity}"], ".-", label="validation")
        axes.set(xlabel="training steps", ylabel=quantity)
        axes.grid(alpha=0.3)
    axes.axhline(PAPER[args.model], color="grey", ls="--", label="paper (n=8, D=16, length 16)")
    axes.legend()
    figure.savefig(args.output / "learning_curve.png", dpi=150)


def main(argv=None):
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        complete(args)
        keras.utils.set_random_seed(args.seed)
        train, validation = load_data(args)
        model = build_model(args)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    args.output.mkdir(parents=True, exist_ok=True)
    model.summary()

    start = time.perf_counter()
    history = train_model(model, train, validation, args)
    seconds = time.perf_counter() - start
    loss, accuracy = model.evaluate(validation, verbose=0)  # on 10,000 sequences not seen before
    parameters = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    results = {"accuracy": accuracy, "loss": loss, "parameters": parameters}
    results |= {"steps": history["steps"][-1], "seconds": round(seconds, 1)}
    save(model, history, results, args)
    print(f"Learning curve, model and results are in {args.output}/.")
    summary = "validation accuracy={accuracy:.4f} loss={loss:.4f} parameters={parameters}"
    print((summary + " steps={steps}").format(**results))


def complete(args):
    """Settles the arguments that depend on others."""
    vars(args).setdefault("learning_rate", 0.003 if args.model.startswith("s6") else 0.01)
    if args.unit_symbol == "auto":
        args.unit_symbol = 0 if args.model.startswith("coffee") else "none"
    args.unit_symbol = None if args.unit_symbol == "none" else int(args.unit_symbol)
    args.validate_every = min(args.validate_every, args.epochs * args.steps)
    if args.epochs * args.steps % args.validate_every:
        raise ValueError("--validate-every must divide the number of steps, epochs times steps")


if __name__ == "__main__":
    main()
