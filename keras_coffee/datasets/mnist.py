"""The MNIST handwritten digits, in the paper's three parts."""

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_coffee.datasets.arguments import integer
from keras_coffee.datasets.generators import generator_of

Part = tuple[np.ndarray, np.ndarray]

_VARIABLE = "KERAS_COFFEE_DATA"
_VALIDATION_SIZE = 10_000
# Of the arrays, so that a repacked file passes as well. Shapes of uint8 arrays, and SHA-256 of
# their elements in C order.
_CONTENTS = {
    "x_train": (
        (60_000, 28, 28),
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    ),
    "y_train": ((60_000,), "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"),
    "x_test": (
        (10_000, 28, 28),
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    ),
    "y_test": ((10_000,), "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"),
}
_REMEDIES = (
    "Pass path=, the file mnist.npz or its folder; or set the environment variable "
    f"{_VARIABLE} to it; or leave both out on a machine with internet, where Keras downloads it to "
    "~/.keras/datasets/mnist.npz, or put a copy of that file there."
)


def load_mnist(path: str | os.PathLike | None = None, seed: int = 0) -> tuple[Part, Part, Part]:
    """Loads MNIST: images of handwritten digits for training, validation and testing.

    The validation images are 10,000 of the 60,000 training images, drawn at random; both parts
    keep their order. The test images are the original ones in their order. The contents of all
    arrays are verified by their SHA-256.

    They come from `path` if it is given, else from where the environment variable
    `KERAS_COFFEE_DATA` points, else from `keras.datasets.mnist.load_data()`, which downloads them
    once and keeps them in `~/.keras/datasets/mnist.npz`.

    Args:
        path: An `.npz` file that holds `x_train`, `y_train`, `x_test` and `y_test`, or a folder
            with such a file `mnist.npz`. `KERAS_COFFEE_DATA` may be either as well.
        seed: Non-negative integer, from which the validation images are drawn. Defaults to 0.

    Returns:
        Three pairs `(images, labels)`: 50,000 for training, 10,000 for validation and 10,000 for
        testing. Images are uint8 arrays `(number, 28, 28)` from 0 (background) to 255, labels
        int32 arrays `(number,)` from 0 to 9.

    Raises:
        FileNotFoundError: If there is no file at `path` or `KERAS_COFFEE_DATA`.
        OSError: If Keras neither has MNIST in its cache nor can download it.
        TypeError: If `seed` is not an integer.
        ValueError: If the file is not an `.npz` file, is damaged, lacks one of the arrays, or holds
            something else than MNIST; or if `seed` is negative.

    Example:
        ```python
        train, validation, test = load_mnist()
        model.fit(AugmentedImages(*train), validation_data=validation, epochs=100, shuffle=False)
        model.evaluate(*test)
        ```

    Reference:
        LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document
        Recognition", 1998. The sizes of the parts are those of "Context-Selective State Space
        Models: Feedback is All You Need", appendix "MNIST Architecture and Results".
    """
    seed = integer("seed", seed, 0)
    source = path if path is not None else os.environ.get(_VARIABLE) or None
    arrays = (
        _download() if source is None else _read(_file(Path(source).expanduser(), path is not None))
    )
    for name, expected in _CONTENTS.items():
        _check_contents(name, arrays[name], *expected, source)
    images, labels = arrays["x_train"], arrays["y_train"].astype(np.int32)
    held_out = np.zeros(len(labels), bool)
    held_out[generator_of(seed).permutation(len(labels))[:_VALIDATION_SIZE]] = True
    return (
        (images[~held_out], labels[~held_out]),
        (images[held_out], labels[held_out]),
        (arrays["x_test"], arrays["y_test"].astype(np.int32)),
    )


def _file(source: Path, given: bool) -> Path:
    file = source / "mnist.npz" if source.is_dir() else source
    if not file.is_file():
        name = "path" if given else f"The environment variable {_VARIABLE}"
        raise FileNotFoundError(f"{name} is {str(source)!r}, but there is no {file}. {_REMEDIES}")
    return file


def _read(file: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(file):
        raise ValueError(
            f"{file} is not an .npz file: it is no ZIP archive, or cut off. {_REMEDIES}"
        )
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
            found = sorted(content)
            arrays = {name: np.asarray(content[name]) for name in _CONTENTS if name in found}
    # A damaged archive may raise almost any exception.
    except Exception as error:
        raise ValueError(f"{file} cannot be read: {error}. {_REMEDIES}") from error
    missing = [name for name in _CONTENTS if name not in arrays]
    if missing:
        raise ValueError(
            f"{file} must hold the arrays {', '.join(_CONTENTS)}; it holds {', '.join(found)}, "
            f"without {', '.join(missing)}. {_REMEDIES}"
        )
    return arrays


def _download() -> dict[str, np.ndarray]:
    try:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    # Keras raises Exception itself when there is no internet.
    except Exception as error:
        raise OSError(f"Keras could not provide MNIST: {error}. {_REMEDIES}") from error
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def _check_contents(
    name: str, array: np.ndarray, shape: tuple[int, ...], digest: str, source: Any
) -> None:
    where = "Keras' copy of MNIST" if source is None else str(source)
    if array.dtype != np.uint8 or array.shape != shape:
        raise ValueError(
            f"{name} must be uint8 of shape {shape}; in {where} it is {array.dtype} of shape "
            f"{array.shape}. {_REMEDIES}"
        )
    found = hashlib.sha256(array.tobytes()).hexdigest()
    if found != digest:
        raise ValueError(
            f"{name} in {where} is not that of MNIST: its SHA-256 is {found}, expected {digest}. "
            f"{_REMEDIES}"
        )
