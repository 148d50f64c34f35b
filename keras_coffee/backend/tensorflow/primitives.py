"""What solvers are built from, for TensorFlow. `numpy.py` says what each function does."""

import tensorflow as tf

from keras_coffee.backend.conversion import is_onnx_converter_calling
from keras_coffee.backend.tensorflow.gradients import differentiable_once


def associative_scan(combine, elements, *, reverse=False):
    if reverse:
        flipped = associative_scan(combine, [tf.reverse(x, [1]) for x in elements])
        return [tf.reverse(x, [1]) for x in flipped]
    length = elements[0].shape[1]
    if length is None:
        return _by_loop(combine, elements)
    distance = 1
    while distance < length:
        earlier = [x[:, :-distance] for x in elements]
        later = [x[:, distance:] for x in elements]
        pairs = zip(elements, combine(earlier, later), strict=True)
        elements = [tf.concat([x[:, :distance], new], 1) for x, new in pairs]
        distance *= 2
    return elements


def _by_loop(combine, elements):
    """The same for any length: combines all elements at distance 1, 2, 4 and so on."""
    length = tf.shape(elements[0])[1]

    def body(distance, *elements):
        earlier = [tf.roll(x, distance, 1) for x in elements]
        pairs = zip(elements, combine(earlier, elements), strict=True)
        has_earlier = tf.range(length) >= distance
        return distance * 2, *(tf.where(_align(has_earlier, x), new, x) for x, new in pairs)

    _, *results = tf.while_loop(lambda distance, *_: distance < length, body, (1, *elements))
    return results


def _align(mask, x):
    return tf.reshape(mask, [1, -1] + [1] * (x.shape.rank - 2))


def scan(body, carry, sequences, like):
    length = sequences[0].shape[0]
    length = tf.shape(sequences[0])[0] if length is None else length
    arrays = [tf.TensorArray(x.dtype, size=length, element_shape=x.shape) for x in like]

    def step(k, carry, arrays):
        carry, outputs = body(carry, [x[k] for x in sequences])
        return k + 1, carry, [a.write(k, x) for a, x in zip(arrays, outputs, strict=True)]

    _, carry, arrays = tf.while_loop(
        lambda k, *_: k < length, step, (tf.constant(0), carry, arrays)
    )
    results = [array.stack() for array in arrays]
    for result, x in zip(results, like, strict=True):
        result.set_shape([sequences[0].shape[0], *x.shape])
    return carry, results


def compiled(function, constants, *tensors):
    return function(*constants, *tensors)


def without_gradient(function):
    return tf.nest.map_structure(tf.stop_gradient, function())


def implicit_states(adjoint, states, jacobian, drive, initial_state):
    def forward(drive, initial_state):
        return tf.identity(states), [jacobian]

    def backward(kept, arguments, grads):
        return list(adjoint(tf.math.conj(kept[0]), grads[0]))

    return differentiable_once(forward, backward, drive, initial_state)


def exponent(x):
    bits, bias, shift, mask = _layout(x.dtype)
    field = tf.bitwise.right_shift(tf.bitcast(x, bits), tf.constant(shift, bits))
    field = tf.cast(tf.bitwise.bitwise_and(field, tf.constant(mask, bits)), tf.int32)
    return tf.where((field > 0) & (field < mask), field - bias + 1, 0)


def power_of_two(exponent, dtype):
    # Put together from bits: XLA rounds its power even where the result is exact.
    bits, bias, shift, _ = _layout(tf.as_dtype(dtype))
    field = tf.cast(exponent, bits) + bias
    return tf.bitcast(tf.bitwise.left_shift(field, tf.constant(shift, bits)), dtype)


def _layout(dtype):
    """Integers of the same size, and the position of the exponent in them."""
    if dtype == tf.float64:
        return tf.int64, 1023, 52, 0x7FF
    return tf.int32, 127, 23, 0xFF


def may_be_differentiated():
    return True


def can_iterate(x):
    return not is_converted_to_onnx()


def is_converted_to_onnx():
    """Whether the model is traced for a converter to ONNX.

    It cannot look into a function compiled by XLA, and writes a file that no runtime loads.
    """
    return not tf.executing_eagerly() and is_onnx_converter_calling()


def device_kind(x):
    kind = tf.DeviceSpec.from_string(x.device or "").device_type
    if kind is None:  # in a graph: where it will most likely run
        found = {device.device_type for device in tf.config.list_logical_devices()}
        kind = next(name for name in ("TPU", "GPU", "CPU") if name in found)
    return kind.lower()


def complex_of(real, imaginary):
    return tf.complex(real, imaginary)


def where(mask, x, y):
    return tf.where(mask, x, y)
