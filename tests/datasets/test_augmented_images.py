import math
import pickle

import keras
import numpy as np
import pytest

from keras_coffee.datasets import AugmentedImages


def ramps(count, height, width):
    """Images whose pixels are the numbers of their columns, and such of their rows."""
    columns = np.tile(np.arange(width, dtype=np.float32), (count, height, 1))
    rows = np.tile(np.arange(height, dtype=np.float32)[:, None], (count, 1, width))
    return columns, rows


def assert_uniform(values, bound):
    """By the largest distance of the distribution functions, at a level of 1e-6."""
    assert np.abs(values).max() <= bound * (1 + 1e-4)
    order = np.sort(values) / bound / 2 + 0.5
    distance = np.abs(order - (np.arange(len(order)) + 0.5) / len(order)).max()
    assert distance < 2.7 / math.sqrt(len(order))


COUNT = 20_000


def first_batch(images, **settings):
    return AugmentedImages(images, np.arange(len(images)), batch_size=len(images), **settings)[0][0]


def test_shifts_are_uniform_fractions_of_width_and_height():
    columns, rows = ramps(COUNT, 5, 9)
    settings = dict(rotation=0, translation=0.1)
    right = 4 - first_batch(columns, **settings)[:, 2, 4]
    down = 2 - first_batch(rows, **settings)[:, 2, 4]
    assert_uniform(right, 0.9)
    assert_uniform(down, 0.5)
    assert abs(np.corrcoef(right, down)[0, 1]) < 5 / math.sqrt(COUNT)


def test_angles_are_uniform_and_independent_of_shifts():
    columns, _ = ramps(COUNT, 5, 9)
    moved = first_batch(columns, rotation=20, translation=0.05)
    angles = np.rad2deg(np.arcsin(moved[:, 3, 4] - moved[:, 2, 4]))
    assert_uniform(angles, 20)
    assert abs(np.corrcoef(angles, moved[:, 2, 4])[0, 1]) < 5 / math.sqrt(COUNT)


IMAGES = np.random.default_rng(0).integers(0, 256, (11, 6, 5), np.uint8)
LABELS = np.arange(11)


def build(**settings):
    return AugmentedImages(IMAGES, LABELS, **{"batch_size": 4, **settings})


def batches(dataset, epoch):
    dataset.epoch = epoch
    images, labels = zip(*dataset, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def test_each_epoch_has_each_image_once_with_its_label():
    dataset, orders = build(rotation=0, translation=0), set()
    assert len(dataset) == 3
    assert [len(labels) for _, labels in dataset] == [4, 4, 3]
    for epoch in range(4):
        images, labels = batches(dataset, epoch)
        assert sorted(labels) == list(LABELS)
        orders.add(tuple(labels))
        assert images.dtype == np.float32 and labels.dtype == LABELS.dtype
        np.testing.assert_array_equal(images, IMAGES[labels])
    assert len(orders) == 4


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float32", "float64"])
def test_without_motion_images_of_any_dtype_stay_as_they_are(dtype):
    images = (IMAGES - 128.0).astype(dtype)
    found, labels = AugmentedImages(images, LABELS, rotation=0, translation=0)[0]
    np.testing.assert_array_equal(found, images[labels].astype("float32"))


def test_a_batch_depends_on_seed_epoch_and_index_alone():
    dataset = build(seed=5)
    first = batches(dataset, 0)
    other_epoch, other_seed = batches(dataset, 1), batches(build(seed=6), 0)
    for found, expected in zip(batches(build(seed=5), 0), first, strict=True):
        np.testing.assert_array_equal(found, expected)
    dataset.epoch = 0
    np.testing.assert_array_equal(dataset[np.int64(2)][0], first[0][8:])
    np.testing.assert_array_equal(dataset[1][0], first[0][4:8])
    seen = [image.tobytes() for images, _ in (first, other_epoch, other_seed) for image in images]
    assert len(set(seen)) == len(seen)
    dataset.on_epoch_end()
    np.testing.assert_array_equal(batches(dataset, dataset.epoch)[0], other_epoch[0])


def test_pinned_batch():
    # The same on every backend.
    images, labels = build(batch_size=3, rotation=30, translation=0.2)[1]
    assert labels.tolist() == [1, 9, 7]
    np.testing.assert_allclose(images[:, 2, 2], [97.6446, 104.9480, 150.6021], atol=1e-3)


class RecordLosses(keras.callbacks.Callback):
    """The running mean of the loss after each batch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def whole_batches(**settings):
    # Of one size, for which TensorFlow compiles once.
    return AugmentedImages(IMAGES[:8], LABELS[:8], batch_size=4, **settings)


def tiny_model():
    model = keras.Sequential(
        [
            keras.Input((6, 5)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            # Of random weights some see no difference between two batches.
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    # A learning rate of 0 makes each loss a fingerprint of its batch.
    model.compile(keras.optimizers.SGD(0.0), loss="mean_squared_error")
    return model


def test_fit_sees_new_batches_each_epoch():
    dataset, model, record = whole_batches(), tiny_model(), RecordLosses()
    model.fit(dataset, epochs=2, shuffle=False, verbose=0, callbacks=[record])
    assert dataset.epoch == 3
    expected = []
    for dataset.epoch in (1, 2):
        losses = [float(model.test_on_batch(*batch)) for batch in dataset]
        expected.extend(np.cumsum(losses) / np.arange(1, len(losses) + 1))
    np.testing.assert_allclose(record.losses, expected, rtol=1e-5)
    assert abs(expected[1] - expected[3]) > 1e-3


def test_several_workers():
    dataset, record = whole_batches(workers=2, max_queue_size=2), RecordLosses()
    assert (dataset.workers, dataset.max_queue_size, dataset.use_multiprocessing) == (2, 2, False)
    tiny_model().fit(dataset, epochs=2, verbose=0, callbacks=[record])
    assert len(record.losses) == 4 and np.isfinite(record.losses).all()


def test_pickled_for_processes_it_gives_the_same_batches():
    dataset = build()
    dataset.on_epoch_end()
    copy = pickle.loads(pickle.dumps(dataset))
    for found, expected in zip(copy[1], dataset[1], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_data_is_not_copied():
    dataset = build()
    assert dataset.images is IMAGES and dataset.labels is LABELS


@pytest.mark.parametrize("index", [-1, 3])
def test_index_out_of_range(index):
    with pytest.raises(IndexError, match=rf"batches 0 to 2; received index {index}"):
        build()[index]


@pytest.mark.parametrize(
    ("images", "labels", "error", "message"),
    [
        (np.zeros((3, 4)), LABELS[:3], ValueError, r"\(number, height, width\).*\(3, 4\)"),
        (np.zeros((3, 4, 4, 1)), LABELS[:3], ValueError, r"\(3, 4, 4, 1\).*layers.Reshape"),
        (np.zeros((0, 4, 4)), LABELS[:0], ValueError, r"\(0, 4, 4\)"),
        (np.zeros((3, 4, 0)), LABELS[:3], ValueError, r"\(3, 4, 0\)"),
        (np.zeros((3, 4, 4)), LABELS[:2], ValueError, r"3 images and labels of shape \(2,\)"),
        (np.zeros((3, 4, 4)), 1, ValueError, r"3 images and labels of shape \(\)"),
        (np.zeros((3, 4, 4), complex), LABELS[:3], TypeError, "real numbers.*complex128"),
        (np.full((3, 4, 4), "a"), LABELS[:3], TypeError, "real numbers.*<U1"),
    ],
)
def test_impossible_data(images, labels, error, message):
    with pytest.raises(error, match=message):
        AugmentedImages(images, labels)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, received 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer, received 2.0"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"seed": None}, TypeError, "seed must be an integer"),
        ({"rotation": -5}, ValueError, "rotation must be finite and at least 0, received -5"),
        ({"rotation": math.inf}, ValueError, "rotation must be finite"),
        ({"rotation": (-5, 5)}, TypeError, r"rotation must be a number, received \(-5, 5\)"),
        ({"translation": math.nan}, ValueError, "translation must be finite"),
        ({"translation": "0.01"}, TypeError, "translation must be a number, received '0.01'"),
        ({"translation": True}, TypeError, "translation must be a number, received True"),
    ],
)
def test_impossible_settings(settings, error, message):
    with pytest.raises(error, match=message):
        build(**settings)


def test_without_shuffling_images_and_labels_stay_in_order():
    images, labels = np.arange(7 * 4 * 4).reshape(7, 4, 4), np.arange(7)
    dataset = AugmentedImages(images, labels, 3, rotation=0, translation=0, shuffle=False)
    for epoch in range(2):
        dataset.epoch = epoch
        batches = [dataset[index] for index in range(len(dataset))]
        np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), images)
        np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), labels)


def test_nearest_pixels_are_pixels_of_the_image():
    images = np.random.default_rng(0).integers(100, 103, (4, 9, 9))
    (bilinear, _), (nearest, _) = (
        AugmentedImages(images, np.arange(4), rotation=40, interpolation=name)[0]
        for name in ("bilinear", "nearest")
    )
    assert set(np.unique(nearest)) == {0, 100, 101, 102}
    assert len(np.unique(bilinear)) > 100


def test_an_unknown_interpolation_is_refused():
    message = r"`interpolation` must be one of \('bilinear', 'nearest'\), received 'cubic'"
    with pytest.raises(ValueError, match=message):
        AugmentedImages(np.zeros((1, 2, 2)), [0], interpolation="cubic")


def test_without_motion_a_pixel_that_is_no_number_stays_where_it_is():
    images = np.zeros((1, 4, 4))
    images[0, 1, 2], images[0, 3, 0] = np.nan, np.inf
    moved, _ = AugmentedImages(images, [0], rotation=0, translation=0)[0]
    np.testing.assert_array_equal(moved, images)
