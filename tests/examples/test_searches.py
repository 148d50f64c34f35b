"""The searches: their spaces, what they leave, that they resume and fail aloud."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import programs
import pytest
from nightly import IS_THOROUGH, by_night

from keras_coffee import CoffeeLayer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "searches"
BACKEND = keras.config.backend()
search = programs.load_with_siblings(FOLDER / "search.py")
HEADS, MNIST = search.InductionHeadHyperModel, search.MnistHyperModel
objectives = programs.load(FOLDER / "objectives.py")

pytestmark = [
    # KerasTuner asks for the name of a thread in the old way.
    pytest.mark.filterwarnings("ignore:(currentThread|getName)\\(\\) is deprecated"),
    # A Gaussian process of one trial has nothing to fit its scales to.
    pytest.mark.filterwarnings("ignore:.*(close to the specified|lbfgs failed to converge)"),
]


def values_of(hypermodel, **given):
    """What a trial with these values has, the others at their defaults."""
    hp = keras_tuner.HyperParameters()
    hp.values.update(given)
    model = hypermodel.build(hp)
    return hp.values, sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


@by_night
@pytest.mark.parametrize(
    "given, parameters",
    [
        ({}, 528),
        ({"n": 1, "dim": 2, "distance": "squared_euclidean"}, 24),
        ({"n": 1, "dim": 2, "output_filter": True}, 26),
        ({"n": 2, "dim": 1, "feedback": "none"}, 15),
    ],
)
def test_models_of_the_induction_head_space(given, parameters):
    assert values_of(HEADS(), **given)[1] == parameters


def test_a_linear_gate_has_no_output_filter():
    values, _ = values_of(HEADS(), feedback="linear")
    assert "output_filter" not in values
    assert "output_filter" in values_of(HEADS(), feedback="sigmoid")[0]


def test_the_rate_is_lowered_only_by_the_rule_that_does_so():
    hypermodel = MNIST(images="noise")
    constant, parameters = values_of(hypermodel, rule="constant", head_width=25, n=2)
    assert not {"lower_below_loss", "lower_to"} & constant.keys()
    hp = keras_tuner.HyperParameters()
    hp.values.update(rule="lower", learning_rate=0.02, lower_to=0.25, lower_below_loss=0.3)
    hypermodel.build(hp)
    (rule,) = hypermodel.lower_learning_rate(hp)
    assert (rule.learning_rate, rule.below) == (pytest.approx(0.005), 0.3)
    assert {"lower_below_loss", "lower_to"} <= hp.values.keys()
    # Four layers of 25 features, 4n weights each; 200 outputs; the head.
    assert parameters == 4 * 25 * 8 + 101 * 25 + 26 * 10


def test_only_narrows_a_range():
    hypermodel = HEADS(only={"n": [1, 2], "dim": [4], "learning_rate": [0.02]})
    hp = keras_tuner.HyperParameters()
    hypermodel.build(hp)
    assert (hp["n"], hp["dim"], hp["learning_rate"]) == (1, 4, 0.02)
    assert hypermodel.largest_count == (4 * 2 + 9) * 4
    with pytest.raises(ValueError, match="no parameter 'width'; there are: n, dim, feedback"):
        HEADS(only={"width": [1]})


@pytest.mark.parametrize(
    "word, expected", [("no", False), ("false", False), ("yes", True), ("True", True)]
)
def test_a_switch_is_said_in_words(word, expected):
    name, values = search.arguments.named_values(f"output_filter={word}")
    hp = keras_tuner.HyperParameters()
    model = HEADS(only={name: values}).build(hp)
    assert hp["output_filter"] == expected
    (layer,) = [x for x in model.layers if isinstance(x, CoffeeLayer)]
    assert layer.output_filter is expected


@pytest.mark.parametrize(
    "given, message",
    [
        ("feedback=None", "feedback must be one of sigmoid, none, linear, received 'None'"),
        ("feedback=sigmoid,tanh", "feedback must be one of .*, received 'tanh'"),
        ("output_filter=1", "output_filter must be yes or no, received 1"),
        ("n=two", "n must be a positive integer, received 'two'"),
        ("dim=2.5", "dim must be a positive integer, received 2.5"),
        ("learning_rate=0", "learning_rate must be a positive number, received 0"),
        ("n=yes", "n must be a positive integer, received True"),
    ],
)
def test_values_that_a_parameter_cannot_have(given, message):
    with pytest.raises(ValueError, match=message):
        HEADS(only=dict([search.arguments.named_values(given)]))


def test_the_score_orders_small_models_at_the_target_first():
    score = objectives.fewest_parameters
    ordered = [
        score(24, 0.999, 0.99, 656),
        score(24, 0.99, 0.99, 656),
        score(48, 1.0, 0.99, 656),
        score(656, 0.99, 0.99, 656),
        score(12, 0.9899, 0.99, 656),
        score(24, 0.5, 0.99, 656),
        score(12, 0.16, 0.99, 656),
    ]
    assert ordered == sorted(ordered) and len(set(ordered)) == len(ordered)


def arguments(folder, *more):
    return search.arguments.make_parser("").parse_args(["--smoke", "--work", str(folder), *more])


def run(folder, *more, model="induction-heads", tuner="random"):
    search.run(arguments(folder, *more), model, tuner)
    (project,) = folder.glob(f"{model}.{tuner}.*")
    return project


def trials_of(project):
    """Trials by their number, without what the clock said."""
    states = {}
    for file in sorted(project.glob("trial_*/trial.json")):
        trial = json.loads(file.read_text())
        trial["metrics"]["metrics"].pop("seconds", None)
        states[trial["trial_id"]] = trial
    return states


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search without interruption, and what it printed."""
    if not IS_THOROUGH:
        pytest.skip("the same on every backend, and slow where each trial compiles: by night")
    folder = tmp_path_factory.mktemp("whole")
    results = folder / "results"
    return run(folder, "--results", str(results)), results


def test_the_best_model_is_saved_without_optimizer_and_is_as_good_as_said(whole):
    project, results = whole
    (file,) = results.glob("*.json")
    found = json.loads(file.read_text())
    model = keras.models.load_model(project / "best.keras")
    assert not model.compiled
    assert model.count_params() == found["best"]["parameters"]
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    hypermodel = HEADS(**search.SMOKE["induction-heads"])
    loss, accuracy = model.evaluate(hypermodel.load_data()[2], verbose=0)
    assert (loss, accuracy) == pytest.approx((found["test"]["loss"], found["test"]["accuracy"]))
    assert (project / "accuracy_parameters.png").read_bytes().startswith(b"\x89PNG")


def test_results_hold_the_settings_and_every_trial_best_first(whole):
    found = json.loads(next(whole[1].glob("*.json")).read_text())
    assert (found["model"], found["tuner"], found["backend"]) == (
        "induction-heads",
        "random",
        BACKEND,
    )
    assert found["settings"]["steps"] == 4 and found["settings"]["only"] == {}
    assert [trial["rank"] for trial in found["trials"]] == [1, 2]
    assert found["best"] == found["trials"][0]
    assert found["trials"][0]["accuracy"] >= found["trials"][1]["accuracy"]
    assert {"keras_tuner", "keras", BACKEND} <= found["versions"].keys()
    for trial in found["trials"]:
        assert trial["epochs"] == 2 and {"n", "dim"} <= trial["hyperparameters"].keys()


def test_a_finished_search_says_so_and_shows_its_leaderboard(whole, capsys):
    project, _ = whole
    before = trials_of(project)
    run(project.parent)
    out = capsys.readouterr().out
    assert "is finished" in out and "Running Trial" not in out
    assert re.search(r"rank +score +accuracy +parameters .*dim.*learning_rate", out)
    assert trials_of(project) == before


class Interruption(keras.callbacks.Callback):
    """What a user's Ctrl-C does, in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


@by_night
def test_an_interrupted_search_ends_as_if_nothing_had_happened(whole, tmp_path, monkeypatch):
    callbacks, calls = HEADS.callbacks, []

    def interrupted(self, hp):
        calls.append(hp)
        return callbacks(self, hp) + [Interruption()] * (len(calls) == 2)

    with monkeypatch.context() as patch:
        patch.setattr(HEADS, "callbacks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    (project,) = tmp_path.iterdir()
    assert [trial["status"] for trial in trials_of(project).values()] == ["COMPLETED", "RUNNING"]
    run(tmp_path)
    assert trials_of(project) == trials_of(whole[0])


@pytest.fixture
def interruptible():
    """A process in the background of a shell is born deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@by_night
@pytest.mark.usefixtures("interruptible")
def test_an_interruption_waits_until_a_file_is_whole(tmp_path, monkeypatch):
    save, calls = keras_tuner.Oracle.save, []

    def interrupted(oracle):
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        calls.append(oracle)
        save(oracle)

    with monkeypatch.context() as patch:
        patch.setattr(keras_tuner.Oracle, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    (folder,) = tmp_path.iterdir()
    json.loads((folder / "oracle.json").read_text())
    assert len(calls) == 3


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_is_told_in_words(monkeypatch, capsys):
    monkeypatch.setattr(search, "run", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit, match="130"):
        search.main([])
    assert "Interrupted. The same command goes on." in capsys.readouterr().out


def test_a_search_with_other_settings_is_not_taken_for_this_one(whole):
    with pytest.raises(search.UnusableError, match="other settings. Delete it, or .* by --work"):
        run(whole[0].parent, "--only", "n=1")


def test_a_file_that_was_cut_off_is_named(whole, tmp_path):
    project = search.prepare(arguments(tmp_path), "induction-heads", "random")[0]
    project.claim()
    (project.folder / "tuner0.json").write_text("{}")
    (project.folder / "oracle.json").write_text('{"ongoing')
    with pytest.raises(search.UnusableError, match="was cut off while it was written"):
        run(tmp_path)


@by_night
def test_hyperband_continues_weights_and_optimizer(tmp_path, monkeypatch):
    fit, starts = HEADS.fit, []

    def spy(self, hp, model, **kwargs):
        starts.append((kwargs["initial_epoch"], int(model.optimizer.iterations)))
        return fit(self, hp, model, **kwargs)

    monkeypatch.setattr(HEADS, "fit", spy)
    project = run(tmp_path, "--only", "n=1", "--only", "dim=2", tuner="hyperband")
    continued = [start for start in starts if start[0] > 0]
    assert continued and all(steps == 4 * epoch for epoch, steps in continued)
    assert all(trial["status"] == "COMPLETED" for trial in trials_of(project).values())


@by_night
def test_bayesian_optimization_on_images(tmp_path, capsys):
    small = ("--only", "n=1", "--only", "head_width=10", "--objective", "fewest-parameters")
    project = run(tmp_path, *small, model="mnist", tuner="bayesian")
    assert len(trials_of(project)) == 2
    assert "Test accuracy of the best" in capsys.readouterr().out


@by_night
def test_an_error_in_a_trial_ends_the_search_and_the_trial_is_run_again(tmp_path, monkeypatch):
    def broken(self):
        raise ImportError("a module that is not there")

    with monkeypatch.context() as patch:
        patch.setattr(HEADS, "load_data", broken)
        with pytest.raises(RuntimeError, match="a module that is not there"):
            run(tmp_path)
    project = run(tmp_path)
    assert [trial["status"] for trial in trials_of(project).values()] == ["COMPLETED"] * 2


@pytest.mark.skipif(BACKEND != "tensorflow", reason="KerasTuner needs TensorBoard there alone")
def test_without_tensorboard_the_search_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.plugins.hparams", None)
    with pytest.raises(RuntimeError, match="tensorboard"):
        run(tmp_path)


@pytest.mark.parametrize(
    "given, message",
    [
        (["--trials", "0"], "must be at least 1, received 0"),
        (["--only", "n"], "write NAME=A,B, as in n=1,2; received 'n'"),
        (["--only", "width=1"], "no parameter 'width'; there are: n, dim"),
        (["mnist", "--steps", "5"], "--steps is for induction heads"),
    ],
)
def test_bad_arguments_are_explained(given, message, capsys):
    with pytest.raises(SystemExit) as error:
        search.main(given)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_the_guide_has_every_parameter_and_commands_that_are_understood():
    guide = (ROOT / "examples" / "searches" / "README.md").read_text()
    for name in {**HEADS.SPACE, **MNIST.SPACE}:
        assert f"\n| `{name}`" in guide
    blocks = "".join(re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)).replace("\\\n", " ")
    commands = re.findall(r"search\.py(.*)", blocks)
    assert len(commands) == 7
    for command in commands:
        args = search.arguments.make_parser("").parse_args(command.split())
        search.prepare(args, args.model, args.tuner)


@by_night
def test_more_trials_go_on_without_those_that_ended(whole, tmp_path):
    """Under another name, as after a chief, whose file still has the last trial as under way."""
    project = tmp_path / whole[0].name
    shutil.copytree(whole[0], project)
    (project / "tuner0.json").unlink()
    oracle = json.loads((project / "oracle.json").read_text())
    oracle["ongoing_trials"] = {"worker-0": "1"}
    (project / "oracle.json").write_text(json.dumps(oracle))
    given = search.prepare(arguments(tmp_path), "induction-heads", "random")
    given[0].trials = 3
    tuner = given[0].make_tuner(given[1])
    assert tuner.oracle.create_trial("tuner0").trial_id == "2"
    assert [trial["trial"] for trial in search.leaderboard.ranked(tuner)] == [
        trial["trial"] for trial in json.loads(next(whole[1].glob("*")).read_text())["trials"]
    ]
