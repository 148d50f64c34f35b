"""Searches hyperparameters of COFFEE with KerasTuner.

    KERAS_BACKEND=jax python examples/searches/search.py induction-heads
    KERAS_BACKEND=jax python examples/searches/search.py mnist --tuner hyperband
    KERAS_BACKEND=jax python examples/searches/search.py induction-heads --tuner bayesian \\
        --objective fewest-parameters --trials 30 --only feedback=sigmoid --results

The same command goes on with a search that was interrupted; with more --trials, beyond its end.
README.md has the spaces and what was found. Needs the extras tuner and plots.
"""

import argparse
import json
import os
import pathlib
import signal
import sys

import keras_coffee  # noqa: F401  isort: skip. First: it says which backend is missing.

import keras
import leaderboard
from hypermodels import InductionHeadHyperModel, MnistHyperModel
from objectives import OBJECTIVES
from project import TUNERS, Project, UnusableError

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {"induction-heads": InductionHeadHyperModel, "mnist": MnistHyperModel}
SMOKE = {
    "induction-heads": {"steps": 4, "batch_size": 8, "validation_sequences": 1000},
    "mnist": {"batch_size": 8, "images": "noise"},
}
# KerasTuner's chief and its workers are this script, with this in their environment.
ROLE = "KERASTUNER_TUNER_ID"


def main(argv=None):
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.smoke and args.results:
        parser.error("--smoke finds nothing that is worth --results")
    try:
        for tuner in TUNERS if args.smoke else [args.tuner]:
            for model in MODELS if args.smoke else [args.model]:
                run(args, model, tuner)
    except UnusableError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on.")
        sys.exit(128 + signal.SIGINT)


def make_parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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


def run(args, name, tuner_name):
    """Searches, or goes on, and shows what was found."""
    project, hypermodel = prepare(args, name, tuner_name)
    project.claim()
    tuner = project.make_tuner(hypermodel)
    if project.is_finished:
        print(f"{project.folder} is finished; --trials goes beyond its end, except for Hyperband.")
    else:
        print(f"The search is in {project.folder}.", flush=True)
        tuner.search()
    if ROLE not in os.environ:
        project.finish()
        show(project, tuner, args.results)


def prepare(args, name, tuner_name):
    if args.smoke:
        # With three epochs Hyperband continues a trial once.
        given = SMOKE[name] | {"epochs": 3 if tuner_name == "hyperband" else 2}
    else:
        names = ("target", "epochs", "patience", "steps")
        given = {key: vars(args)[key] for key in names if vars(args)[key] is not None}
        if name == "mnist" and "steps" in given:
            raise UnusableError("--steps is for induction heads; MNIST's epoch is all its images")
    try:
        hypermodel = MODELS[name](args.objective, seed=args.seed, only=dict(args.only), **given)
    except ValueError as error:
        raise UnusableError(f"--only: {error}") from error
    base = args.work or ROOT / "outputs" / ("smoke/searches" if args.smoke else "searches")
    parts = (name, tuner_name, args.objective, keras.config.backend(), f"seed{args.seed}")
    identity = {
        "model": name,
        "tuner": tuner_name,
        "objective": args.objective,
        "backend": keras.config.backend(),
        "settings": hypermodel.settings(),
    }
    trials = None if tuner_name == "hyperband" else 2 if args.smoke else args.trials
    return Project(base.absolute() / ".".join(parts), identity, trials), hypermodel


def show(project, tuner, results):
    trials = leaderboard.ranked(tuner)
    print(f"\n{len(trials)} trials, the best of them:\n\n{leaderboard.table(trials)}\n")
    model, picture = project.folder / "best.keras", project.folder / "accuracy_parameters.png"
    test = leaderboard.save_best(tuner, model)
    leaderboard.draw(trials, tuner.hypermodel.target, picture)
    print(f"Test accuracy of the best: {test['accuracy']:.4f}. Saved: {model}, {picture}")
    if results is not None:
        file = results / f"{project.folder.name}.json"
        leaderboard.write_results(file, project.identity, trials, test)
        print(f"Results: {file}")


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


def _parsed(value):
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


if __name__ == "__main__":
    main()
