"""The one switch between frameworks: what the backend that Keras runs on supplies.

A backend supplies the functions that `numpy.py` defines, under the same names and arguments.
"""

import importlib
import os
import sys
import warnings

try:
    import keras
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    if missing not in ("jax", "tensorflow", "torch"):
        raise
    raise ImportError(
        f"Keras runs on {missing}, which is not installed. Set KERAS_BACKEND to 'jax', "
        "'tensorflow' or 'torch', whichever you have, before keras is imported: as in "
        "`KERAS_BACKEND=jax python ...`, or os.environ['KERAS_BACKEND'] = 'jax' in the first line."
    ) from error


def _level_of_user() -> int:
    """How many frames above the caller the import of the package stands."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals["__name__"].startswith(("keras_coffee", "importlib")):
        # `warnings` itself passes over frames of importlib.
        level += not frame.f_globals["__name__"].startswith("importlib")
        frame = frame.f_back
    return level


if keras.config.backend() not in ("jax", "tensorflow", "torch", "numpy"):
    raise ImportError(
        f"keras_coffee does not support the Keras backend {keras.config.backend()!r}. Set "
        "KERAS_BACKEND to 'jax', 'tensorflow' or 'torch' ('numpy' for inference) before importing "
        "keras."
    )

if os.environ.get("KERAS_BACKEND") not in (None, "", keras.config.backend()):
    warnings.warn(
        f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}, but Keras runs on "
        f"{keras.config.backend()!r}: it was imported before the variable was set. Set it first.",
        stacklevel=_level_of_user(),
    )

framework = importlib.import_module(f"keras_coffee.backend.{keras.config.backend()}")

# Recurrences in one fused pass over time, with their gradients.
implementation = framework.implementation
linear_scan = framework.linear_scan

# What solvers are built from.
associative_scan = framework.associative_scan
compiled = framework.compiled
complex_of = framework.complex_of
exponent = framework.exponent
implicit_states = framework.implicit_states
power_of_two = framework.power_of_two
scan = framework.scan
where = framework.where
without_gradient = framework.without_gradient

# Where and for what a computation runs.
can_iterate = framework.can_iterate
device_kind = framework.device_kind
is_converted_to_onnx = framework.is_converted_to_onnx
may_be_differentiated = framework.may_be_differentiated
