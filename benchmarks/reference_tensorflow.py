"""TensorFlow: what compiles a function, and the simplest scans one would write.

Sigmoid feedback only, no options and no checks. COFFEE's steps are written out, forward and
backward, where the package differentiates one definition of the step. S6 is a plain loop that
TensorFlow differentiates.
"""

import tensorflow as tf

# Rows are functions of their own, of one name: that they are traced is no fault.
tf.get_logger().setLevel("ERROR")
VERSION = f"tensorflow {tf.__version__}"
LOOP = "tf.while_loop under XLA, gradient by hand"


def use_threads(threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def inference(scan):
    """`scan` in a graph."""
    return tf.function(scan)


def training(scan, jit_compile=False):
    """What `scan` returns, and the gradients by its tensors from those of what it returns."""

    @tf.function(jit_compile=jit_compile)
    def run(grads, *tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = scan(*tensors)
        return *outputs, *tape.gradient(outputs, tensors, tuple(grads))

    return run


@tf.function(jit_compile=True)
@tf.custom_gradient
def coffee_scan(inputs, transition, gate, readout, initial_state):
    sources = tf.transpose(inputs, [1, 0, 2])
    length = tf.shape(sources)[0]

    def step(t, state, outputs, states):
        delta = tf.sigmoid(gate * state)
        new = state + delta * (transition * state + sources[t][..., None])
        outputs = outputs.write(t, tf.reduce_sum(readout * new, -1))
        return t + 1, new, outputs, states.write(t, state)

    start = (0, initial_state, _array(length, inputs[:, 0]), _array(length, initial_state))
    _, final_state, outputs, states = tf.while_loop(lambda t, *_: t < length, step, start)
    states = states.stack()

    def gradient(grad_outputs, grad_final_state):
        slices = (states, sources, tf.transpose(grad_outputs, [1, 0, 2]))
        return _backward(length, slices, grad_final_state, transition, gate, readout)

    return (tf.transpose(outputs.stack(), [1, 0, 2]), final_state), gradient


def _backward(length, slices, grad_final_state, transition, gate, readout):
    def step(t, grad_state, grad_transition, grad_gate, grad_readout, grad_inputs):
        state, source, grad_output = (x[t] for x in slices)
        delta = tf.sigmoid(gate * state)
        change = transition * state + source[..., None]
        adjoint = grad_state + grad_output[..., None] * readout
        grad_change = adjoint * delta
        grad_argument = grad_change * (1 - delta) * change
        return (
            t - 1,
            adjoint + grad_change * transition + grad_argument * gate,
            grad_transition + grad_change * state,
            grad_gate + grad_argument * state,
            grad_readout + grad_output[..., None] * (state + delta * change),
            grad_inputs.write(t, tf.reduce_sum(grad_change, -1)),
        )

    zeros = (tf.zeros_like(slices[0][0]),) * 3
    start = (length - 1, grad_final_state, *zeros, _array(length, slices[1][0]))
    _, grad_state, *grads, grad_inputs = tf.while_loop(lambda t, *_: t >= 0, step, start)
    grad_inputs = tf.transpose(grad_inputs.stack(), [1, 0, 2])
    return grad_inputs, *(tf.reduce_sum(g, 0) for g in grads), grad_state


def selective_scan(inputs, delta, transition, input_matrix, output_matrix):
    batch, length, dim = inputs.shape
    sources, widths, entries, exits = (
        tf.transpose(x, [1, 0, 2]) for x in (inputs, delta, input_matrix, output_matrix)
    )

    def step(t, state, outputs):
        exponent = widths[t][..., None] * transition
        held = tf.math.expm1(exponent) / transition * entries[t][:, None] * sources[t][..., None]
        state = tf.exp(exponent) * state + held
        outputs = outputs.write(t, tf.reduce_sum(state * exits[t][:, None], -1))
        return t + 1, state, outputs

    zeros = tf.zeros((batch, dim, transition.shape[1]), inputs.dtype)
    start = (0, zeros, _array(length, inputs[:, 0]))
    _, final_state, outputs = tf.while_loop(lambda t, *_: t < length, step, start)
    return tf.transpose(outputs.stack(), [1, 0, 2]), final_state


def _array(length, element):
    return tf.TensorArray(element.dtype, size=length, element_shape=element.shape)
