"""The tasks beyond the paper: labels by plain loops, distributions, seeds and errors."""

import itertools
import zipfile
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import programs
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "beyond"
tracking = programs.load_with_siblings(FOLDER / "tracking.py")
recall = programs.load_with_siblings(FOLDER / "recall.py")
PermutedImages = programs.load_with_siblings(FOLDER / "pixels.py").PermutedImages

NOISY = {"symbols": 16, "noise_symbols": 16, "noise": 0.2}
TASKS = {
    "parity": (tracking.Parity, {}),
    "flip-flop": (tracking.FlipFlop, {}),
    "arithmetic": (tracking.ModularArithmetic, {}),
    "brackets": (tracking.ModularArithmetic, {"brackets": True}),
    "A5": (tracking.WordProblem, {"group": "A5"}),
    "Z60": (tracking.WordProblem, {"group": "Z60"}),
    "induction heads": (recall.InductionHeads, {}),
    "copying": (recall.SelectiveCopying, {}),
    "recall": (recall.InContextRecall, {"split": "test"}),
    "noisy recall": (recall.InContextRecall, {"split": "test", **NOISY}),
    "associative recall": (recall.AssociativeRecall, {"symbols": 64}),
}
STEPS = {"parity": 40, "flip-flop": 256, "arithmetic": 40, "brackets": 40, "A5": 20, "Z60": 20}
STEPS |= {"induction heads": 256, "copying": 256, "recall": 127, "noisy recall": 127}
STEPS |= {"associative recall": 64}


def make(name, **arguments):
    task, settings = TASKS[name]
    return task(**{"batch_size": 32, **settings, **arguments})


def rows(batch):
    """Each sequence, and its answers as `{position: target}`."""
    for sequence, targets, weights in zip(*(part.tolist() for part in batch), strict=True):
        assert set(weights) <= {0.0, 1.0}
        assert not any(t for t, w in zip(targets, weights, strict=True) if not w)
        yield sequence, {k: targets[k] for k, w in enumerate(weights) if w}


every_task = pytest.mark.parametrize("name", TASKS)


@every_task
def test_shapes_and_ranges(name):
    task = make(name)
    batch = task[0]
    assert len(task) == 100
    assert [x.dtype for x in batch] == ["int32", "int32", "float32"]
    assert {x.shape for x in batch} == {(32, STEPS[name])}
    inputs, targets, weights = batch
    assert inputs.min() >= 0
    assert inputs.max() < task.vocabulary
    assert targets.min() >= 0
    assert targets.max() < task.classes
    assert weights.any(axis=1).all()


@every_task
def test_batches_are_reproducible(name):
    def draw():
        task = make(name, seed=5, split="validation")
        task[1]
        task.on_epoch_end()
        return task[3]

    for first, again in zip(draw(), draw(), strict=True):
        np.testing.assert_array_equal(first, again)


@every_task
def test_seeds_splits_epochs_and_batches_share_nothing(name):
    seen = Counter()
    for seed, split in itertools.product((0, 1), ("train", "validation", "test")):
        task = make(name, seed=seed, split=split, steps_per_epoch=3)
        for _ in range(2):
            seen.update(task[index][0].tobytes() for index in range(len(task)))
            task.on_epoch_end()
    assert len(seen) == 2 * 3 * 2 * 3


@every_task
def test_errors(name):
    with pytest.raises(ValueError, match="split must be one of"):
        make(name, split="tests")
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        make(name, batch_size=0)
    with pytest.raises(TypeError, match="seed must be an integer"):
        make(name, seed=0.5)
    with pytest.raises(IndexError, match="batches 0 to 6, received 7"):
        make(name, steps_per_epoch=7)[7]
    with pytest.raises(IndexError, match="received -1"):
        make(name)[-1]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("parity", {"min_length": 0}, "min_length must be at least 1"),
        ("parity", {"max_length": 2}, "max_length must be at least 3"),
        ("flip-flop", {"length": 1}, "length must be at least 2"),
        ("flip-flop", {"ignore": 1.5}, "ignore must be from 0 to 1"),
        ("arithmetic", {"min_length": 1}, "min_length must be at least 2"),
        ("arithmetic", {"modulus": 1}, "modulus must be at least 2"),
        ("brackets", {"max_length": 2}, "max_length must be at least 3"),
        ("A5", {"group": "S5"}, r"group must be one of \('A5', 'Z60'\), received 'S5'"),
        ("Z60", {"length": 0}, "length must be at least 1"),
        ("induction heads", {"length": 2}, "length must be at least 3"),
        ("induction heads", {"symbols": 1}, "symbols must be at least 2"),
        ("copying", {"length": 32}, "length must be at least 33"),
        ("copying", {"symbols": 2}, "symbols must be at least 3"),
        ("recall", {"length": 127}, "length must be even, received 127"),
        ("recall", {"noise": 0.2}, "needs noise_symbols of at least 1"),
        ("noisy recall", {"noise": float("nan")}, "noise must be from 0 to 1"),
        ("associative recall", {"length": 14}, "length must be at least 16"),
        ("associative recall", {"length": 65}, "length must be even, received 65"),
        ("associative recall", {"symbols": 9}, "symbols must be even, received 9"),
        ("associative recall", {"symbols": 8}, "4 pairs need symbols of at least 10"),
    ],
)
def test_errors_of_a_task(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(name, **arguments)


def test_a_probability_is_a_number():
    with pytest.raises(TypeError, match="ignore must be a number, received '0.8'"):
        make("flip-flop", ignore="0.8")


@pytest.mark.parametrize(("low", "high"), [(1, 1), (3, 40), (40, 256)])
def test_parity(low, high):
    lengths = set()
    for sequence, answers in rows(make("parity", min_length=low, max_length=high)[0]):
        seen = [symbol for symbol in sequence if symbol]
        assert sequence == seen + [0] * (high - len(seen))
        assert answers == {len(seen) - 1: seen.count(2) % 2}
        lengths.add(len(seen))
    assert min(lengths) >= low
    assert max(lengths) <= high
    assert len(lengths) > min(high - low, 12)


@pytest.mark.parametrize("ignore", [0, 0.1, 0.8, 0.98, 1])
@pytest.mark.parametrize("length", [2, 256])
def test_flip_flop(ignore, length):
    for sequence, answers in rows(make("flip-flop", length=length, ignore=ignore)[0]):
        assert sequence[0] in (1, 2)
        assert sequence[-1] == 5
        bit, expected = None, {}
        for k, symbol in enumerate(sequence):
            if symbol in (1, 2):
                bit = symbol - 1
            if symbol == 5:
                expected[k] = bit
        assert answers == expected


def test_shares_of_a_flip_flop():
    inner = make("flip-flop", batch_size=512)[0][0][:, 1:-1]
    shares = np.bincount(inner.ravel(), minlength=6) / inner.size
    np.testing.assert_allclose(shares, [0, 0.05, 0.05, 0.4, 0.4, 0.1], atol=0.005)


def written(sequence, modulus):
    """The expression as Python would read it, without its equals sign, and the padding's length."""
    names = ["", *map(str, range(modulus)), "+", "-", "*", "=", "(", ")"]
    text = "".join(names[symbol] for symbol in sequence)
    assert text.endswith("=")
    assert text.count("=") == 1
    return text[:-1], len(sequence) - len(text)


@pytest.mark.parametrize("modulus", [2, 5, 9])
@pytest.mark.parametrize("name", ["arithmetic", "brackets"])
@pytest.mark.parametrize(("low", "high"), [(2, 2), (3, 9), (3, 40), (40, 255)])
def test_modular_arithmetic(name, modulus, low, high):
    task = make(name, modulus=modulus, min_length=low, max_length=high, batch_size=64)
    steps = high if task.brackets else high + high % 2
    for sequence, answers in rows(task[0]):
        expression, padding = written(sequence, modulus)
        assert sequence == sequence[: steps - padding] + [0] * padding
        assert low <= steps - padding <= steps
        assert answers == {len(expression): eval(expression) % modulus}  # noqa: S307


def test_expressions_are_those_of_the_grammar():
    def is_expression(text):
        """Whether some rule gives it, by trying all of them."""
        if text in leaves:
            return True
        if len(text) < 5 or text[0] + text[-1] != "()":
            return False
        splits = [k for k in range(2, len(text) - 2) if text[k] in "+-*"]
        return any(is_expression(text[1:k]) and is_expression(text[k + 1 : -1]) for k in splits)

    leaves = {form.format(digit) for digit in range(5) for form in ("{}", "-{}", "({})", "(-{})")}
    expressions = [written(x, 5)[0] for x, _ in rows(make("brackets", max_length=16)[0])]
    assert all(map(is_expression, expressions))
    assert len(set(expressions)) > 20

    plain = [written(x, 5)[0] for x, _ in rows(make("arithmetic")[0])]
    assert all(set(text[::2]) <= set("01234") for text in plain)
    assert all(set(text[1::2]) <= set("+-*") for text in plain)


def test_left_parts_are_of_all_lengths():
    """An expression of 9 symbols is (E+E), where the first E has 1 to 5, equally often."""
    lengths = Counter()
    for sequence, _ in rows(make("brackets", min_length=10, max_length=10, batch_size=4000)[0]):
        text = written(sequence, 5)[0]
        depth = np.cumsum([(c == "(") - (c == ")") for c in text])
        # The operator of the outer brackets; a sign does not follow an expression.
        (place,) = [
            k
            for k, c in enumerate(text)
            if c in "+-*" and depth[k] == 1 and text[k - 1] in "01234)"
        ]
        lengths[place - 1] += 1
    assert set(lengths) == {1, 2, 3, 4, 5}
    assert max(lengths.values()) < 1.2 * min(lengths.values())


def test_products_of_a5():
    even = [
        p
        for p in itertools.permutations(range(5))
        if sum(p[i] > p[j] for i, j in itertools.combinations(range(5), 2)) % 2 == 0
    ]
    for sequence, answers in rows(make("A5", length=30)[0]):
        product, expected = tuple(range(5)), []
        for symbol in sequence:
            product = tuple(even[symbol - 1][i] for i in product)
            expected.append(even.index(product))
        assert list(answers.values()) == expected
        assert list(answers) == list(range(30))


def test_sums_of_z60():
    for sequence, answers in rows(make("Z60", length=30)[0]):
        total, expected = 0, []
        for symbol in sequence:
            total = (total + symbol - 1) % 60
            expected.append(total)
        assert list(answers.values()) == expected


@pytest.mark.parametrize("length", [3, 4, 256, 65_536])
@pytest.mark.parametrize("kinds", [2, 16])
def test_induction_heads(length, kinds):
    task = make("induction heads", length=length, symbols=kinds, batch_size=4)
    for sequence, answers in rows(task[0]):
        assert min(sequence) >= 1
        trigger = sequence[-1]
        assert sequence.count(trigger) == 2
        assert answers == {length - 1: sequence[sequence.index(trigger) + 1]}


def test_triggers_and_their_places_differ():
    inputs, targets, _ = make("induction heads", length=12, symbols=5, batch_size=6000)[0]
    first = (inputs == inputs[:, -1:]).argmax(axis=1)
    pairs = Counter(zip(inputs[:, -1].tolist(), targets[:, -1].tolist(), strict=True))
    assert set(pairs) == set(itertools.permutations(range(1, 6), 2))
    assert max(pairs.values()) < 1.4 * min(pairs.values())
    places = np.bincount(first, minlength=10)
    assert len(places) == 10
    assert places.max() < 1.3 * places.min()


@pytest.mark.parametrize(("length", "copied"), [(3, 1), (33, 16), (256, 16), (512, 96)])
def test_selective_copying(length, copied):
    for sequence, answers in rows(make("copying", length=length, copied=copied)[0]):
        content, rest = sequence[: -copied - 1], sequence[-copied - 1 :]
        assert rest == [16] + [15] * copied
        expected = [symbol for symbol in content if symbol != 15]
        assert answers == dict(enumerate(expected, start=length - copied))
        assert len(expected) == copied
        assert 16 not in content
        assert content[-1] != 15


def test_blanks_fall_as_in_the_source():
    """Beside its generator, one blank after the other: the place of each symbol, on average."""
    inputs, *_ = make("copying", length=40, copied=4, batch_size=4000)[0]
    places = np.argwhere(inputs[:, :35] != 15)[:, 1].reshape(4000, 4)
    random, expected = np.random.default_rng(0), []
    for _ in range(4000):
        sequence = np.insert(np.ones(4, int), random.integers(0, 4, 31), np.zeros(31, int))
        expected.append(np.flatnonzero(sequence))
    np.testing.assert_allclose(places.mean(axis=0), np.mean(expected, axis=0), atol=0.3)
    np.testing.assert_allclose(places.std(axis=0), np.std(expected, axis=0), atol=0.15)


@pytest.mark.parametrize("length", [4, 128])
@pytest.mark.parametrize("name", ["recall", "noisy recall"])
def test_in_context_recall(name, length):
    for sequence, answers in rows(make(name, length=length, batch_size=64)[0]):
        values, expected = {}, {}
        for k in range(0, length - 2, 2):
            key, value = sequence[k : k + 2]
            if key > 16:
                assert value > 16
                continue
            assert key <= 8 < value <= 16
            if key in values:
                assert value == values[key]
                expected[k] = value
            values[key] = value
        expected[length - 2] = values[sequence[-1]]
        assert answers == expected


@pytest.mark.parametrize("name", ["recall", "noisy recall"])
def test_all_next_symbols_count_in_training(name):
    inputs, targets, weights = make(name, split="train")[0]
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert weights.all()


def test_shares_of_noise_and_last_keys():
    inputs, *_ = make("noisy recall", batch_size=2000)[0]
    # One pair of 63 is never noise.
    np.testing.assert_allclose((inputs[:, :-1] > 16).mean(), 0.2 * 62 / 63, atol=0.005)
    last = np.bincount(make("recall", length=128, batch_size=4000)[0][0][:, -1], minlength=9)
    assert last[0] == 0
    assert last[1:].max() < 1.3 * last[1:].min()


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_last_key_was_seen_even_in_much_noise(noise):
    task = make("noisy recall", noise=noise, length=20)
    for sequence, answers in rows(task[0]):
        pairs = [k for k in range(0, 18, 2) if sequence[k] <= 16]
        assert len(pairs) == (1 if noise else 9)
        assert answers[18] == sequence[sequence.index(sequence[18]) + 1]


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize(("length", "pairs", "kinds"), [(4, 1, 4), (64, 4, 64), (64, 16, 8192)])
def test_associative_recall(length, pairs, kinds, filled):
    arguments = {"length": length, "pairs": pairs, "symbols": kinds, "filled": filled}
    for sequence, answers in rows(make("associative recall", **arguments)[0]):
        values = dict(zip(sequence[: 2 * pairs : 2], sequence[1 : 2 * pairs : 2], strict=True))
        assert len(values) == len(set(values.values())) == pairs
        assert all(1 <= key < kinds // 2 <= value < kinds for key, value in values.items())
        assert {sequence[k]: value for k, value in answers.items()} == values
        assert len(answers) == pairs
        assert all(k >= 2 * pairs and k % 2 == 0 for k in answers)
        if filled:
            assert min(sequence) >= 1
        else:
            assert sum(symbol > 0 for symbol in sequence) == 3 * pairs


def test_distances_fall_as_in_the_source():
    """Beside NumPy's own drawing without replacement: how often each distance is taken."""
    task = make("associative recall", power=0.3, length=32, pairs=2, batch_size=6000)
    inputs, _, weights = task[0]
    first = (inputs == inputs[:, :1]) & (weights > 0)
    shares = np.stack([first.sum(axis=0), weights.sum(axis=0)])[:, 4::2] / 6000
    rates = np.arange(1.0, 15.0) ** -0.7
    random = np.random.default_rng(0)
    drawn = [random.choice(14, 2, replace=False, p=rates / rates.sum()) for _ in range(6000)]
    expected = np.zeros((2, 14))
    for a, b in drawn:
        expected[:, a] += 1 / 6000
        expected[1, b] += 1 / 6000
    np.testing.assert_allclose(shares, expected, atol=0.03)


@pytest.fixture
def images():
    random = np.random.default_rng(0)
    return random.integers(256, size=(10, 4, 3), dtype="uint8"), np.arange(10, dtype="int32")


def test_pixels_are_permuted_alike_everywhere(images):
    task = PermutedImages(*images, batch_size=4, order=3)
    other = PermutedImages(*images, batch_size=4, order=3, seed=9)
    assert task.order.tolist() == other.order.tolist()
    assert sorted(task.order) == list(range(12))
    assert task.order.tolist() != PermutedImages(*images, order=4).order.tolist()
    seen = []
    for index in range(len(task)):
        pixels, labels = task[index]
        assert pixels.dtype == "float32"
        assert pixels.shape == (len(labels), 12, 1)
        for row, label in zip(pixels, labels, strict=True):
            image = images[0][label].ravel().tolist()
            np.testing.assert_allclose(row[:, 0], [image[k] / 255 for k in task.order], rtol=1e-6)
        seen += labels.tolist()
    assert sorted(seen) == list(range(10))


def test_each_epoch_has_another_order_of_images(images):
    task = PermutedImages(*images, batch_size=10)
    before = task[0][1].tolist()
    task.on_epoch_end()
    assert before != task[0][1].tolist()
    assert sorted(before) == sorted(task[0][1])


def test_the_order_of_pixels_is_a_seed(images):
    with pytest.raises(ValueError, match="order must be at least 0"):
        PermutedImages(*images, order=-1)


def test_keras_fits_and_goes_on_with_new_sequences():
    task = make("parity", steps_per_epoch=2)
    layers = [keras.layers.Embedding(3, 4), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    model.compile("adam", loss, weighted_metrics=["accuracy"])
    history = model.fit(task, epochs=2, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert 0.4 < history["loss"][0] < 1.0
    assert task.epoch == 3


def test_sets_of_the_archive(monkeypatch, tmp_path):
    """A wheel with a few sequences in the format of the archive."""
    series = programs.load_with_siblings(FOLDER / "series.py")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "data"
    folder.mkdir(parents=True)
    files = {"appliances": "ACSF1", "motions": "BasicMotions", "leaves": "OSULeaf"}
    files |= {"demand": "ItalyPowerDemand"}
    with zipfile.ZipFile(folder / "aeon-0-py3-none-any.whl", "w") as wheel:
        for file, part in itertools.product(files.values(), ("TRAIN", "TEST")):
            text = "# About\n@problemName x\n@data\n1,2,3:4,5,6:b\n7,8,9:0,1,2:a\n"
            wheel.writestr(f"aeon/datasets/data/{file}/{file}_{part}.ts", text)
    assert set(series.ARCHIVE) == set(files)
    for name, classes in zip(files, (10, 4, 6, 2), strict=True):
        task = series.ARCHIVE[name]()
        assert task.outputs == classes
        for x, y in (task.train, task.test):
            expected = [[[1, 4], [2, 5], [3, 6]], [[7, 0], [8, 1], [9, 2]]]
            np.testing.assert_array_equal(x, np.array(expected, "float32"))
            assert x.dtype == "float32"
            assert y.tolist() == [1, 0]
