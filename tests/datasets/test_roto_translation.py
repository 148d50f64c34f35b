import math

import numpy as np
import pytest
from nightly import once

from keras_coffee.datasets.roto_translation import roto_translate

pytestmark = once


def expected_pixel(image, row, column):
    """Bilinear between the four pixels around a position, which are zero outside."""
    top, left = math.floor(row), math.floor(column)
    value = 0.0
    for i in (top, top + 1):
        for j in (left, left + 1):
            if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                value += image[i, j] * (1 - abs(row - i)) * (1 - abs(column - j))
    return value


def nearest_pixel(image, row, column):
    i, j = math.floor(row + 0.5), math.floor(column + 0.5)
    inside = 0 <= i < image.shape[0] and 0 <= j < image.shape[1]
    return image[i, j] if inside else 0.0


def expected_image(image, angle, right, down, expected_pixel=expected_pixel):
    """Pixel by pixel in float64."""
    height, width = image.shape
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    result = np.empty(image.shape)
    for i in range(height):
        for j in range(width):
            y, x = i - middle_row - down, j - middle_column - right
            row = math.cos(angle) * y - math.sin(angle) * x + middle_row
            column = math.sin(angle) * y + math.cos(angle) * x + middle_column
            result[i, j] = expected_pixel(image.astype(np.float64), row, column)
    return result


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def assert_as_expected(images, angles, right, down):
    found = roto_translate(images, *(np.asarray(x, float) for x in (angles, right, down)))
    assert found.dtype == np.float32
    motions = zip(images, angles, right, down, strict=True)
    expected = np.stack([expected_image(*motion) for motion in motions])
    # Positions in float32, times a slope of up to 255 a pixel in both directions.
    np.testing.assert_allclose(found, expected, atol=2e-3, rtol=0)
    return found


@pytest.mark.parametrize(
    ("height", "width"), [(28, 28), (25, 14), (5, 12), (1, 9), (9, 1), (1, 1), (2, 2)]
)
def test_any_motion_of_any_shape(height, width):
    generator, count = np.random.default_rng(1), 24
    angles = generator.uniform(-7, 7, count)
    # From nothing to far outside.
    scales = np.resize([0, 0.01, 0.3, 1, 4], count)
    right, down = scales * width * generator.uniform(-1, 1, (2, count))
    assert_as_expected(random_images(count, height, width), angles, right, down)


@pytest.mark.parametrize(("height", "width"), [(28, 28), (5, 12), (1, 9)])
def test_nearest_pixels(height, width):
    generator, count = np.random.default_rng(3), 8
    images = random_images(count, height, width)
    scales = np.resize([0, 0.3, 1, 4], count)
    # No position is half-way between two pixels, up to rounding.
    motions = generator.uniform(-7, 7, count), *(scales * generator.uniform(-9, 9, (2, count)))
    found = roto_translate(images, *motions, "nearest")
    expected = [
        expected_image(*motion, nearest_pixel) for motion in zip(images, *motions, strict=True)
    ]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_small_angles_as_in_the_paper():
    generator = np.random.default_rng(2)
    angles = np.deg2rad(generator.uniform(-5, 5, 8))
    right, down = generator.uniform(-0.28, 0.28, (2, 8))
    assert_as_expected(random_images(8, 28, 28), angles, right, down)


@pytest.mark.parametrize("size", [7, 8])
def test_quarter_turns_are_exact(size):
    images, none = random_images(5, size, size), np.zeros(5)
    for quarters in range(-4, 5):
        found = roto_translate(images, np.full(5, quarters * np.pi / 2), none, none)
        # rot90 turns counterclockwise.
        np.testing.assert_array_equal(found, np.rot90(images, -quarters, axes=(1, 2)))


def test_whole_pixels_are_exact():
    images, none = random_images(1, 6, 9), np.zeros(1)
    found = roto_translate(images, none, np.array([2.0]), np.array([-1.0]))[0]
    np.testing.assert_array_equal(found[:-1, 2:], images[0, 1:, :-2])
    assert not found[-1].any() and not found[:, :2].any()


def test_halfway_to_the_outside_is_half():
    image, none = np.full((1, 3, 4), 200, np.uint8), np.zeros(1)
    found = roto_translate(image, none, np.array([0.5]), none)[0]
    np.testing.assert_array_equal(found, np.tile([100, 200, 200, 200], (3, 1)))


@pytest.mark.parametrize("distance", [29.0, 1e4, 1e9])
def test_what_moves_out_of_the_frame_leaves_zeros(distance):
    images = np.full((4, 28, 28), 255, np.uint8)
    right, down = distance * np.array([[1, -1, 0, 0], [0, 0, 1, -1]])
    assert not roto_translate(images, np.zeros(4), right, down).any()


def test_images_of_many_blocks_and_images_larger_than_a_block():
    small = random_images(701, 5, 6)
    motion = np.random.default_rng(3).uniform(-1, 1, (3, 701))
    found = roto_translate(small, *motion)
    for index in (0, 350, 532, 533, 534, 700):
        alone = roto_translate(small[[index]], *motion[:, [index]])
        np.testing.assert_array_equal(found[[index]], alone)
    large, none = random_images(2, 500, 501), np.zeros(2)
    np.testing.assert_array_equal(roto_translate(large, none, none, none), large)
