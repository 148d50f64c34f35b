"""Scans in TensorFlow's own operations: `tf.while_loop` both ways, always compiled.

Keras does not compile models on machines without a GPU, where an op-by-op loop is five to ten times
slower. So each scan is a compiled function. The loops are time-major.
"""

import functools

import tensorflow as tf

from keras_coffee.backend.tensorflow.gradients import (
    differentiable_once,
    is_differentiable,
    moving,
)
from keras_coffee.backend.tensorflow.primitives import is_converted_to_onnx


def scan_cell(recurrence, *tensors, recompute):
    """Outputs `(B, T, ...)` and the final state of any recurrence; `numpy.py` says of what."""
    sequences, weights, state = recurrence.split(tensors)
    batch, length = state[0].shape[0], sequences[0].shape[1]
    sequences = [_with_batch(x, batch) for x in sequences]
    arguments = [*sequences, *weights, *state]
    outputs, *final_state = _program(arguments, scan, recurrence, recompute)(*arguments)
    # The loops forget the length. Layers that come later may need to know.
    outputs.set_shape([sequences[0].shape[0], length, *outputs.shape[2:]])
    for result, like in zip(final_state, state, strict=True):
        result.set_shape(like.shape)
    return outputs, final_state


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    inputs = _with_batch(inputs, initial_state.shape[0])
    decay = tf.broadcast_to(decay, tf.shape(inputs))
    tensors = [decay, inputs, initial_state]
    states = _program(tensors, linear, reverse)(*tensors)
    states.set_shape(inputs.shape)
    return states


def _program(tensors, function, *constants):
    """A function of tensors: compiled, except for a converter to ONNX, which can't look into it."""
    if is_converted_to_onnx():
        return functools.partial(function, *constants)
    return _compiled(all(x.shape.is_fully_defined() for x in tensors), function, *constants)


@functools.cache
def _compiled(is_known, function, *constants):
    # Known shapes have a function of their own. TensorFlow would take a trace for unknown ones, and
    # files for LiteRT can't hold that.
    del is_known
    return tf.function(functools.partial(function, *constants), jit_compile=True, autograph=False)


def _with_batch(x, batch):
    """`x`, which has this batch size if it does not know its own.

    A carried state knows the batch size, inputs in a graph often do not. Otherwise an operation
    inside the loop would raise an error.
    """
    if x.shape[0] is not None or batch is None:
        return x
    name = "inputs_must_have_the_batch_size_of_the_state"
    return tf.ensure_shape(x, [batch, *x.shape[1:]], name)


def scan(recurrence, recompute, *tensors):
    """Outputs `(B, T, ...)` and the final state, from inputs `(B, T, ...)`."""
    # A converter to ONNX takes a loop, but none inside another, and wants no gradient.
    in_chunks = recompute and not is_converted_to_onnx()
    run, run_back = (_recomputed, _recomputed_back) if in_chunks else (_stored, _stored_back)

    def split(tensors):
        sequences, weights, state = recurrence.split(tensors)
        return _Steps(recurrence), [_swap(x) for x in sequences], weights, state

    def forward(*tensors):
        step, sequences, weights, state = split(tensors)
        outputs, final_state, kept = run(step, weights, state, sequences)
        return (_swap(outputs.stack()), *final_state), [x.stack() for x in kept]

    def backward(kept, tensors, grads):
        step, sequences, weights, _ = split(tensors)
        grad_outputs, *grad_state = grads
        totals = [tf.zeros_like(w) for w in moving(step.copied(weights, grad_state))]
        arrays = [_array(tf.shape(x)[0], x[0]) for x in moving(sequences)]
        start = grad_state, totals, arrays
        grad_state, totals, arrays = run_back(
            step, weights, kept, sequences, _swap(grad_outputs), *start
        )
        if recurrence.broadcasts:
            pairs = zip(totals, moving(weights), strict=True)
            totals = [tf.reshape(tf.reduce_sum(g, 0), w.shape) for g, w in pairs]
        return [*(_swap(x.stack()) for x in arrays), *totals, *grad_state]

    return differentiable_once(forward, backward, *tensors)


def _swap(x):
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


class _Steps:
    """One step of a recurrence."""

    def __init__(self, recurrence):
        self.recurrence = recurrence

    def __call__(self, weights, state, slices):
        """The next state and the outputs."""
        steps = self.recurrence.steps(weights)
        new = steps.step(state, slices)
        return new, steps.read(new, slices)

    def copied(self, weights, state):
        """One copy of the weights per sequence, where they may have one.

        Their gradients are then added elementwise over time, and summed over the batch once.
        Integers and booleans have none, and are not copied.
        """
        if not self.recurrence.broadcasts:
            return weights
        batch, rank = tf.shape(state[0])[:1], state[0].shape.rank

        def copies(w):
            shape = [1] * max(0, rank - 1 - w.shape.rank) + list(w.shape)
            return tf.broadcast_to(tf.reshape(w, shape), tf.concat([batch, shape], 0))

        return [copies(w) if is_differentiable(w) else w for w in weights]

    def outputs(self, weights, state, sequences):
        """An array for the outputs of all steps."""
        _, like = self(weights, state, [x[0] for x in sequences])
        return _array(tf.shape(sequences[0])[0], like)


def _stored(step, weights, state, sequences):
    """Keeps every state for the gradient."""
    length = tf.shape(sequences[0])[0]
    arrays = step.outputs(weights, state, sequences), [_array(length, x) for x in state]
    final_state, outputs, states = _forward(step, weights, state, sequences, 0, length, *arrays)
    return outputs, final_state, states


def _stored_back(step, weights, states, sequences, grad_outputs, *start):
    length = tf.shape(sequences[0])[0]
    return _backward(step, weights, states, sequences, grad_outputs, 0, length, *start)


def _recomputed(step, weights, state, sequences):
    """Keeps one state in about √T."""
    length, size, count = _chunks(sequences)

    def advance(k, state, outputs, starts):
        start, stop = k * size, tf.minimum((k + 1) * size, length)
        final, outputs, _ = _forward(step, weights, state, sequences, start, stop, outputs, None)
        return k + 1, final, outputs, [a.write(k, x) for a, x in zip(starts, state, strict=True)]

    arrays = step.outputs(weights, state, sequences), [_array(count, x) for x in state]
    _, final_state, outputs, starts = tf.while_loop(
        lambda k, *_: k < count, advance, (0, state, *arrays)
    )
    return outputs, final_state, starts


def _recomputed_back(step, weights, starts, sequences, grad_outputs, *start):
    """Computes the states of each chunk again, then goes back through them."""
    length, size, count = _chunks(sequences)

    def retreat(k, grad_state, totals, arrays, chunk):
        start, stop = k * size, tf.minimum((k + 1) * size, length)
        first = [x[k] for x in starts]
        _, _, chunk = _forward(step, weights, first, sequences, start, stop, None, chunk)
        states, so_far = [x.stack() for x in chunk], (grad_state, totals, arrays)
        new = _backward(step, weights, states, sequences, grad_outputs, start, stop, *so_far)
        return k - 1, *new, chunk

    # XLA wants the chunk's buffer made outside the loop that reuses it.
    chunk = [_array(size, x[0]) for x in starts]
    _, *grads, _ = tf.while_loop(lambda k, *_: k >= 0, retreat, (count - 1, *start, chunk))
    return grads


def _chunks(sequences):
    """Length, steps in a chunk, and chunks."""
    length = tf.shape(sequences[0])[0]
    size = tf.maximum(1, tf.cast(tf.sqrt(tf.cast(length, tf.float64)), tf.int32))
    return length, size, (length + size - 1) // size


def _forward(step, weights, state, sequences, start, stop, outputs, states):
    """Steps `start` to `stop`. Arrays that are None are not written."""
    keep_outputs, keep_states = outputs is not None, states is not None

    def body(t, state, outputs, states):
        new, outputs_t = step(weights, state, [x[t] for x in sequences])
        if keep_outputs:
            outputs = outputs.write(t, outputs_t)
        if keep_states:
            states = [a.write(t - start, x) for a, x in zip(states, state, strict=True)]
        return t + 1, new, outputs, states

    arrays = (outputs if keep_outputs else (), states if keep_states else ())
    _, state, outputs, states = tf.while_loop(
        lambda t, *_: t < stop, body, (tf.convert_to_tensor(start), state, *arrays)
    )
    return state, outputs, states


def _backward(
    step, weights, states, sequences, grad_outputs, start, stop, grad_state, totals, arrays
):
    """Steps `stop` to `start`, reversed. `states[0]` is the state before step `start`."""

    def body(t, grad_state, totals, arrays):
        slices = [x[t] for x in sequences]
        copies = step.copied(weights, grad_state)
        sources = [moving(copies), [x[t - start] for x in states], moving(slices)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            target = step(copies, sources[1], slices)
        grad_weights, grad_state, grad_inputs = tape.gradient(
            target,
            sources,
            output_gradients=(list(grad_state), grad_outputs[t]),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        totals = [a + b for a, b in zip(totals, grad_weights, strict=True)]
        arrays = [a.write(t, b) for a, b in zip(arrays, grad_inputs, strict=True)]
        return t - 1, grad_state, totals, arrays

    _, grad_state, totals, arrays = tf.while_loop(
        lambda t, *_: t >= start, body, (stop - 1, list(grad_state), totals, arrays)
    )
    return grad_state, totals, arrays


def _array(length, element):
    return tf.TensorArray(element.dtype, size=length, element_shape=element.shape)


def linear(reverse, decay, inputs, initial_state):
    def forward(decay, inputs, initial_state):
        states = _linear_loop(_swap(decay), _swap(inputs), initial_state, reverse)
        return _swap(states), [states]

    def backward(kept, arguments, grads):
        (states,) = kept
        # The adjoint of a linear scan is a linear scan the other way, with decays one step later.
        decay, _, initial_state = arguments
        conjugate, start = tf.math.conj(_swap(decay)), initial_state[None]
        zero, zeros = tf.zeros_like(conjugate[:1]), tf.zeros_like(initial_state)
        if reverse:
            following = tf.concat([zero, conjugate[:-1]], 0)
            previous = tf.concat([states[1:], start], 0)
        else:
            following = tf.concat([conjugate[1:], zero], 0)
            previous = tf.concat([start, states[:-1]], 0)
        grads = _linear_loop(following, _swap(grads[0]), zeros, not reverse)
        first = -1 if reverse else 0
        grad_initial = conjugate[first] * grads[first]
        return _swap(grads * tf.math.conj(previous)), _swap(grads), grad_initial

    return differentiable_once(forward, backward, decay, inputs, initial_state)


def _linear_loop(decay, inputs, state, reverse):
    if reverse:
        # Not by counting down: ONNX takes what a loop writes in the order of its writing.
        decay, inputs = tf.reverse(decay, [0]), tf.reverse(inputs, [0])
        return tf.reverse(_linear_loop(decay, inputs, state, False), [0])
    length = tf.shape(inputs)[0]

    def body(t, state, states):
        state = decay[t] * state + inputs[t]
        return t + 1, state, states.write(t, state)

    *_, states = tf.while_loop(lambda t, *_: t < length, body, (0, state, _array(length, state)))
    return states.stack()
