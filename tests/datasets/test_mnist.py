import hashlib
import os
import zipfile

import keras
import numpy as np
import pytest
from nightly import once

from keras_coffee.datasets import load_mnist, mnist

pytestmark = once
TRAINING, TEST, VALIDATION = 60, 10, 12


def digits(count, seed):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 28, 28), np.uint8)
    return images, generator.integers(0, 10, count, np.uint8)


@pytest.fixture
def arrays(monkeypatch):
    """Stands for MNIST: the same, but few and random."""
    (x_train, y_train), (x_test, y_test) = digits(TRAINING, 0), digits(TEST, 1)
    made = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    contents = {
        name: (array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in made.items()
    }
    monkeypatch.setattr(mnist, "_CONTENTS", contents)
    monkeypatch.setattr(mnist, "_VALIDATION_SIZE", VALIDATION)
    monkeypatch.delenv("KERAS_COFFEE_DATA", raising=False)
    return made


@pytest.fixture
def file(arrays, tmp_path):
    path = tmp_path / "mnist.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture
def no_download(monkeypatch):
    def load_data():
        # What Keras raises.
        raise Exception("URL fetch failure on https://example.org/mnist.npz: None -- [Errno -3]")

    monkeypatch.setattr(keras.datasets.mnist, "load_data", load_data)


def assert_same(found, expected):
    for x, y in zip(found, expected, strict=True):
        for array, other in zip(x, y, strict=True):
            np.testing.assert_array_equal(array, other)


def test_the_three_parts(arrays, file):
    train, validation, test = load_mnist(file)
    for (images, labels), count in zip(
        (train, validation, test), (TRAINING - VALIDATION, VALIDATION, TEST), strict=True
    ):
        assert images.shape == (count, 28, 28) and images.dtype == np.uint8
        assert labels.shape == (count,) and labels.dtype == np.int32
    assert_same([test], [(arrays["x_test"], arrays["y_test"])])


def numbers(part, arrays):
    """Where the images of a part stand among those for training."""
    numbers = [
        int(np.flatnonzero((arrays["x_train"] == image).all(axis=(1, 2)))[0]) for image in part[0]
    ]
    np.testing.assert_array_equal(part[1], arrays["y_train"][numbers])
    return numbers


def test_validation_is_drawn_from_the_training_images_by_seed(arrays, file):
    drawn = []
    for seed in range(4):
        train, validation, _ = load_mnist(file, seed)
        held_out = numbers(validation, arrays)
        assert sorted(held_out + numbers(train, arrays)) == list(range(TRAINING))
        drawn.append(tuple(held_out))
    assert len(set(drawn)) == 4
    assert_same(load_mnist(file, seed=3), load_mnist(file, 3))


def test_validation_is_uniform(arrays, file):
    counts, draws = np.zeros(TRAINING), 100
    for seed in range(draws):
        counts[numbers(load_mnist(file, seed)[1], arrays)] += 1
    mean = draws * VALIDATION / TRAINING
    assert counts.sum() == draws * VALIDATION
    assert abs(counts - mean).max() < 5 * np.sqrt(mean * (1 - VALIDATION / TRAINING))


def test_pinned_validation(arrays, file):
    # The same on every backend, machine and version of numpy.
    assert numbers(load_mnist(file)[1], arrays) == [2, 4, 8, 10, 16, 20, 27, 34, 42, 51, 52, 57]


def test_path_may_be_a_file_or_its_folder_in_any_form(arrays, file):
    expected = load_mnist(file)
    for path in (file.parent, str(file), str(file.parent)):
        assert_same(load_mnist(path), expected)


def test_a_repacked_file_of_another_name_passes(arrays, file, tmp_path):
    other = tmp_path / "digits"
    with open(other, "wb") as stream:
        in_another_order = dict(reversed(arrays.items()))
        np.savez_compressed(
            stream, **in_another_order | {"x_test": np.asfortranarray(arrays["x_test"])}
        )
    assert_same(load_mnist(other), load_mnist(file))


def test_the_environment_variable(arrays, file, monkeypatch):
    expected = load_mnist(file)
    for value in (file, file.parent):
        monkeypatch.setenv("KERAS_COFFEE_DATA", str(value))
        assert_same(load_mnist(), expected)


def test_path_wins_over_the_environment_variable(arrays, file, monkeypatch):
    monkeypatch.setenv("KERAS_COFFEE_DATA", "/nowhere")
    load_mnist(file)


@pytest.mark.parametrize("variable", [None, ""])
def test_otherwise_keras_downloads(arrays, file, monkeypatch, variable):
    calls = []

    def load_data():
        calls.append(None)
        return (
            (arrays["x_train"], arrays["y_train"]),
            (arrays["x_test"], arrays["y_test"]),
        )

    monkeypatch.setattr(keras.datasets.mnist, "load_data", load_data)
    expected = load_mnist(file)
    assert not calls
    if variable is not None:
        monkeypatch.setenv("KERAS_COFFEE_DATA", variable)
    assert_same(load_mnist(), expected)
    assert len(calls) == 1


REMEDIES = r"Pass path=.*KERAS_COFFEE_DATA.*~/\.keras/datasets/mnist\.npz"


def test_no_internet(arrays, no_download):
    message = rf"URL fetch failure on https://example\.org.*{REMEDIES}"
    with pytest.raises(OSError, match=message) as raised:
        load_mnist()
    assert type(raised.value.__cause__) is Exception


def test_members_that_are_no_arrays(arrays, tmp_path, no_download):
    with zipfile.ZipFile(tmp_path / "mnist.npz", "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(name, b"hello")
    with pytest.raises(ValueError, match=rf"x_train must be uint8 .*{REMEDIES}"):
        load_mnist(tmp_path)


def test_missing_file(arrays, tmp_path, no_download):
    with pytest.raises(FileNotFoundError, match=rf"path is .*no .*gone\.npz\. {REMEDIES}"):
        load_mnist(tmp_path / "gone.npz")


def test_folder_without_the_file(arrays, tmp_path, no_download):
    with pytest.raises(FileNotFoundError, match=rf"path is .*no .*mnist\.npz\. {REMEDIES}"):
        load_mnist(tmp_path)


def test_environment_variable_that_leads_nowhere(arrays, tmp_path, monkeypatch, no_download):
    monkeypatch.setenv("KERAS_COFFEE_DATA", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=rf"variable KERAS_COFFEE_DATA is .*{REMEDIES}"):
        load_mnist()


@pytest.mark.parametrize("content", [b"", b"not an archive", "array", "cut"])
def test_not_an_npz(arrays, file, content):
    if content == "array":
        with open(file, "wb") as stream:
            np.save(stream, arrays["x_test"])
    else:
        file.write_bytes(file.read_bytes()[:-30] if content == "cut" else content)
    with pytest.raises(ValueError, match=rf"mnist\.npz is not an \.npz file.*{REMEDIES}"):
        load_mnist(file)


def test_damaged_file(arrays, file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"mnist\.npz cannot be read: .*CRC.*{REMEDIES}"):
        load_mnist(file)


def test_objects_are_not_unpickled(arrays, file):
    np.savez(file, **arrays | {"y_test": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match=rf"cannot be read: Object arrays.*{REMEDIES}"):
        load_mnist(file)


def test_missing_arrays(arrays, file):
    np.savez(file, x_train=arrays["x_train"], images=arrays["x_test"])
    message = rf"holds images, x_train, without y_train, x_test, y_test\. {REMEDIES}"
    with pytest.raises(ValueError, match=message):
        load_mnist(file)


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_wrong_contents(arrays, file, name):
    wrong = arrays[name].copy()
    wrong.flat[-1] ^= 1
    np.savez(file, **arrays | {name: wrong})
    message = rf"{name} in .*mnist\.npz is not that of MNIST: its SHA-256 is .*{REMEDIES}"
    with pytest.raises(ValueError, match=message):
        load_mnist(file)


def test_wrong_shape(arrays, file):
    np.savez(file, **arrays | {"x_test": arrays["x_test"].reshape(TEST, 784)})
    message = rf"uint8 of shape \(10, 28, 28\); in .* uint8 of shape \(10, 784\)\. {REMEDIES}"
    with pytest.raises(ValueError, match=message):
        load_mnist(file)


def test_wrong_dtype(arrays, file):
    np.savez(file, **arrays | {"y_train": arrays["y_train"].astype(np.int64)})
    with pytest.raises(ValueError, match=r"uint8 of shape \(60,\); in .* int64 of shape \(60,\)"):
        load_mnist(file)


@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), (0.5, TypeError), (True, TypeError)])
def test_seed_is_a_natural_number(arrays, file, seed, error):
    with pytest.raises(error, match="seed must be"):
        load_mnist(file, seed)


@pytest.mark.skipif(
    not os.environ.get("KERAS_COFFEE_DATA"),
    reason="needs MNIST itself: set KERAS_COFFEE_DATA to mnist.npz",
)
def test_the_digits_themselves():
    train, validation, test = load_mnist()
    assert [len(labels) for _, labels in (train, validation, test)] == [50_000, 10_000, 10_000]
    labels = np.concatenate([train[1], validation[1]])
    assert (labels == 0).sum() == 5923 and (test[1] == 0).sum() == 980
    assert test[1][:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    mean = np.concatenate([train[0], validation[0]]).mean()
    assert mean == pytest.approx(33.3184, abs=1e-4)
