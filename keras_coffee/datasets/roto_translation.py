"""Images turned and moved by any angle and any fraction of a pixel, many at once."""

import numpy as np

# Images are worked on together in blocks of about so many pixels, whose arrays stay in the cache.
_BLOCK = 16_000


def roto_translate(
    images: np.ndarray, angles: np.ndarray, right: np.ndarray, down: np.ndarray
) -> np.ndarray:
    """Turns each image about its center, then moves it: bilinear, with zeros outside.

    The output's pixel at (row i, column j) shows the input at

        row    cos(a) (i - i₀ - down) - sin(a) (j - j₀ - right) + i₀
        column sin(a) (i - i₀ - down) + cos(a) (j - j₀ - right) + j₀

    where (i₀, j₀) is the center of the image and a its angle, clockwise.

    Args:
        images: Real array `(B, H, W)`.
        angles: In radians, `(B,)`.
        right: In pixels, `(B,)`.
        down: In pixels, `(B,)`.

    Returns:
        Float32 array `(B, H, W)`.
    """
    count, height, width = images.shape
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    rows = np.arange(height) - (height - 1) / 2 - down[:, None]
    columns = np.arange(width) - (width - 1) / 2 - right[:, None]
    # Positions in the image with its frame, each a term of the row and one of the column.
    y = cosine * rows + (height + 1) / 2, -sine * columns
    x = sine * rows, cosine * columns + (width + 1) / 2
    results = np.empty(images.shape, np.float32)
    size = max(1, _BLOCK // (height * width))
    for start in range(0, count, size):
        block = slice(start, start + size)
        results[block] = _interpolate(images[block], _outer_sum(*y, block), _outer_sum(*x, block))
    return results


def _outer_sum(by_row: np.ndarray, by_column: np.ndarray, block: slice) -> np.ndarray:
    by_row, by_column = by_row[block].astype(np.float32), by_column[block].astype(np.float32)
    return by_row[:, :, None] + by_column[:, None, :]


def _interpolate(images: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values between the pixels, at positions that count the frame; overwrites them."""
    count, height, width = images.shape
    # What lies outside moves into this frame of zeros, which needs no mask. It is wider below and
    # on the right, because a position on its first line there still asks for the next.
    stride = width + 3
    framed = np.zeros((count, height + 3, stride), np.float32)
    framed[:, 1:-2, 1:-2] = images
    np.clip(y, 0, height + 1, out=y)
    np.clip(x, 0, width + 1, out=x)
    top, left = np.floor(y), np.floor(x)
    y -= top
    x -= left
    # Short integers until the last step, because they are faster.
    places = top.astype(np.int32)
    places *= stride
    places += left.astype(np.int32)
    places += np.arange(count, dtype=np.int32)[:, None, None] * framed[0].size
    places = places.astype(np.intp)
    pixels = framed.reshape(-1)
    above = _between(pixels, places, x)
    below = _between(pixels[stride:], places, x)
    below -= above
    below *= y
    below += above
    return below


def _between(pixels: np.ndarray, places: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """Values at a fraction of the way from the pixels at these places to their right neighbours."""
    # All places are valid; any other mode would check them first.
    start = pixels.take(places, mode="clip")
    between = pixels[1:].take(places, mode="clip")
    between -= start
    between *= fraction
    between += start
    return between
