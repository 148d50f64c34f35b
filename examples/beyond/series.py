"""Series to learn from: windows of a long one, and sequences that have a label each."""

import dataclasses
import functools
import pathlib
import subprocess
import sys
import zipfile

import keras
import numpy as np

DAY = 24  # steps, of both series that are made here
PADDING = -1000.0  # a step is padding where every feature is this number


@dataclasses.dataclass(frozen=True)
class Series:
    """Sequences `(batch, time, features)` and what is to be learned of each.

    Args:
        train: Inputs, targets. Targets are `(batch, values)`, or classes `(batch,)`.
        test: Likewise, later or by other speakers.
        classes: How many, or None where the targets are values.
        unit: What an error of 1 is in the unit of the data.
        season: The targets of the test, if all were as one season before. None: no season.
    """

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    classes: int | None = None
    unit: float = 1.0
    season: np.ndarray | None = None

    @property
    def outputs(self):
        return self.classes or self.train[1].shape[1]


def weather():
    """The series of the quick start: the change of the temperature in the next hour, in degrees.

    The noise that no forecast can foresee is 0.5.
    """
    random = np.random.default_rng(0)
    hours, clouds = np.arange(24 * 60), np.zeros(24 * 60)
    for k in hours[1:]:
        clouds[k] = 0.95 * clouds[k - 1] + random.normal(scale=0.5)
    temperature = 12 + 6 * np.sin(2 * np.pi * hours / 24) + clouds
    humidity = 60 - 2 * clouds + random.normal(scale=2, size=len(hours))
    return _forecasting(np.stack([temperature, humidity], axis=-1), steps=24, ahead=1, split=1152)


def seasonal():
    """A season with level shifts, and the time of day: the change of the series in 12 steps."""
    random = np.random.default_rng(1)
    time = np.arange(3000)
    level = np.cumsum(random.normal(scale=1.5, size=3000) * (random.random(3000) < 0.01))
    phase = 2 * np.pi * time / 24
    series = level + 2 * np.sin(phase) + np.sin(2 * phase) + random.normal(scale=0.3, size=3000)
    channels = np.stack([series, np.sin(phase), np.cos(phase)], axis=-1)
    return _forecasting(channels, steps=48, ahead=12, split=2400)


def co2():
    """Mauna Loa: the change of CO₂ over the next 26 weeks, in ppm, from three years of weeks."""
    from statsmodels.datasets import co2 as mauna_loa

    values = mauna_loa.load_pandas().data["co2"].interpolate().to_numpy()
    phase = 2 * np.pi * np.arange(len(values)) * 7 / 365.25
    change = np.diff(values, prepend=values[0])
    channels = np.stack([change, np.sin(phase), np.cos(phase)], axis=-1)
    steps, ahead, split = 156, 26, 1400
    scaled = (channels / channels[:split].std(axis=0)).astype("float32")
    windows = _windows(scaled, steps)[:-ahead]
    target = (values[steps - 1 + ahead :] - values[steps - 1 : -ahead])[:, None]
    unit = target[: split - steps].std()
    target = (target / unit).astype("float32")
    last = split - steps - ahead
    season = -windows[split:, steps - ahead :, :1].sum(axis=1) * change[:split].std() / unit
    train, test = (windows[:last], target[:last]), (windows[split:], target[split:])
    return Series(train, test, unit=unit, season=season)


def vowels():
    """JapaneseVowels: nine speakers, 12 features, 7 to 29 steps, padded; 270 and 370 sequences."""
    return _classification("JapaneseVowels", classes=9)


def appliances():
    """ACSF1: the power that ten kinds of appliances take; 1,460 steps; 100 and 100 sequences."""
    return _classification("ACSF1", classes=10)


def motions():
    """BasicMotions: four, 6 features of a watch, 100 steps; 40 and 40 sequences."""
    return _classification("BasicMotions", classes=4)


def leaves():
    """OSULeaf: the outlines of six kinds of leaves, 427 steps; 200 and 242 sequences."""
    return _classification("OSULeaf", classes=6)


def demand():
    """ItalyPowerDemand: is this day from October to March? 24 hours; 67 and 1,029 sequences."""
    return _classification("ItalyPowerDemand", classes=2)


TASKS = {function.__name__: function for function in (weather, seasonal, co2, vowels)}
ARCHIVE = {function.__name__: function for function in (appliances, motions, leaves, demand)}


def _forecasting(channels, steps, ahead, split):
    """The change of the first channel over the next steps, from windows of all channels."""
    mean, std = channels[:split].mean(axis=0), channels[:split].std(axis=0)
    scaled = ((channels - mean) / std).astype("float32")
    windows = _windows(scaled, steps + ahead)
    present = windows[:, steps - 1, :1]
    x, y = windows[:, :steps], windows[:, -1:, 0] - present
    season = windows[:, -1 - DAY, :1] - present
    first, last = split - steps, split - steps - ahead + 1
    test = x[first:], y[first:]
    return Series((x[:last], y[:last]), test, unit=std[0], season=season[first:])


def _windows(series, length):
    return np.lib.stride_tricks.sliding_window_view(series, length, axis=0).swapaxes(1, 2)


def _classification(name, classes):
    """A set of the UEA and UCR archives in its own split; its features are as in the file."""
    train, test = (_sequences(name, part) for part in ("TRAIN", "TEST"))
    return Series(train, test, classes=classes)


def _sequences(name, part):
    """Padded sequences and classes from a file of the archive."""
    series, labels = labelled(name, part)
    sequences = [x.T for x in series]
    padded = keras.utils.pad_sequences(sequences, None, "float32", "post", value=PADDING)
    return padded, np.unique(labels, return_inverse=True)[1].astype("int32")


def labelled(name, part):
    """Series `(features, time)` and labels, strings, from a file of the archive."""
    text = (archive() / name / f"{name}_{part}.ts").read_text()
    _, _, lines = text.partition("@data")
    series, labels = [], []
    for line in lines.split():
        *channels, label = line.split(":")
        series.append(np.array([row.split(",") for row in channels], "float32"))
        labels.append(label)
    return series, labels


@functools.cache
def archive():
    """The series in aeon's wheel, which is fetched from the package index and not installed."""
    folder = pathlib.Path("outputs/data")
    if not list(folder.glob("aeon-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, "aeon==1.6.0"], check=True)
    (wheel,) = folder.glob("aeon-*.whl")
    inside = "aeon/datasets/data"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [file for file in archive.namelist() if file.startswith(inside)])
    return folder / inside
