import json
import re
from pathlib import Path

import keras
import numpy as np
import programs
import pytest
from keras import ops
from nightly import IS_THOROUGH, by_night

from keras_coffee.callbacks import StopAtTarget
from keras_coffee.layers import SymbolEmbedding

SCRIPT = Path(__file__).parents[2] / "examples" / "induction_head.py"
TINY = ["--epochs", "1", "--steps", "4", "--validate-every", "2", "--batch-size", "8"]
LAST_LINE = r"validation accuracy=(\d\.\d{4}) loss=(\d+\.\d{4}) parameters=(\d+) steps=(\d+)"


@pytest.fixture(scope="module")
def example():
    return programs.load(SCRIPT)


@pytest.fixture
def run(example, tmp_path, capsys):
    def run(*arguments):
        example.main([*TINY, "--output", str(tmp_path / "a" / "b"), *arguments])
        last = capsys.readouterr().out.splitlines()[-1]
        report = json.loads((tmp_path / "a" / "b" / "results.json").read_text())
        return last, report, tmp_path / "a" / "b"

    return run


PARAMETERS = {
    "coffee": 512,
    "coffee-no-feedback": 512,
    "coffee-linear-feedback": 512,
    "linearized-s6": 784,
    "s6": 784,
    "s6-mamba": 608,
}
# Each is compiled anew.
TRAINED = PARAMETERS if IS_THOROUGH else ("coffee", "s6")


@by_night
@pytest.mark.parametrize("model, parameters", PARAMETERS.items())
def test_every_model_has_the_parameters_of_the_paper(example, model, parameters):
    args = example.make_parser().parse_args(["--model", model])
    example.complete(args)
    assert example.build_model(args).count_params() == parameters
    assert args.learning_rate == (0.003 if model.startswith("s6") else 0.01)


@pytest.mark.parametrize("model", TRAINED)
def test_a_model_trains_and_is_reported(run, model):
    parameters = PARAMETERS[model]
    last, report, _ = run("--model", model)
    accuracy, loss, *counts = re.fullmatch(LAST_LINE, last).groups()
    results = report["results"]
    assert [int(count) for count in counts] == [parameters, 4]
    assert (results["parameters"], results["steps"]) == (parameters, 4)
    assert float(accuracy) == pytest.approx(results["accuracy"], abs=1e-4)
    assert float(loss) == pytest.approx(results["loss"], abs=1e-4)
    assert report["settings"]["learning_rate"] == (0.003 if model.startswith("s6") else 0.01)


@pytest.mark.parametrize("start", ["paper", "series"])
def test_weights_start_as_asked(example, start):
    args = example.make_parser().parse_args(["--start", start])
    example.complete(args)
    layer = example.build_model(args).layers[1]
    assert layer.start == start
    assert ops.convert_to_numpy(layer.transition).any() == (start == "series")


@by_night
@pytest.mark.parametrize("dim, parameters", [(8, 96), (4, 48), (2, 24), (1, 12)])
def test_reduced_models_have_the_parameters_of_the_paper(example, dim, parameters):
    arguments = ["--n", "1", "--dim", str(dim), "--unit-symbol", "none"]
    args = example.make_parser().parse_args(arguments)
    example.complete(args)
    assert example.build_model(args).count_params() == parameters


def test_what_is_written(run):
    _, report, directory = run("--target-length", "2")
    check_learning_curve(report, directory)
    check_saved_model(directory / "model.keras")


def check_learning_curve(report, directory):
    assert (directory / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert report["backend"] == keras.config.backend()
    assert set(report["versions"]) == {"keras", "keras_coffee", "python", report["backend"]}
    history = report["history"]
    assert history["steps"] == [2, 4]
    curves = ("loss", "accuracy", "val_loss", "val_accuracy")
    assert all(np.isfinite(history[curve]).all() for curve in curves)
    assert all(len(history[curve]) == 2 for curve in curves)


def check_saved_model(file):
    model = keras.models.load_model(file)
    # Without an optimizer, which would tie the file to a backend.
    assert not model.compiled
    assert model.count_params() == 512
    embedding, *_, logits = model.layers
    assert isinstance(embedding, SymbolEmbedding) and logits.embedding is embedding
    assert model.predict(np.ones((3, 30), "int32"), verbose=0).shape == (3, 2, 9)


@by_night
def test_training_ends_early_once_it_has_succeeded(run, example, monkeypatch):
    def stop(monitor, target):
        assert (monitor, target) == ("val_accuracy", 0.998)
        return StopAtTarget(monitor, 0.0)

    monkeypatch.setattr(example, "StopAtTarget", stop)
    last, report, _ = run()
    assert last.endswith("steps=2") and report["history"]["steps"] == [2]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--length 4 --trigger-length 2", "needs length - 2"),
        ("--noise-length -1", "noise_length must be at least 0, received -1"),
        ("--steps 1500", "--validate-every must divide"),
        ("--n 0", "--n: invalid positive_integer value: '0'"),
        ("--learning-rate nan", "--learning-rate: invalid positive_number value: 'nan'"),
        ("--unit-symbol 9", "--unit-symbol: invalid choice: '9'"),
        ("--model gru", "--model: invalid choice: 'gru'"),
        ("--seed -1", "[Ss]eed must be"),
    ],
)
def test_bad_flags_are_explained_without_a_traceback(example, capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        example.main(arguments.split())
    assert error.value.code == 2
    assert re.search(message, capsys.readouterr().err)
