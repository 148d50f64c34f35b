"""The comparison of starts: its data, its models, its files and its page."""

import json
from pathlib import Path

import keras
import numpy as np
import programs
import pytest
from nightly import by_night

FOLDER = Path(__file__).parents[2] / "examples" / "beyond"


@pytest.fixture
def starts(monkeypatch, tmp_path):
    module = programs.load_with_siblings(FOLDER / "starts.py")
    monkeypatch.chdir(tmp_path)
    return module


def few(series, count=8):
    """The same with a few sequences, cut to their first steps."""
    train, test = ((x[:count, :6], y[:count]) for x, y in (series.train, series.test))
    season = None if series.season is None else series.season[:count]
    return type(series)(train, test, series.classes, series.unit, season)


@pytest.mark.parametrize("name", ["weather", "seasonal", "co2"])
def test_a_series_is_scaled_and_tested_after_what_is_learned(starts, name):
    series = starts.TASKS[name]()
    (x, y), (later, targets) = series.train, series.test
    assert x.dtype == later.dtype == y.dtype == targets.dtype == "float32"
    assert np.isfinite(x).all()
    assert np.isfinite(targets).all()
    assert 0.5 < x.std() < 2
    assert y.shape == (len(x), 1)
    assert series.outputs == 1
    assert len(later) > 100
    # Windows that overlap share their numbers; none of these do.
    assert not (later[-1][None] == x).all((1, 2)).any()


def test_a_target_of_the_weather_is_the_next_temperature(starts):
    x, y = starts.TASKS["weather"]().train
    np.testing.assert_allclose(x[:-1, -1, 0] + y[:-1, 0], x[1:, -1, 0], atol=1e-6)


@by_night
@pytest.mark.parametrize("layer", ["gru", "coffee", "coffee_paper", "s6", "s6_paper", "s6_mamba"])
@pytest.mark.parametrize("model", ["swapped", "two blocks"])
def test_every_layer_fits_into_every_model(starts, layer, model):
    built = starts.MODELS[model](starts.LAYERS[layer], 3, 5)
    assert built(np.ones((2, 7, 3), "float32")).shape == (2, 5)
    recurrent = [x for x in built.layers if hasattr(x, "start")]
    expected = "paper" if layer.endswith("paper") else "series"
    assert {x.start for x in recurrent} <= {expected}


@pytest.mark.parametrize("model", ["swapped", "two blocks"])
def test_padding_is_not_seen(starts, model):
    built = starts.MODELS[model](starts.LAYERS["coffee"], 3, 2)
    sequence = np.random.default_rng(0).normal(size=(1, 5, 3)).astype("float32")
    padded = np.pad(sequence, ((0, 0), (0, 4), (0, 0)), constant_values=-1000.0)
    actual, exact = built.predict(padded, verbose=0), built.predict(sequence, verbose=0)
    np.testing.assert_allclose(actual, exact, rtol=1e-4, atol=1e-5)


def test_scores(starts):
    x = np.zeros((2, 3, 1), "float32")
    values = starts.TASKS["weather"]()
    values = type(values)((x, x), (x, np.float32([[1.0], [3.0]])), unit=2.0)
    assert starts.score(values, np.float32([[1.0], [1.0]])) == pytest.approx(2 * 2**0.5)
    classes = type(values)((x, x), (x, np.array([0, 1])), classes=2)
    assert starts.score(classes, np.float32([[1.0, 0.0], [1.0, 0.0]])) == 0.5


def test_a_linear_model_continues_a_line_and_others_do_not(starts):
    steps = np.arange(60.0, dtype="float32")
    x = np.lib.stride_tricks.sliding_window_view(steps, 3)[:-2, :, None]
    changes = np.full((len(x), 1), 2.0, "float32")
    part = x[:40], changes[:40]
    series = type(starts.TASKS["weather"]())(part, part, unit=3.0, season=part[1] - 1)
    errors = starts.references(series)["errors"]
    assert errors["the last value"] == pytest.approx(6.0)
    assert errors["a season before"] == pytest.approx(3.0)
    assert errors["a linear model"] < 1e-3


def test_a_season_is_the_value_a_day_before_the_target(starts):
    series = starts.TASKS["seasonal"]()
    x, y = series.test
    # The target 12 steps after a window is the last value of the window 12 steps later.
    np.testing.assert_allclose(x[:-12, -1, 0] + y[:-12, 0], x[12:, -1, 0], atol=1e-5)
    np.testing.assert_allclose(x[:, -1, 0] + series.season[:, 0], x[:, -13, 0], atol=1e-5)


def test_finished_runs_are_kept_and_reported(starts, monkeypatch):
    series = few(starts.TASKS["weather"]())
    monkeypatch.setattr(starts, "TASKS", {"weather": lambda: series})
    monkeypatch.setattr(starts, "TRAINING", {"weather": (2, 0.01)})
    monkeypatch.setattr(starts, "LAYERS", {"coffee": starts.LAYERS["coffee"]})
    monkeypatch.setattr(starts, "MODELS", {"swapped": starts.MODELS["swapped"]})
    starts.run_all(["weather"], seeds=1)
    (file,) = starts.RESULTS.glob("*.json")
    result = json.loads(file.read_text())
    assert result["backend"] == keras.config.backend()
    assert len(result["loss"]) == 2
    file.write_text(json.dumps({**result, "score": 0.25}))
    starts.run_all(["weather"], seeds=1)
    assert json.loads(file.read_text())["score"] == 0.25

    starts.PAGE.parent.mkdir()
    starts.PAGE.write_text("before\n<!-- tables -->\nold\n<!-- end of tables -->\nafter\n")
    starts.report()
    page = starts.PAGE.read_text()
    assert page.startswith("before\n<!-- tables -->")
    assert page.endswith("<!-- end of tables -->\nafter\n")
    assert "| temperature: error, swapped (1 seed) |  | 0.250 |" in page
    assert "| | the last value | a season before | a linear model |" in page
    assert "old" not in page
