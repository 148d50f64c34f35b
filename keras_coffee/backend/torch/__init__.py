"""What PyTorch supplies: fused scans, and the primitives that solvers are built from."""

from keras_coffee.backend.torch.export import is_converted_to_onnx as is_converted_to_onnx
from keras_coffee.backend.torch.fused import implementation as implementation
from keras_coffee.backend.torch.fused import linear_scan as linear_scan
from keras_coffee.backend.torch.primitives import associative_scan as associative_scan
from keras_coffee.backend.torch.primitives import can_iterate as can_iterate
from keras_coffee.backend.torch.primitives import compiled as compiled
from keras_coffee.backend.torch.primitives import complex_of as complex_of
from keras_coffee.backend.torch.primitives import device_kind as device_kind
from keras_coffee.backend.torch.primitives import exponent as exponent
from keras_coffee.backend.torch.primitives import implicit_states as implicit_states
from keras_coffee.backend.torch.primitives import may_be_differentiated as may_be_differentiated
from keras_coffee.backend.torch.primitives import power_of_two as power_of_two
from keras_coffee.backend.torch.primitives import scan as scan
from keras_coffee.backend.torch.primitives import where as where
from keras_coffee.backend.torch.primitives import without_gradient as without_gradient
