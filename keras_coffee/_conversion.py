"""Who a model is traced for, where the framework does not say."""

import traceback

# Modules that a conversion to ONNX runs through: Keras' own, and the converters it calls.
_CONVERTERS = ("keras.src.export.onnx", "tf2onnx.convert", "jax2onnx.user_interface")


def is_onnx_converter_calling() -> bool:
    """Whether one of the callers is a conversion to ONNX; there is no public way to ask."""
    callers = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_stack(None))
    return any(name in _CONVERTERS for name in callers)
