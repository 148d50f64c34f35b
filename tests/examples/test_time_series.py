"""The estimators of time series: what they learn, and that they are scikit-learn's."""

from pathlib import Path

import keras
import numpy as np
import programs
import pytest
from nightly import by_night

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
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


@pytest.fixture(scope="module")
def forecaster():
    """Of two channels, of which the second is constant: its deviation is 1e-17 by rounding."""
    series = np.stack([np.sin(np.arange(24.0)), np.full(24, 0.1)])
    return SeriesForecaster(window=8, epochs=1, **SMALL).fit([series])


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


def test_a_search_of_scikit_learn_gives_numbers_of_numpy():
    series, labels = rising_and_falling(8)
    numbers = {name: np.int64(x) for name, x in SMALL.items()}
    one = SeriesClassifier(epochs=np.int64(1), **numbers).fit(series, labels)
    assert one.predict(series).shape == (8,)


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
    windows, changes = SeriesForecaster(horizon=3, window=4)._windows([two])
    assert [x.shape for x in windows] == [(4, 2)] * 4
    np.testing.assert_array_equal(changes, two[0, 6:] - two[0, 3:7])


def test_a_constant_is_not_divided_by_what_rounding_leaves(forecaster):
    constant, ramp = np.full(320, 0.1), np.arange(20) * 0.1
    assert 0 < constant.std() < 1e-16
    x = np.stack([constant, -constant, 0 * constant, constant + 1e-6 * np.sin(np.arange(320))], 1)
    np.testing.assert_allclose(estimators.spread(x), [0.1, 0.1, 1.0, x[:, 3].std()])
    np.testing.assert_allclose(estimators.spread(np.diff(ramp)), 0.1)

    wave = np.sin(np.arange(8.0))
    as_before, a_bit_off = forecaster.predict([[wave, np.full(8, c)] for c in (0.1, 0.1 + 1e-9)])
    np.testing.assert_allclose(as_before, a_bit_off, rtol=1e-5)


def test_the_axes_of_a_forecasters_series(forecaster):
    two = np.stack([np.cos(np.arange(8.0)), np.full(8, 0.1)])
    expected = forecaster.predict([two])
    assert expected.shape == (1,)
    for same in (two[None], [two.tolist()], [tuple(two)]):
        np.testing.assert_array_equal(forecaster.predict(same), expected)
    flat = np.arange(12.0).reshape(2, 6)
    for rows in (flat, flat.tolist(), list(flat)):
        with pytest.raises(ValueError, match="of 2 channels, received series of 1"):
            forecaster.predict(rows)
    with pytest.raises(ValueError, match=r"received the shape \(\)"):
        estimators.as_sequences(np.zeros(5))


def test_a_forecaster_can_be_cross_validated_on_rows():
    wave = np.sin(np.arange(12.0))
    rows = np.stack([wave] * 6)
    small = SeriesForecaster(window=8, epochs=1, **SMALL)
    assert cross_val_score(small, rows, cv=2).shape == (2,)


def test_what_pandas_has_is_read_as_arrays():
    pandas = pytest.importorskip("pandas")
    values = np.sin(np.arange(12.0))
    days = pandas.date_range("2020-01-01", periods=12)
    for one in (pandas.Series(values), pandas.Series(values, index=days), list(values)):
        (series,) = estimators.as_sequences(estimators.one_or_many(one))
        np.testing.assert_array_equal(series[:, 0], values)
    frame = pandas.DataFrame([values, -values], columns=days)
    _, second = estimators.as_sequences(estimators.one_or_many(frame))
    np.testing.assert_array_equal(second[:, 0], -values)
    labels = pandas.Series(["a", None], index=[7, 8])
    with pytest.raises(ValueError, match="must not be missing"):
        SeriesClassifier().fit(frame, labels)


def test_the_score_of_a_constant_series_is_that_of_r2(forecaster):
    constant = [np.full((2, 12), 0.1)]
    assert forecaster.score(constant) == 0.0
    weights = forecaster.model_.get_weights()
    forecaster.model_.set_weights([np.zeros_like(x) for x in weights])  # foresees no change
    perfect = forecaster.score(constant)
    forecaster.model_.set_weights(weights)
    assert perfect == 1.0


@pytest.mark.parametrize(
    "estimator, method",
    [
        (SeriesClassifier, "predict"),
        (SeriesClassifier, "predict_proba"),
        (SeriesForecaster, "predict"),
        (SeriesForecaster, "score"),
    ],
)
def test_fit_comes_first(estimator, method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(estimator(), method)(np.zeros((2, 60)))


@pytest.mark.parametrize("none", [[], np.array([]), np.zeros((0, 2, 5))])
def test_there_must_be_a_series(none, classifier, forecaster):
    calls = [SeriesForecaster().fit, forecaster.predict, forecaster.score, classifier.predict]
    for call in calls:
        with pytest.raises(ValueError, match="at least one series, received none"):
            call(none)


@pytest.mark.parametrize("value", [0, 1.5, "2"])
@pytest.mark.parametrize("name", ["horizon", "window", "width", "blocks", "epochs", "batch_size"])
def test_what_must_be_a_positive_integer(name, value):
    message = f"`{name}` must be a positive integer, received {value!r}"
    with pytest.raises(ValueError, match=message):
        SeriesForecaster(**{name: value}).fit(np.zeros(60))
    if name not in ("horizon", "window"):
        with pytest.raises(ValueError, match=message):
            SeriesClassifier().set_params(**{name: value}).fit(np.zeros((2, 5)), [0, 1])


@pytest.mark.parametrize("settings", [{"units": 8}, {"units": 1, "return_sequences": True}])
def test_a_layer_must_give_sequences(settings):
    with pytest.raises(ValueError, match=r"sequences \(batch, time, 8\).* return_sequences=True"):
        SeriesClassifier(lambda: keras.layers.GRU(**settings), **SMALL).fit(
            np.zeros((2, 5)), [0, 1]
        )


@pytest.mark.parametrize(
    "labels, message",
    [
        (np.eye(2), "1d array, got an array of shape"),
        ([0.0, np.nan], "must not be missing, received None or NaN"),
        (["a", np.nan], "must not be missing"),
        (["a", None], "must not be missing"),
    ],
)
def test_labels_that_cannot_be_read(labels, message):
    with pytest.raises(ValueError, match=message):
        SeriesClassifier().fit(np.zeros((2, 5)), labels)


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
