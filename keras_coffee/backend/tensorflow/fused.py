"""Scans for TensorFlow: `tf.while_loop` both ways, compiled by XLA whoever calls them.

A recurrence is given by its `step(weights, state, inputs_t) -> (state, outputs_t)`, where weights
and inputs are lists of tensors. The loops are time-major.
"""

import functools
import inspect

import tensorflow as tf

from keras_coffee._conversion import is_onnx_converter_calling


def _compiled(function):
    """Compiles by XLA.

    Keras does not compile models on machines without a GPU, and an op-by-op loop is five to ten
    times slower there. So each scan is a compiled function of its own.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        arguments = signature.bind(*args, **kwargs).arguments
        # Variables are read out here: a compiled function would treat each as a case of its own.
        arguments = tf.nest.map_structure(_read, arguments)
        batch, (own, *rest) = arguments["initial_state"].shape[0], arguments["inputs"].shape
        if own is None and batch is not None:
            # A carried state knows the batch, inputs in a graph often don't. Without this an
            # operation somewhere inside the loop would complain.
            shape = [batch, *rest]
            name = "inputs_must_have_the_batch_size_of_the_state"
            arguments["inputs"] = tf.ensure_shape(arguments["inputs"], shape, name)
        results = (function if is_converted_to_onnx() else compiled)(**arguments)
        # The loops forget the length; a trace for unknown shapes, which TensorFlow also takes for
        # known ones, forgets all but the features. Layers that come later may need to know.
        for result, like in zip(
            tf.nest.flatten(results), ("inputs", "initial_state"), strict=False
        ):
            result.set_shape(arguments[like].shape)
        return results

    return call


def _read(x):
    return tf.convert_to_tensor(x) if isinstance(x, tf.Variable) else x


@_compiled
def coffee_scan(
    inputs,
    transition,
    gate,
    readout,
    input_matrix,
    output_gate,
    initial_state,
    mask,
    *,
    feedback,
    recompute,
):
    """COFFEE over inputs `(B, T, D)`: outputs `(B, T, D)` and the final state `(B, D, n)`."""
    step, weights = _coffee_step(transition, gate, readout, input_matrix, output_gate, feedback)
    sequences = [inputs] if mask is None else [inputs, mask]
    return _scan(step, weights, initial_state, sequences, recompute)


@_compiled
def selective_scan(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    recompute,
):
    """Selective state-space model over inputs `(B, T, D)`: outputs and the final state.

    An input or output matrix of rank 3 is `(B, T, n)`, one of rank 2 is `(D, n)`.
    """
    matrices = (input_matrix, output_matrix)
    varying = [m for m in matrices if m.shape.rank == 3]
    weights = [transition, *(m for m in matrices if m.shape.rank == 2)]
    step = _selective_step([m.shape.rank == 3 for m in matrices], discretization)
    return _scan(step, weights, initial_state, [inputs, delta, *varying], recompute)


@_compiled
def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    return _linear_scan(decay, inputs, initial_state, reverse)


def is_converted_to_onnx():
    """Whether the model is traced for a converter to ONNX.

    It cannot look into a function compiled by XLA, and writes a file that no runtime loads.
    """
    return not tf.executing_eagerly() and is_onnx_converter_calling()


# Steps.


def _coffee_step(transition, gate, readout, input_matrix, output_gate, feedback):
    optional = {"input_matrix": input_matrix, "output_gate": output_gate}
    names = [name for name, weight in optional.items() if weight is not None]

    def step(weights, state, inputs_t):
        transition, gate, readout = weights[:3]
        extra = dict(zip(names, weights[3:], strict=True))
        source, *mask = (x[..., None] for x in inputs_t)
        drive = extra["input_matrix"] * source if "input_matrix" in extra else source
        delta = gate * (source if feedback is None else state)
        if feedback != "linear":
            delta = tf.sigmoid(delta)
        for m in mask:
            delta *= m[..., None]
        state = state + delta * (transition * state + drive)
        outputs = tf.reduce_sum(readout * state, -1)
        if "output_gate" in extra:
            outputs *= tf.sigmoid(tf.reduce_sum(extra["output_gate"] * state, -1))
        return state, outputs

    return step, [transition, gate, readout, *(optional[name] for name in names)]


def _selective_step(is_varying, discretization):
    discretize = {"zoh": _zero_order_hold, "euler": _forward_euler}[discretization]

    def step(weights, state, inputs_t):
        transition, *fixed = weights
        source, delta, *varying = inputs_t
        input_matrix, output_matrix = (
            varying.pop(0)[:, None, :] if v else fixed.pop(0) for v in is_varying
        )
        decay, gain = discretize(transition, delta[..., None])
        state = decay * state + gain * input_matrix * source[..., None]
        return state, tf.reduce_sum(output_matrix * state, -1)

    return step


def _forward_euler(transition, delta):
    return 1 + transition * delta, delta


def _zero_order_hold(transition, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, right through z = 0 with their derivatives."""
    exponent = transition * delta
    small, one = tf.abs(exponent) < 0.1, tf.ones_like(exponent)
    # Each branch gets numbers that suit it: what overflows in an unused one makes its gradient NaN.
    near, far = tf.where(small, exponent, tf.zeros_like(one)), tf.where(small, one, exponent)
    series = one
    for k in range(11, 1, -1):  # what is left out, and its derivative, is below 1e-17
        series = 1 + series * near / k
    gain = delta * tf.where(small, series, _expm1(far) / far)
    return tf.exp(exponent), gain


def _expm1(x):
    # ONNX has no such operation. The difference loses a digit at most: |x| is at least 0.1.
    return tf.exp(x) - 1 if is_converted_to_onnx() else tf.math.expm1(x)


# The driver.


def differentiable_once(forward, backward, *arguments):
    """Calls `forward(*arguments) -> results, kept`, with `backward` as its gradient.

    `backward(kept, arguments, grads)` gets floating-point tensors only. Integers of the forward
    pass, even those of a transposition or a length, would have to be known when XLA compiles, and
    when a compiled function calls this one, TensorFlow then takes all arguments for constants and
    compiles again at every step.

    Second derivatives are NaN. TensorFlow prepares them even where nobody asks, under a persistent
    tape for instance, and cannot for loops that XLA compiles; so it must not see these.
    """

    @tf.custom_gradient
    def call(*arguments):
        results, kept = forward(*arguments)
        kept = tf.stop_gradient(kept)

        def gradient(*grads):
            return _never_differentiated(backward, kept, arguments, grads)

        return results, gradient

    return call(*arguments)


def _never_differentiated(function, kept, arguments, grads):
    @tf.custom_gradient
    def call(kept, *tensors):
        results = function(kept, tensors[: len(arguments)], tensors[len(arguments) :])

        def gradient(*grads_of_results):
            # The results are gradients by the arguments, so these have the arguments' shapes.
            nan = [x + tf.cast(float("nan"), x.dtype) for x in grads_of_results]
            return [None, *nan, *(None for _ in grads)]

        return results, gradient

    return call(kept, *arguments, *grads)


def _scan(step, weights, state, inputs, recompute):
    """Outputs `(B, T, ...)` and the final state, from inputs `(B, T, ...)`."""
    # A converter to ONNX takes a loop, but none inside another, and wants no gradient.
    in_chunks = recompute and not is_converted_to_onnx()
    run, run_back = (_recomputed, _recomputed_back) if in_chunks else (_stored, _stored_back)

    def split(arguments):
        state, *tensors = arguments
        return tensors[: len(weights)], state, [_swap(x) for x in tensors[len(weights) :]]

    def forward(*arguments):
        outputs, final_state, kept = run(step, *split(arguments))
        return (_swap(outputs.stack()), final_state), kept.stack()

    def backward(kept, arguments, grads):
        weights, state, inputs = split(arguments)
        grad_outputs, grad_final = grads
        start = (
            grad_final,
            [tf.zeros_like(w) for w in _per_sequence(weights, state)],
            [_array(tf.shape(x)[0], x[0]) for x in inputs],
        )
        grad_state, grads, grad_inputs = run_back(
            step, weights, kept, inputs, _swap(grad_outputs), *start
        )
        totals = [tf.reduce_sum(g, 0) for g in grads]
        return grad_state, *totals, *(_swap(x.stack()) for x in grad_inputs)

    return differentiable_once(forward, backward, state, *weights, *inputs)


def _swap(x):
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def _stored(step, weights, state, inputs):
    """Keeps every state for the gradient."""
    length = tf.shape(inputs[0])[0]
    arrays = _array(length, inputs[0][0]), _array(length, state)
    final_state, outputs, states = _forward(step, weights, state, inputs, 0, length, *arrays)
    return outputs, final_state, states


def _stored_back(step, weights, states, inputs, grad_outputs, *start):
    length = tf.shape(inputs[0])[0]
    return _backward(step, weights, states, inputs, grad_outputs, 0, length, *start)


def _recomputed(step, weights, state, inputs):
    """Keeps one state in about √T."""
    length, size, count = _chunks(inputs)

    def advance(k, state, outputs, starts):
        start, stop = k * size, tf.minimum((k + 1) * size, length)
        final, outputs, _ = _forward(step, weights, state, inputs, start, stop, outputs, None)
        return k + 1, final, outputs, starts.write(k, state)

    arrays = _array(length, inputs[0][0]), _array(count, state)
    _, final_state, outputs, starts = tf.while_loop(
        lambda k, *_: k < count, advance, (0, state, *arrays)
    )
    return outputs, final_state, starts


def _recomputed_back(step, weights, starts, inputs, grad_outputs, *start):
    """Computes the states of each chunk again, then goes back through them."""
    length, size, count = _chunks(inputs)

    def retreat(k, grad_state, grads, grad_inputs, chunk):
        start, stop = k * size, tf.minimum((k + 1) * size, length)
        _, _, chunk = _forward(step, weights, starts[k], inputs, start, stop, None, chunk)
        so_far = grad_state, grads, grad_inputs
        new = _backward(step, weights, chunk.stack(), inputs, grad_outputs, start, stop, *so_far)
        return k - 1, *new, chunk

    # XLA wants the chunk's buffer made outside the loop that reuses it.
    chunk = _array(size, starts[0])
    _, *grads, _ = tf.while_loop(lambda k, *_: k >= 0, retreat, (count - 1, *start, chunk))
    return grads


def _chunks(inputs):
    """Length, steps in a chunk, and chunks."""
    length = tf.shape(inputs[0])[0]
    size = tf.maximum(1, tf.cast(tf.sqrt(tf.cast(length, tf.float64)), tf.int32))
    return length, size, (length + size - 1) // size


def _forward(step, weights, state, inputs, start, stop, outputs, states):
    """Steps `start` to `stop`. Arrays that are None are not written."""
    keep_outputs, keep_states = outputs is not None, states is not None

    def body(t, state, outputs, states):
        new, outputs_t = step(weights, state, [x[t] for x in inputs])
        outputs = outputs.write(t, outputs_t) if keep_outputs else outputs
        states = states.write(t - start, state) if keep_states else states
        return t + 1, new, outputs, states

    arrays = (outputs if keep_outputs else (), states if keep_states else ())
    _, state, outputs, states = tf.while_loop(
        lambda t, *_: t < stop, body, (tf.convert_to_tensor(start), state, *arrays)
    )
    return state, outputs, states


def _backward(
    step, weights, states, inputs, grad_outputs, start, stop, grad_state, grads, grad_inputs
):
    """Steps `stop` to `start`, reversed. `states[0]` is the state before step `start`."""

    def body(t, grad_state, grads, grad_inputs):
        sources = [_per_sequence(weights, grad_state), states[t - start], [x[t] for x in inputs]]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            target = step(*sources)
        grad_weights_t, grad_state, grad_inputs_t = tape.gradient(
            target, sources, output_gradients=(grad_state, grad_outputs[t])
        )
        grads = [a + b for a, b in zip(grads, grad_weights_t, strict=True)]
        grad_inputs = [a.write(t, b) for a, b in zip(grad_inputs, grad_inputs_t, strict=True)]
        return t - 1, grad_state, grads, grad_inputs

    _, grad_state, grads, grad_inputs = tf.while_loop(
        lambda t, *_: t >= start, body, (stop - 1, grad_state, grads, grad_inputs)
    )
    return grad_state, grads, grad_inputs


def _per_sequence(weights, state):
    # One copy of the weights per sequence: their gradients are then added elementwise over time
    # and summed over the batch once, not at every step.
    return [tf.broadcast_to(w, tf.shape(state)) for w in weights]


def _array(length, element):
    return tf.TensorArray(element.dtype, size=length, element_shape=element.shape)


def _linear_scan(decay, inputs, initial_state, reverse):
    def forward(decay, inputs, initial_state):
        states = _linear_loop(_swap(decay), _swap(inputs), initial_state, reverse)
        return _swap(states), states

    def backward(states, arguments, grads):
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
