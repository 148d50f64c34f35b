"""Searches hyperparameters of COFFEE with KerasTuner.

    KERAS_BACKEND=jax python examples/searches/search.py induction-heads
    KERAS_BACKEND=jax python examples/searches/search.py mnist --tuner hyperband
    KERAS_BACKEND=jax python examples/searches/search.py induction-heads --tuner bayesian \\
        --objective fewest-parameters --trials 30 --only feedback=sigmoid --results

The same command goes on with a search that was interrupted; with more --trials, beyond its end.
README.md has the spaces and what was found. Needs the extras tuner and plots.
"""

import os
import signal
import sys

import arguments

if __name__ == "__main__":
    # --help and mistakes end here: what follows needs a backend and KerasTuner.
    arguments.make_parser(__doc__).parse_args()

import keras_coffee  # noqa: F401  isort: skip. First: it says which backend is missing.

import keras
import leaderboard
from hypermodels import InductionHeadHyperModel, MnistHyperModel
from project import Project, UnusableError

MODELS = {"induction-heads": InductionHeadHyperModel, "mnist": MnistHyperModel}
SMOKE = {
    "induction-heads": {"steps": 4, "batch_size": 8, "validation_sequences": 1000},
    "mnist": {"batch_size": 8, "images": "noise"},
}
# KerasTuner's chief and its workers are this script, with this in their environment.
ROLE = "KERASTUNER_TUNER_ID"


def main(argv=None):
    parser = arguments.make_parser(__doc__)
    args = parser.parse_args(argv)
    if args.smoke and args.results:
        parser.error("--smoke finds nothing that is worth --results")
    try:
        for tuner in arguments.TUNERS if args.smoke else [args.tuner]:
            for model in MODELS if args.smoke else [args.model]:
                run(args, model, tuner)
    except UnusableError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on.")
        sys.exit(128 + signal.SIGINT)


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
    base = args.work or arguments.ROOT / "outputs" / (
        "smoke/searches" if args.smoke else "searches"
    )
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


if __name__ == "__main__":
    main()
