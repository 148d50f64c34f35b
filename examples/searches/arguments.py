"""What a search is called with. Needs nothing that must be installed."""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ("induction-heads", "mnist")
TUNERS = ("random", "hyperband", "bayesian")
OBJECTIVES = ("accuracy", "fewest-parameters")


def make_parser(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", choices=MODELS, nargs="?", default="induction-heads")
    add("--tuner", choices=TUNERS, default="random", help="default: random")
    add("--objective", choices=OBJECTIVES, default="accuracy", help="default: accuracy")
    add("--trials", type=positive, default=20, help="not for Hyperband (default: 20)")
    settings = "default: that of the model"
    add("--target", type=float, help=f"validation accuracy that ends a trial; {settings}")
    add("--epochs", type=positive, help=f"of a trial, at most; {settings}")
    add("--patience", type=positive, help=f"epochs without gain that end a trial; {settings}")
    add("--steps", type=positive, help=f"batches in an epoch, induction heads only; {settings}")
    add("--seed", type=int, default=0, help="of weights, data and tuner (default: 0)")
    only = "choose NAME from these values alone; may be given several times"
    add("--only", action="append", default=[], type=named_values, metavar="NAME=A,B", help=only)
    folder = {"type": pathlib.Path, "metavar": "DIR"}
    add("--work", **folder, help="of searches, to resume from (default: outputs/searches)")
    default = ROOT / "results" / "searches"
    add("--results", **folder, nargs="?", const=default, help="write a JSON file there too")
    add("--smoke", action="store_true", help="a few tiny trials of each model with each tuner")
    return parser


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, received {text}")
    return value


def named_values(text):
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise argparse.ArgumentTypeError(f"write NAME=A,B, as in n=1,2; received {text!r}")
    return name, [_parsed(value) for value in values.split(",")]


_SWITCH = {"no": False, "false": False, "yes": True, "true": True}


def _parsed(value):
    if value.lower() in _SWITCH:
        return _SWITCH[value.lower()]
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
