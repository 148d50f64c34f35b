"""The paper's experiments: what each row builds, and that runs repeat, resume and end rightly."""

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
import programs
import pytest
from nightly import by_night

ROOT = Path(__file__).parents[2]
reproduce = programs.load_with_siblings(ROOT / "examples" / "paper" / "reproduce.py")
training = reproduce.training
BY_NAME = {row.name: row for row in reproduce.KNOWN}
# Only a dense layer, on eight images a step. What becomes of runs is the same everywhere.
QUICK = dataclasses.replace(
    BY_NAME["smnist-pixels"].experiment.smoke(), epochs=4, lower_below_loss=1e9
)


class Interruption(keras.callbacks.Callback):
    """What a user's Ctrl-C does, in the middle of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def interrupted(experiment, epoch):
    class Interrupted(type(experiment)):
        def callbacks(self):
            return [*super().callbacks(), Interruption(epoch)]

    # A run is known by the name of its experiment.
    Interrupted.__name__ = type(experiment).__name__
    return Interrupted(**dataclasses.asdict(experiment))


def outcome(run):
    return {name: value for name, value in run.items() if name != "seconds"}


@by_night
@pytest.mark.parametrize("name", [row.name for row in reproduce.KNOWN if row.paper])
def test_each_row_has_the_parameters_of_the_paper(name):
    row = BY_NAME[name]
    weights = row.experiment.build_model().trainable_weights
    assert sum(int(np.prod(weight.shape)) for weight in weights) == row.paper.parameters


def test_logits_of_squared_distances():
    model = BY_NAME["table2-d2"].experiment.build_model()
    outputs = np.array([[[3.0, 1.0], [0.5, -2.0]]], "float32")
    table = keras.ops.convert_to_numpy(model.layers[0].table()).astype("float64")
    distances = ((outputs[:, 1:, None] - table) ** 2).sum(-1)
    share = np.exp(-distances) / np.exp(-distances).sum(-1, keepdims=True)
    logits = keras.ops.convert_to_numpy(model.layers[-1](outputs))
    # A logit is the difference of two numbers of about five, and may be near zero.
    np.testing.assert_allclose(logits, np.log(share / (1 - share)), rtol=1e-5, atol=5e-6)


def training_images(name, epochs=1):
    """What the layers of a row of MNIST see in its first epochs, of images of noise, in order."""
    experiment = BY_NAME[name].experiment.smoke()
    data, _, _ = experiment.load_data(0)
    data.shuffle = False
    for epoch in range(1, epochs + 1):
        data.epoch = epoch
        images = np.concatenate([data[k][0] for k in range(len(data))])
        seen = keras.Sequential(experiment.pixels())(images / 1.0)
        yield keras.ops.convert_to_numpy(seen)


def test_readings_of_mnist_change_one_thing():
    (main,), (plain,) = training_images("mnist-coffee"), training_images("tried-mnist-epsilon")
    np.testing.assert_array_equal(main, plain)
    (normalized,) = training_images("tried-mnist-normalized")
    np.testing.assert_allclose(normalized, (main - 0.1307) / 0.3081, atol=1e-5)
    (above,), (below,) = (training_images(f"tried-mnist-corner{corner}") for corner in (0, 3))
    np.testing.assert_array_equal(above[:, 1:, 1:], main[:, :-1, :-1])
    np.testing.assert_array_equal(below[:, :-2, :-2], main[:, 2:, 2:])
    first, second = training_images("tried-mnist-once", epochs=2)
    np.testing.assert_array_equal(first, second)
    (unmoved,), (cropped,) = (
        training_images(f"tried-mnist-{name}") for name in ("unmoved", "crop-first")
    )
    moved = (first, cropped, main)
    assert all(unmoved.shape == x.shape and np.abs(unmoved - x).max() > 0.1 for x in moved)
    assert np.abs(cropped - main).max() > 0.1


def test_dense_layers_that_start_as_those_of_pytorch():
    keras.utils.set_random_seed(0)
    first, last = BY_NAME["tried-mnist-dense"].experiment.build_model().layers[-2:]
    for layer, inputs in ((first, 100), (last, 25)):
        for weight in layer.weights:
            drawn = np.abs(keras.ops.convert_to_numpy(weight))
            assert 0.5 < drawn.max() * inputs**0.5 <= 1


def test_the_rate_falls_within_an_epoch_by_the_running_loss():
    experiment = BY_NAME["tried-mnist-running"].experiment.smoke()
    model = experiment.build_model()
    experiment.compile(model)
    (callback,) = experiment.callbacks()
    callback.set_model(model)
    callback.on_train_batch_end(0, {"loss": 0.46})
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    callback.on_train_batch_end(1, {"loss": 0.44})
    assert float(model.optimizer.learning_rate) == pytest.approx(0.005)


def test_names_are_given_once_and_runs_belong_to_known_rows():
    assert len(BY_NAME) == len(reproduce.KNOWN)
    for row in reproduce.KNOWN:
        assert BY_NAME[row.runs_of].experiment == row.experiment


@by_night
def test_a_run_repeats_bit_for_bit_in_one_piece_or_two(tmp_path):
    # Its sequences are new in each pass, those of validation too.
    experiment = BY_NAME["table2-d1"].experiment.smoke()
    first = training.run(experiment, 3, tmp_path / "first", 10.0)
    assert outcome(training.run(experiment, 3, tmp_path / "second", 10.0)) == outcome(first)
    assert training.run(experiment, 3, tmp_path / "pieces", 0.0)["epochs"] == 1
    assert outcome(training.run(experiment, 3, tmp_path / "pieces", 10.0)) == outcome(first)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without interruption, its learning rate lowered after the first epoch."""
    folder = tmp_path_factory.mktemp("whole")
    return training.run(QUICK, 0, folder, 10.0), folder


@by_night
def test_an_interrupted_run_ends_as_if_nothing_had_happened(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        training.run(interrupted(QUICK, epoch=2), 0, tmp_path, 10.0)
    resumed = training.run(QUICK, 0, tmp_path, 10.0)
    assert outcome(resumed) == outcome(whole[0])
    assert (resumed["epochs"], resumed["stopped_by"]) == (4, "epochs")


@by_night
def test_a_run_whose_time_is_over_goes_on_when_there_is_more(whole, tmp_path):
    short = training.run(QUICK, 0, tmp_path, 0.0)
    assert (short["epochs"], short["stopped_by"]) == (1, "budget")
    assert outcome(training.run(QUICK, 0, tmp_path, 10.0)) == outcome(whole[0])


@by_night
def test_an_interruption_while_weights_are_written_loses_that_epoch_alone(whole, tmp_path):
    training.run(QUICK, 0, tmp_path, 0.0)
    (tmp_path / "epoch-2.weights.h5").write_bytes(b"cut off")
    assert outcome(training.run(QUICK, 0, tmp_path, 10.0)) == outcome(whole[0])


@by_night
def test_a_run_with_other_settings_is_not_taken_for_this_one(whole):
    _, folder = whole
    for experiment, seed in ((dataclasses.replace(QUICK, learning_rate=0.5), 0), (QUICK, 1)):
        with pytest.raises(training.UnusableError, match="other settings. Delete .* by --work"):
            training.run(experiment, seed, folder, 10.0)


@by_night
def test_a_damaged_run_is_not_resumed(tmp_path):
    training.run(QUICK, 0, tmp_path, 0.0)
    (tmp_path / "epoch-1.weights.h5").unlink()
    with pytest.raises(training.UnusableError, match="epoch-1.weights.h5 is missing. Delete"):
        training.run(QUICK, 0, tmp_path, 10.0)
    for content in ("[]", '{"history": ['):
        (tmp_path / "progress.json").write_text(content)
        with pytest.raises(training.UnusableError, match="progress.json is damaged. Delete"):
            training.run(QUICK, 0, tmp_path, 10.0)


@by_night
def test_another_seed_is_another_run(whole, tmp_path):
    other = training.run(QUICK, 1, tmp_path, 0.0)
    assert other["history"]["loss"][0] != whole[0]["history"]["loss"][0]


@by_night
def test_a_run_ends_at_its_target(tmp_path):
    experiment = dataclasses.replace(BY_NAME["table2-d8"].experiment.smoke(), target_accuracy=0.0)
    run = training.run(experiment, 0, tmp_path, 1.0)
    assert (run["epochs"], run["stopped_by"]) == (1, "target")


@by_night
def test_a_finished_run_is_not_trained_further(whole):
    run, folder = whole
    assert training.run(QUICK, 0, folder, 10.0) == run


@by_night
def test_the_epoch_of_least_validation_loss_is_the_one_that_is_judged(tmp_path):
    experiment = dataclasses.replace(QUICK, learning_rate=1.0, lower_below_loss=-1.0)
    run = training.run(experiment, 0, tmp_path, 10.0)
    losses = run["history"]["val_loss"]
    assert run["best_epoch"] == 1 + int(np.argmin(losses))
    assert run["best_epoch"] < run["epochs"], "the last epoch is the best: this shows nothing"
    best = keras.models.load_model(tmp_path / "best.keras")
    assert not best.compiled
    best.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    _, _, test = QUICK.load_data(0)
    # Validation and test are the same images of noise.
    assert best.evaluate(test, verbose=0) == pytest.approx(min(losses), rel=1e-5)
    assert run["loss"] == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.parametrize(
    "losses, best", [([3.0, 1.0, 2.0], 2), ([float("nan"), 5.0], 2), ([float("nan")] * 2, 1)]
)
def test_nan_is_never_the_best(losses, best, tmp_path):
    model = QUICK.build_model()
    QUICK.compile(model)
    progress = training.Progress(tmp_path, 1.0, {})
    progress.set_model(model)
    progress.set_params({"epochs": 9})
    progress.on_train_begin()
    for epoch, loss in enumerate(losses):
        progress.on_epoch_end(epoch, dict.fromkeys(training.METRICS, loss))
    assert progress.summary()["best_epoch"] == best
    kept = {file.name for file in tmp_path.glob("*.weights.h5")}
    assert kept == {f"epoch-{epoch}.weights.h5" for epoch in {best, len(losses)}}


def test_ih0_says_what_it_learned():
    experiment = BY_NAME["ih0-embeddings"].experiment
    facts = experiment.facts(experiment.build_model())
    # The start "does not always yield the correct results".
    assert facts == {"vectors": [[6, 6], [-10, -1], [-1, -10]], "sequences": 8, "answered": 6}


def command(tmp_path, *arguments):
    folders = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    reproduce.main([*arguments, "--smoke", *folders])


def test_a_finished_run_becomes_a_file_and_is_not_run_again(tmp_path, capsys):
    command(tmp_path, "smnist-pixels", "--seeds", "2")
    backend = keras.config.backend()
    files = sorted((tmp_path / "results").iterdir())
    assert [file.name for file in files] == [
        f"smnist-pixels.{backend}.seed{seed}.json" for seed in (0, 1)
    ]
    run = json.loads(files[1].read_text())
    assert run["settings"] == dataclasses.asdict(BY_NAME["smnist-pixels"].experiment.smoke())
    assert (run["row"], run["seed"], run["epochs"]) == ("smnist-pixels", 1, 2)
    assert set(run["versions"]) == {"keras", "keras_coffee", "numpy", "python", backend}
    assert run["parameters"] == 7850 and run["seconds"] >= 0
    before = [file.read_text() for file in files]
    command(tmp_path, "smnist-pixels", "--seeds", "2")
    assert "seed1 is done already" in capsys.readouterr().out
    assert [file.read_text() for file in files] == before
    with pytest.raises(SystemExit):
        reproduce.main(["smnist-pixels", "--results", str(tmp_path / "results")])
    assert "seed0.json is a run with other settings. Delete it" in capsys.readouterr().err
    files[0].write_text(before[0][:200])
    with pytest.raises(SystemExit):
        command(tmp_path, "smnist-pixels")
    assert "seed0.json is no finished run. Delete it" in capsys.readouterr().err
    # As the report does.
    with pytest.raises(training.UnusableError, match="seed0.json is no finished run"):
        reproduce.records.read(tmp_path / "results")


def parsed(arguments):
    args = reproduce.make_parser().parse_args(arguments)
    args.suite = reproduce.PAPER
    return args


@pytest.mark.parametrize(
    "arguments, results, work, docs",
    [
        ([], "results/paper", "outputs/paper", "docs"),
        (["--again"], "results/paper/again", "outputs/paper/again", "docs"),
        (
            ["--smoke"],
            "outputs/smoke/results/paper",
            "outputs/smoke/outputs/paper",
            "outputs/smoke/docs",
        ),
    ],
)
def test_runs_of_another_kind_have_folders_of_their_own(arguments, results, work, docs):
    args = parsed(arguments)
    reproduce.settle_folders(args)
    folders = args.results, args.work, args.docs
    assert folders == (ROOT / results, ROOT / work, ROOT / docs)


def test_the_rows_are_listed(capsys):
    reproduce.main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*BY_NAME]


def test_rows_are_run_in_the_order_in_which_they_are_named():
    names = ["table5-length256", "table4", "table4-target2"]
    rows = reproduce.chosen(None, parsed(names))
    assert [row.name for row in dict.fromkeys(rows)] == [names[0], names[2], "table4-trigger2"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["table9"], "no table or row 'table9'; tables: table1, table2"),
        ([], "name tables or rows, or pass --all"),
        (["report", "table1"], "report goes alone"),
        (["report", "--again"], "report goes alone"),
        (["table1", "--seeds", "0"], "--seeds must be at least 1"),
        (["table1", "--budget-minutes", "-1"], "--budget-minutes must not be negative"),
    ],
)
def test_bad_arguments_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        reproduce.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
