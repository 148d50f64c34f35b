"""The one switch between frameworks: the scans of the backend that Keras runs on.

A backend supplies the functions that `numpy.py` defines, under the same names and arguments.
"""

import keras

match keras.config.backend():
    case "jax":
        from keras_coffee.backend.jax import (
            coffee_scan,
            is_converted_to_onnx,
            linear_scan,
            selective_scan,
        )
    case "tensorflow":
        from keras_coffee.backend.tensorflow import (
            coffee_scan,
            is_converted_to_onnx,
            linear_scan,
            selective_scan,
        )
    case "torch":
        from keras_coffee.backend.torch import (
            coffee_scan,
            is_converted_to_onnx,
            linear_scan,
            selective_scan,
        )
    case "numpy":
        from keras_coffee.backend.numpy import (
            coffee_scan,
            is_converted_to_onnx,
            linear_scan,
            selective_scan,
        )
    case other:
        raise ImportError(
            f"keras_coffee does not support the Keras backend {other!r}. Set KERAS_BACKEND to "
            "'jax', 'tensorflow' or 'torch' ('numpy' for inference) before importing keras."
        )

__all__ = ["coffee_scan", "is_converted_to_onnx", "linear_scan", "selective_scan"]
