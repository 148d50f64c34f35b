"""The estimators of time series: what they learn, and that they are scikit-learn's."""

from pathlib import Path

import numpy as np
import programs
import pytest
from nightly import by_night

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import cross_val_score

pytestmark = by_night
ROOT = Path(__file__).parents[2]
compare = programs.load_with_siblings(ROOT / "examples" / "time_series" / "compare.py")
estimators = programs.load_with_siblings(ROOT / "examples" / "time_series" / "estimators.py")
SeriesClassifier, SeriesForecaster = estimators.SeriesClassifier, estimators.SeriesForecaster

SMALL = {"width": 8, "blocks": 1, "batch_size": 8, "random_state": 0}


def rising_and_falling(count=24):
    """Two channels, lengths from 6 to 12: the first rises or falls, the second is noise."""
    random = np.random.default_rng(0)
    labels = np.array(["falls", "rises"])[np.arange(count) % 2]
    series = []
    for label in labels:
        steps = random.integers(6, 13)
        slope = 1.0 if label == "rises" else -1.0
        channel = slope * np.linspace(-1, 1, steps) + random.normal(scale=0.1, size=steps)
        series.append(np.stack([channel, random.normal(size=steps)]))
    return series, labels


@pytest.fixture(scope="module")
def classifier():
    return SeriesClassifier(epochs=15, **SMALL).fit(*rising_and_falling())


def test_it_learns_series_of_unequal_lengths(classifier):
    series, labels = rising_and_falling(40)
    assert classifier.score(series, labels) > 0.9
    assert list(classifier.classes_) == ["falls", "rises"]
    likely = classifier.predict_proba(series)
    assert likely.shape == (40, 2)
    np.testing.assert_allclose(likely.sum(axis=1), 1.0)
    assert (classifier.predict(series) == classifier.classes_[likely.argmax(axis=1)]).all()


@pytest.mark.parametrize("layer", ["coffee", "gru"])
def test_a_series_is_judged_alone_as_beside_a_longer_one(layer):
    series, labels = rising_and_falling(8)
    one = SeriesClassifier(compare.LAYERS[layer], epochs=1, **{**SMALL, "width": 32})
    one.fit(series, labels)
    short, *_, long = sorted(series, key=np.size)
    together, alone = one.predict_proba([short, long]), one.predict_proba([short])
    np.testing.assert_allclose(together[:1], alone, rtol=1e-4, atol=1e-6)


def test_arrays_have_time_last():
    flat = np.arange(12.0).reshape(2, 6)
    (first, _), (same, _) = estimators.as_sequences(flat), estimators.as_sequences(flat[:, None])
    assert first.shape == (6, 1)
    np.testing.assert_array_equal(first, same)
    assert estimators.as_sequences(np.zeros((2, 3, 5)))[0].shape == (5, 3)
    assert [x.shape for x in estimators.as_sequences([[1, 2], [3, 4, 5]])] == [(2, 1), (3, 1)]


def test_scikit_learn_can_clone_and_cross_validate_it():
    series, labels = rising_and_falling(8)
    one = SeriesClassifier(epochs=1, **SMALL)
    other = clone(one).set_params(width=4)
    assert other.get_params() == {**one.get_params(), "width": 4}
    assert cross_val_score(other, series, labels, cv=2).shape == (2,)


def test_a_forecaster_foresees_a_wave_at_any_length():
    wave = np.sin(np.arange(80) * 2 * np.pi / 8)
    settings = {**SMALL, "width": 16, "epochs": 20}
    forecaster = SeriesForecaster(horizon=2, window=8, **settings).fit(wave[:60])
    assert forecaster.score(wave[40:]) > 0.9
    longest, long, short = forecaster.predict([wave[:30], wave[22:30], wave[:5]])
    np.testing.assert_allclose(longest, long, rtol=1e-4)  # the last eight steps count
    np.testing.assert_allclose(longest, wave[31], atol=0.4)
    assert np.isfinite(short)
    assert clone(forecaster).get_params() == forecaster.get_params()


def test_a_forecast_is_a_change_of_the_first_channel():
    two = np.stack([np.arange(10.0) ** 2, np.zeros(10)])
    windows, changes = SeriesForecaster(horizon=3, window=4)._windows(two)
    assert [x.shape for x in windows] == [(4, 2)] * 4
    np.testing.assert_array_equal(changes, two[0, 6:] - two[0, 3:7])


@pytest.mark.parametrize(
    "series, message",
    [
        ([], "at least one series"),
        ([np.zeros((2, 5)), np.zeros((3, 5))], r"as many channels, received 2 and 3\. The axes"),
        ([np.zeros((2, 5, 1))], r"\(channels, time\), received the shape \(2, 5, 1\)"),
        ([[1.0, np.nan]], "must be finite"),
    ],
)
def test_series_that_cannot_be_read(series, message):
    with pytest.raises(ValueError, match=message):
        SeriesClassifier().fit(series, ["a"] * len(series))


def test_what_does_not_fit_is_refused(classifier):
    with pytest.raises(ValueError, match="2 series, but 1 labels"):
        SeriesClassifier().fit(np.zeros((2, 5)), ["a"])
    with pytest.raises(ValueError, match="fitted on series of 2 channels, received series of 3"):
        classifier.predict(np.zeros((1, 3, 5)))
    with pytest.raises(ValueError, match="No series has the 9 steps that window=8 and horizon=1"):
        SeriesForecaster(window=8).fit(np.zeros(8))


def test_the_page_has_what_the_files_say(monkeypatch, tmp_path):
    page = ROOT / "docs" / "when_to_use.md"
    monkeypatch.setattr(compare, "RESULTS", ROOT / "results" / "time_series")
    monkeypatch.setattr(compare, "PAGE", tmp_path / "page.md")
    compare.PAGE.write_text(page.read_text())
    compare.report()
    expected = "Run `examples/time_series/compare.py report`."
    assert compare.PAGE.read_text() == page.read_text(), expected
