"""The baseline on TensorFlow: the simplest fused scan with a gradient of its own, under XLA.

Sigmoid feedback only, no options and no checks. The steps are written out, forward and backward,
where the package differentiates one definition of the step.
"""

import functools

import tensorflow as tf

VERSION = f"tensorflow {tf.__version__}"
BASELINE = "tf.while_loop under XLA with a gradient written by hand"


def use_one_thread():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def inference(scan, tensors, _):
    run = tf.function(scan)
    return lambda: run(*tensors)


def training(scan, tensors, grad_outputs, jit_compile=False):
    @tf.function(jit_compile=jit_compile)
    def run(grad_outputs, *tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = scan(*tensors)
        return outputs, *tape.gradient(outputs, tensors, grad_outputs)

    return lambda: run(grad_outputs, *tensors)


# In a graph that isn't compiled, as Keras trains on a CPU by default, and in one that is.
MODES = {
    "training": training,
    "training, jit_compile": functools.partial(training, jit_compile=True),
    "recompute": training,
    "inference": inference,
}


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
    _, _, outputs, states = tf.while_loop(lambda t, *_: t < length, step, start)
    states = states.stack()

    def gradient(grad_outputs):
        slices = (states, sources, tf.transpose(grad_outputs, [1, 0, 2]))
        return _backward(length, slices, transition, gate, readout)

    return tf.transpose(outputs.stack(), [1, 0, 2]), gradient


def _backward(length, slices, transition, gate, readout):
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

    zeros = (tf.zeros_like(slices[0][0]),) * 4
    start = (length - 1, *zeros, _array(length, slices[1][0]))
    _, grad_state, *grads, grad_inputs = tf.while_loop(lambda t, *_: t >= 0, step, start)
    grad_inputs = tf.transpose(grad_inputs.stack(), [1, 0, 2])
    return grad_inputs, *(tf.reduce_sum(g, 0) for g in grads), grad_state


def _array(length, element):
    return tf.TensorArray(element.dtype, size=length, element_shape=element.shape)
