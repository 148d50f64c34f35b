"""For whom a model is traced, if the framework does not tell."""

import traceback
from collections.abc import Iterator

# Modules that a conversion to ONNX runs through: Keras' own, and the converters it calls.
_CONVERTERS = ("keras.src.export.onnx", "tf2onnx.convert", "jax2onnx.user_interface")


# Modules that write files for machines without this package, by the beginnings of their names.
_EXPORTERS = (
    *_CONVERTERS,
    "keras.src.export.",
    "tensorflow.python.saved_model.save",
    "tensorflow.lite.python.",
)


def is_onnx_converter_calling() -> bool:
    """Whether a caller converts to ONNX; there is no public way to ask."""
    return any(name in _CONVERTERS for name in _callers())


def is_exporter_calling() -> bool:
    """Whether one of the callers exports a model, to ONNX or to another format."""
    return any(name.startswith(_EXPORTERS) for name in _callers())


def _callers() -> Iterator[str]:
    return (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(None))
