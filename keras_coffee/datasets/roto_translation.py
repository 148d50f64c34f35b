"""Many images rotated by any angle and shifted by any fraction of a pixel."""

import numpy as np

# Images are processed in blocks of about so many pixels, whose arrays stay in the cache.
_BLOCK = 16_000


def roto_translate(
    images: np.ndarray,
    angles: np.ndarray,
    right: np.ndarray,
    down: np.ndarray,
    interpolation: str = "bilinear",
) -> np.ndarray:
    """Rotates each image about its center, then shifts it, with zeros outside.

    The output's pixel at (row i, column j) shows the input at

        row    cos(a) (i - i₀ - down) - sin(a) (j - j₀ - right) + i₀
        column sin(a) (i - i₀ - down) + cos(a) (j - j₀ - right) + j₀

    where (i₀, j₀) is the center of the image and a its angle, clockwise.

    Args:
        images: Real array `(B, H, W)`.
        angles: In radians, `(B,)`.
        right: In pixels, `(B,)`.
        down: In pixels, `(B,)`.
        interpolation: One of `INTERPOLATIONS`.

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
    interpolate = INTERPOLATIONS[interpolation]
    results = np.empty(images.shape, np.float32)
    size = max(1, _BLOCK // (height * width))
    for start in range(0, count, size):
        block = slice(start, start + size)
        results[block] = interpolate(images[block], _outer_sum(*y, block), _outer_sum(*x, block))
    return results


def _outer_sum(by_row: np.ndarray, by_column: np.ndarray, block: slice) -> np.ndarray:
    by_row, by_column = by_row[block].astype(np.float32), by_column[block].astype(np.float32)
    return by_row[:, :, None] + by_column[:, None, :]


def _bilinear(images: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values between the pixels, at positions that count the frame; overwrites them."""
    framed = _framed(images, y, x)
    top, left = np.floor(y), np.floor(x)
    y -= top
    x -= left
    places = _places(framed, top, left)
    pixels = framed.reshape(-1)
    above = _between(pixels, places, x)
    below = _between(pixels[framed.shape[2] :], places, x)
    below -= above
    below *= y
    below += above
    return below


def _nearest(images: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The pixels nearest to positions that count the frame; half-way, the lower or right one."""
    framed = _framed(images, y, x)
    places = _places(framed, np.floor(y + np.float32(0.5)), np.floor(x + np.float32(0.5)))
    return framed.reshape(-1).take(places, mode="clip")


INTERPOLATIONS = {"bilinear": _bilinear, "nearest": _nearest}


def _framed(images: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The images in a frame of zeros, to which outside positions are moved: no mask is needed.

    It is wider below and on the right, because a position on its first line there still asks for
    the next.
    """
    count, height, width = images.shape
    framed = np.zeros((count, height + 3, width + 3), np.float32)
    framed[:, 1:-2, 1:-2] = images
    np.clip(y, 0, height + 1, out=y)
    np.clip(x, 0, width + 1, out=x)
    return framed


def _places(framed: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Where pixels are in the framed images as one row."""
    # Short integers until the last step, because they are faster.
    places = rows.astype(np.int32)
    places *= framed.shape[2]
    places += columns.astype(np.int32)
    places += np.arange(len(framed), dtype=np.int32)[:, None, None] * framed[0].size
    return places.astype(np.intp)


def _between(pixels: np.ndarray, places: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """Values at a fraction of the way from the pixels at these places to their right neighbours."""
    # All places are valid; any other mode would check them first.
    start = pixels.take(places, mode="clip")
    between = pixels[1:].take(places, mode="clip")
    between -= start
    between *= fraction
    between += start
    return between
