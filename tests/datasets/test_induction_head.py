import itertools
import pickle
from collections import Counter

import keras
import numpy as np
import pytest

from keras_coffee.datasets import InductionHead


def occurrences(symbols, trigger):
    """Whether the trigger begins at each position, by plain comparison: (B, positions)."""
    windows = np.lib.stride_tricks.sliding_window_view(symbols, len(trigger), axis=1)
    return (windows == np.array(trigger)).all(axis=-1)


def assert_structure(dataset, symbols, targets):
    batch, length, size = dataset.batch_size, dataset.length, dataset.trigger_length
    padding = dataset.target_length - 1
    assert symbols.dtype == targets.dtype == np.int32
    assert symbols.shape == (batch, length + padding)
    assert targets.shape == (batch, dataset.target_length)
    sequences = symbols[:, :length]
    assert not symbols[:, length:].any()
    assert sequences.min() >= 1 and sequences.max() <= dataset.vocabulary_size
    found = occurrences(sequences, dataset.trigger)
    np.testing.assert_array_equal(found.sum(axis=1), 2)
    assert found[:, -1].all()
    answers = found.argmax(axis=1) + size + dataset.noise_length
    assert (answers + dataset.target_length <= length - size).all()
    for sequence, answer, target in zip(sequences, answers, targets, strict=True):
        np.testing.assert_array_equal(sequence[answer : answer + len(target)], target)


@pytest.mark.parametrize("target_length", [1, 2, 3])
@pytest.mark.parametrize("noise_length", [0, 1, 2])
@pytest.mark.parametrize(
    "trigger", [(1,), (7,), (1, 2), (1, 1), (1, 2, 1), (2, 2, 2), (3, 1, 3, 1)]
)
def test_structure(trigger, noise_length, target_length):
    shortest = 2 * len(trigger) + target_length + max(1, noise_length)
    for length in (shortest, shortest + 1, 20):
        dataset = InductionHead(
            length, None, target_length, noise_length, trigger=trigger, batch_size=64
        )
        assert_structure(dataset, *dataset[3])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_trigger_of_two_symbols_has_sequences_of_any_length(size):
    for trigger in itertools.product((1, 2), repeat=size):
        for length in range(2 * size + 2, 2 * size + 7):
            dataset = InductionHead(length, vocabulary_size=2, trigger=trigger, batch_size=16)
            assert_structure(dataset, *dataset[0])


@pytest.mark.parametrize(
    ("trigger", "vocabulary_size"), [((1,), 2), ((3,), 7), ((1, 2), 1000), ((1, 1, 2), 2)]
)
def test_long_sequences(trigger, vocabulary_size):
    dataset = InductionHead(
        10_000, vocabulary_size=vocabulary_size, trigger=trigger, batch_size=4, target_length=2
    )
    assert_structure(dataset, *dataset[0])


def test_ih0_has_the_eight_sequences_of_the_paper():
    dataset = InductionHead(4, vocabulary_size=3, trigger=[1])
    symbols, targets = dataset[0]
    seen = {(tuple(s), *t) for s, t in zip(symbols.tolist(), targets.tolist(), strict=True)}
    pairs = list(itertools.product((2, 3), repeat=2))
    expected = {((1, target, noise, 1), target) for target, noise in pairs}
    assert seen == expected | {((noise, 1, target, 1), target) for target, noise in pairs}


def admissible(length, vocabulary_size, trigger, last_start):
    """Every sequence that rejection would keep, as a number, and its first trigger's position."""
    symbols = range(1, vocabulary_size + 1)
    sequences = np.array(list(itertools.product(symbols, repeat=length)))
    found = occurrences(sequences, trigger)
    starts = found.argmax(axis=1)
    kept = (found.sum(axis=1) == 2) & found[:, -1] & (starts <= last_start)
    return dict(zip(as_numbers(sequences[kept]), starts[kept], strict=True))


def as_numbers(sequences):
    return sequences @ 10 ** np.arange(sequences.shape[1])[::-1]


@pytest.mark.parametrize(
    ("length", "vocabulary_size", "trigger", "target_length", "noise_length"),
    [
        (6, 3, (2,), 1, 0),
        (6, 3, (1,), 2, 1),
        (6, 3, (1, 2), 1, 0),
        (7, 3, (1, 1), 1, 0),
        (8, 2, (1, 1), 1, 0),
        (8, 2, (1, 2), 1, 0),
        (8, 3, (1, 1), 1, 1),
        (8, 3, (1, 2), 2, 0),
        (8, 3, (1, 2, 1), 1, 0),
        (11, 2, (1, 2, 1), 1, 0),
        (11, 2, (1, 1, 2), 1, 2),
    ],
)
def test_admissible_sequences_are_equally_likely(
    length, vocabulary_size, trigger, target_length, noise_length
):
    last_start = length - 2 * len(trigger) - target_length - noise_length
    expected = admissible(length, vocabulary_size, trigger, last_start)
    draws = 400_000
    dataset = InductionHead(
        length,
        len(trigger),
        target_length,
        noise_length,
        vocabulary_size=vocabulary_size,
        trigger=trigger,
        batch_size=draws,
    )
    drawn = as_numbers(dataset[0][0][:, :length])
    numbers, observed = np.unique(drawn, return_counts=True)
    assert set(numbers) == expected.keys()
    mean = draws / len(expected)
    freedom = len(expected) - 1
    # Six standard deviations of chi-square above its mean; the seed is fixed.
    bound = freedom + 6 * np.sqrt(2 * freedom)
    assert ((observed - mean) ** 2 / mean).sum() < bound

    # The bound has teeth: uniform positions, and then uniform sequences with that position, would
    # exceed it at least sixfold. (With a trigger of one symbol that sampler is right as well.)
    sizes = Counter(expected.values())
    wrong = np.array([draws / len(sizes) / sizes[start] for start in expected.values()])
    assert len(trigger) == 1 or ((wrong - mean) ** 2 / mean).sum() > 6 * bound


def count_words(length, vocabulary_size, trigger, before):
    """For k = 0 to length, words of k symbols between `before` and a last, new trigger: exact.

    Integers of any size over the last symbols seen; no automaton, no floating point.
    """
    size = len(trigger)
    ways, totals = {before: 1}, []
    for _ in range(length + 1):
        ends = {
            seen: any((seen + trigger)[-size - k : -k] == trigger for k in range(1, size))
            for seen in ways
        }
        totals.append(sum(number for seen, number in ways.items() if not ends[seen]))
        following = Counter()
        for (seen, number), symbol in itertools.product(
            ways.items(), range(1, vocabulary_size + 1)
        ):
            word = (*seen, symbol)[-size:]
            if word != trigger:
                following[word] += number
        ways = following
    return totals


@pytest.mark.parametrize(
    ("trigger", "vocabulary_size"), [((1, 1, 2), 2), ((1, 1), 3), ((1, 2), 2), ((1, 2), 7)]
)
def test_positions_in_long_sequences_have_their_exact_weights(trigger, vocabulary_size):
    # Up to 7^1500 sequences: counts in floating point would overflow.
    length, draws = 1500, 4000
    dataset = InductionHead(
        length, vocabulary_size=vocabulary_size, trigger=trigger, batch_size=draws
    )
    free = length - 2 * len(trigger)
    prefixes = count_words(free, vocabulary_size, trigger, ())
    middles = count_words(free, vocabulary_size, trigger, trigger)
    weights = [prefixes[start] * middles[free - start] for start in range(free)]
    total = sum(weights)
    expected = np.array([weight / total for weight in weights])
    starts = occurrences(dataset[0][0], trigger).argmax(axis=1)
    cumulative = np.searchsorted(np.sort(starts), np.arange(free), side="right") / draws
    # Kolmogorov-Smirnov at a level of 1e-5: sqrt(-log(1e-5 / 2) / 2) = 2.47.
    assert np.abs(cumulative - expected.cumsum()).max() < 2.47 / np.sqrt(draws)


def batches(dataset, epoch=0):
    dataset.epoch = epoch
    return np.concatenate([symbols for symbols, _ in dataset])


@pytest.mark.parametrize("trigger", [None, [1, 2]])
def test_content_depends_on_seed_split_epoch_and_index_alone(trigger):
    def build(**settings):
        return InductionHead(trigger=trigger, batch_size=32, steps_per_epoch=3, **settings)

    dataset = build(seed=5)
    first = batches(dataset)
    np.testing.assert_array_equal(batches(build(seed=5)), first)
    np.testing.assert_array_equal(dataset[1][0], first[32:64])
    np.testing.assert_array_equal(dataset[np.int64(1)][0], first[32:64])
    others = [
        batches(build(seed=5), epoch=1),
        batches(build(seed=6)),
        batches(build(seed=5, split="validation")),
        batches(build(seed=5, split="test")),
    ]
    rows = [tuple(row) for content in (first, *others) for row in content.tolist()]
    assert len(set(rows)) == len(rows)
    dataset.on_epoch_end()
    np.testing.assert_array_equal(batches(dataset, dataset.epoch), others[0])


def test_splits_of_a_seed_share_the_trigger():
    triggers = set()
    for seed in range(8):
        ours = {
            InductionHead(20, 4, seed=seed, split=split).trigger
            for split in ("train", "validation", "test")
        }
        assert len(ours) == 1
        triggers |= ours
    assert len(triggers) == 8


def test_pinned_batches():
    # The same on every backend, machine and version of numpy.
    dataset = InductionHead(10, target_length=2, batch_size=3)
    assert dataset.trigger == (7,)
    symbols, targets = dataset[0]
    assert symbols.tolist() == [
        [3, 4, 6, 4, 7, 1, 3, 1, 6, 7, 0],
        [1, 6, 4, 4, 4, 5, 7, 3, 1, 7, 0],
        [1, 6, 5, 5, 3, 7, 2, 5, 2, 7, 0],
    ]
    assert targets.tolist() == [[1, 3], [3, 1], [2, 5]]
    symbols, targets = InductionHead(10, trigger=[1, 2], noise_length=1, batch_size=3)[0]
    assert symbols.tolist() == [
        [5, 2, 2, 1, 2, 5, 3, 1, 1, 2],
        [3, 1, 2, 7, 3, 7, 2, 5, 1, 2],
        [2, 1, 2, 6, 5, 3, 2, 2, 1, 2],
    ]
    assert targets.tolist() == [[3], [3], [5]]


def tiny_model(dataset):
    inputs = keras.Input((dataset.length + dataset.target_length - 1,), dtype="int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(8, 4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(dataset.target_length)(hidden))
    # A learning rate of 0 makes each loss a fingerprint of its batch.
    model.compile(keras.optimizers.SGD(0.0), loss="mean_squared_error")
    return model


class RecordLosses(keras.callbacks.Callback):
    """The running mean of the loss after each batch, in training and in validation."""

    def __init__(self):
        super().__init__()
        self.train, self.validation = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.train.append(logs["loss"])

    def on_test_batch_end(self, batch, logs=None):
        self.validation.append(logs["loss"])


def running_losses(model, dataset, epochs):
    means = []
    for dataset.epoch in epochs:
        losses = [float(model.test_on_batch(*batch)) for batch in dataset]
        means.extend(np.cumsum(losses) / np.arange(1, len(losses) + 1))
    return means


def test_fit_sees_new_batches_each_epoch_and_the_same_on_every_backend():
    settings = dict(target_length=2, batch_size=8, steps_per_epoch=2)
    train = InductionHead(**settings)
    validation = InductionHead(**settings, split="validation")
    model, record = tiny_model(train), RecordLosses()
    model.fit(
        train,
        validation_data=validation,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[record],
    )
    # Keras ends an "epoch" before each fit and each evaluation.
    expected = running_losses(model, train, epochs=[1, 2])
    np.testing.assert_allclose(record.train, expected, rtol=1e-5)
    assert np.ptp(expected) > 0.01
    expected = running_losses(model, validation, epochs=[1, 3])
    np.testing.assert_allclose(record.validation, expected, rtol=1e-5)


def test_several_workers():
    train = InductionHead(batch_size=8, steps_per_epoch=3, workers=2, max_queue_size=2)
    assert (train.workers, train.max_queue_size, train.use_multiprocessing) == (2, 2, False)
    model, record = tiny_model(train), RecordLosses()
    model.fit(train, epochs=2, verbose=0, callbacks=[record])
    assert len(record.train) == 6 and np.isfinite(record.train).all()
    assert train.epoch == 3


def test_pickled_for_processes_it_gives_the_same_batches():
    dataset = InductionHead(trigger=[1, 2], batch_size=8)
    dataset.on_epoch_end()
    copy = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(copy[4][0], dataset[4][0])


def test_config_round_trip():
    dataset = InductionHead(
        21, 2, 3, 1, vocabulary_size=5, batch_size=6, steps_per_epoch=7, seed=8, split="test"
    )
    dataset.workers = 3
    config = keras.saving.serialize_keras_object(dataset)
    assert config["registered_name"] == "keras_coffee>InductionHead"
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == dataset.get_config()
    assert copy.workers == 3
    np.testing.assert_array_equal(copy[6][0], dataset[6][0])


def test_length_of_trigger():
    assert InductionHead().trigger_length == 1
    assert InductionHead(trigger_length=3).trigger_length == 3
    assert InductionHead(trigger=np.array([4, 5])).trigger == (4, 5)
    assert InductionHead(trigger_length=2, trigger=[4, 5]).trigger_length == 2


def test_length_and_indices():
    dataset = InductionHead(batch_size=2, steps_per_epoch=3)
    assert len(dataset) == dataset.num_batches == len(list(dataset)) == 3
    for index in (3, -1):
        with pytest.raises(IndexError, match=rf"batches 0 to 2; received index {index}\. Raise"):
            dataset[index]
    for index in (1.0, "0", slice(2)):
        with pytest.raises(TypeError, match="integer"):
            dataset[index]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(length=3), r"3 - 2 \* 1 - 1 = 0 is less than 1\. Use a length of at least 4"),
        (
            dict(length=8, trigger=[1, 2], target_length=2, noise_length=3),
            r"8 - 2 \* 2 - 2 = 2 is less than 3\. Use a length of at least 9",
        ),
        (dict(trigger=[1, 8]), r"1 to vocabulary_size=7, received \[1, 8\]"),
        (dict(trigger=[0]), r"symbol of trigger must be at least 1, received 0"),
        (dict(trigger=[]), r"trigger_length must be at least 1, received 0"),
        (dict(trigger=[1, 2], trigger_length=3), r"trigger_length is 3, but .* has 2 symbols"),
        (dict(vocabulary_size=1), r"vocabulary_size must be at least 2, received 1"),
        (dict(split="training"), r"one of \('train', 'validation', 'test'\), received 'training'"),
        (dict(seed=-1), r"seed must be at least 0, received -1"),
        (dict(noise_length=-1), r"noise_length must be at least 0, received -1"),
        *[
            ({name: 0}, rf"{name} must be at least 1, received 0")
            for name in (
                "length",
                "trigger_length",
                "target_length",
                "batch_size",
                "steps_per_epoch",
            )
        ],
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        InductionHead(**settings)


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
@pytest.mark.parametrize(
    "name",
    [
        "length",
        "target_length",
        "noise_length",
        "vocabulary_size",
        "batch_size",
        "steps_per_epoch",
        "seed",
    ],
)
def test_numbers_are_integers(name, value):
    with pytest.raises(TypeError, match=rf"{name} must be an integer, received {value!r} of type"):
        InductionHead(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(trigger_length=1.0), r"trigger_length must be an integer, received 1\.0"),
        (
            dict(trigger=[1], trigger_length=True),
            r"trigger_length must be an integer, received True",
        ),
        (dict(trigger=[1.5]), r"symbol of trigger must be an integer, received 1\.5"),
        (dict(trigger=1), r"list of symbols such as \[1\], received 1"),
        (dict(trigger="12"), r"list of symbols such as \[1\], received '12'"),
    ],
)
def test_triggers_are_lists_of_integers(settings, message):
    with pytest.raises(TypeError, match=message):
        InductionHead(**settings)
