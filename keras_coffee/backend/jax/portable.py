"""The scans in JAX's own operations: one `lax.scan` forward, one reversed `lax.scan` back.

They run wherever there is no kernel: on TPUs, on several devices, in exported programs. A
recurrence is given by its `step(weights, state, inputs_t) -> (state, outputs_t)`. Loops are
time-major, because `lax.scan` slices the first axis. kernels.py says what arguments and results
are.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax


def coffee_forward(
    inputs, weights, *mask_and_state, feedback, has_input_matrix, has_output_gate, keep
):
    *mask, initial_state = mask_and_state
    step = _coffee_step(feedback, has_input_matrix, has_output_gate)
    return _forward(step, weights, [inputs, *mask], initial_state, keep)


def coffee_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    weights,
    *mask_and_state,
    feedback,
    has_input_matrix,
    has_output_gate,
    keep,
):
    *mask, _ = mask_and_state
    step = _coffee_step(feedback, has_input_matrix, has_output_gate)
    sequences = [inputs, *mask]
    grads = _backward(step, grad_outputs, grad_final, kept, weights, sequences, keep)
    grad_weights, (grad_inputs, *_), grad_initial = grads
    return [grad_inputs, grad_weights, *map(jnp.zeros_like, mask), grad_initial]


def selective_forward(
    inputs, delta, transition, input_matrix, output_matrix, initial_state, *, discretization, keep
):
    matrices = input_matrix, output_matrix
    step = _selective_step(discretization, tuple(m.ndim == 3 for m in matrices))
    weights, sequences = _sorted(inputs, delta, transition, matrices)
    return _forward(step, weights, sequences, initial_state, keep)


def selective_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    keep,
):
    matrices = input_matrix, output_matrix
    is_varying = tuple(m.ndim == 3 for m in matrices)
    step = _selective_step(discretization, is_varying)
    weights, sequences = _sorted(inputs, delta, transition, matrices)
    grads = _backward(step, grad_outputs, grad_final, kept, weights, sequences, keep)
    (grad_transition, *fixed), (grad_inputs, grad_delta, *varying), grad_initial = grads
    grad_matrices = [varying.pop(0) if v else fixed.pop(0) for v in is_varying]
    return [grad_inputs, grad_delta, grad_transition, *grad_matrices, grad_initial]


def _sorted(inputs, delta, transition, matrices):
    """What is constant over time, and what is not."""
    fixed = [m for m in matrices if m.ndim == 2]
    return [transition, *fixed], [inputs, delta, *(m for m in matrices if m.ndim == 3)]


# Steps. Cached, so that `lax.scan` sees one function per recurrence and traces it once.


@functools.cache
def _coffee_step(feedback, has_input_matrix, has_output_gate):
    def step(weights, state, inputs_t):
        # Stacked along the axis before the last two.
        transition, gate, readout, *optional = (
            weights[..., k, :, :] for k in range(weights.shape[-3])
        )
        source, *mask = inputs_t
        source = source[..., None]
        drive = optional[0] * source if has_input_matrix else source
        delta = gate * (source if feedback is None else state)
        if feedback != "linear":
            delta = jax.nn.sigmoid(delta)
        if mask:
            delta = mask[0][:, None, None] * delta
        state = state + delta * (transition * state + drive)
        outputs = jnp.sum(readout * state, -1)
        if has_output_gate:
            outputs = outputs * jax.nn.sigmoid(jnp.sum(optional[-1] * state, -1))
        return state, outputs

    return step


@functools.cache
def _selective_step(discretization, is_varying):
    discretize = {"zoh": _zero_order_hold, "euler": forward_euler}[discretization]

    def step(weights, state, inputs_t):
        transition, *fixed = weights
        source, delta, *varying = inputs_t
        input_matrix, output_matrix = (
            varying.pop(0)[:, None, :] if v else fixed.pop(0) for v in is_varying
        )
        decay, gain = discretize(transition, delta[..., None])
        state = decay * state + gain * input_matrix * source[..., None]
        return state, jnp.sum(output_matrix * state, -1)

    return step


def forward_euler(transition, delta):
    return 1 + transition * delta, delta


def _zero_order_hold(transition, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, right through z = 0 with their derivatives."""
    exponent = transition * delta
    small = jnp.abs(exponent) < 0.1
    # Each branch gets numbers that suit it: what overflows in an unused one makes its gradient NaN.
    near, far = jnp.where(small, exponent, 0.0), jnp.where(small, 1.0, exponent)
    series = jnp.ones_like(near)
    for k in range(11, 1, -1):  # what is left out, and its derivative, is below 1e-17
        series = 1 + series * near / k
    gain = delta * jnp.where(small, series, jnp.expm1(far) / far)
    return jnp.exp(exponent), gain


# The driver.


def _forward(step, weights, sequences, state, keep):
    """Outputs, the final state and the states before every `keep`-th step."""
    inputs = [_swap(x) for x in sequences]
    if keep == 0:
        state, outputs = lax.scan(functools.partial(step, weights), state, inputs)
        kept = jnp.zeros((0,), state.dtype)
    elif keep == 1:
        state, (outputs, kept) = _scan_with_states(step, weights, state, inputs)
    else:
        state, (outputs, kept) = _scan_chunks(step, weights, state, inputs, keep)
    return [_swap(outputs), state, kept.reshape(-1)]


def _scan_with_states(step, weights, state, inputs):
    def body(state, inputs_t):
        new, outputs = step(weights, state, inputs_t)
        return new, (outputs, state)

    return lax.scan(body, state, inputs)


def _scan_chunks(step, weights, state, inputs, size):
    def chunk(state, inputs):
        new, outputs = lax.scan(functools.partial(step, weights), state, inputs)
        return new, (outputs, state)

    head, tail = _chunks(inputs, size)
    state, (outputs, starts) = lax.scan(chunk, state, head)
    outputs = _joined(outputs)
    if len(tail[0]):
        state, (rest, start) = chunk(state, tail)
        outputs, starts = jnp.concatenate([outputs, rest]), jnp.concatenate([starts, start[None]])
    return state, (outputs, starts)


def _chunks(arrays, size):
    """Whole chunks, `(chunks, size, ...)`, and what is left."""
    whole = arrays[0].shape[0] // size * size
    head = [x[:whole].reshape(whole // size, size, *x.shape[1:]) for x in arrays]
    return head, [x[whole:] for x in arrays]


def _backward(step, grad_outputs, grad_final, kept, weights, sequences, keep):
    """Gradients by weights, sequences and the initial state."""
    batch, inputs = grad_final.shape[0], [_swap(x) for x in sequences]

    # One copy of the weights per sequence: their gradients are then added elementwise over time
    # and summed over the batch once, not at every step.
    weights = jax.tree.map(lambda w: jnp.broadcast_to(w, (batch, *w.shape)), weights)

    def body(carry, slices):
        grad_state, grad_weights = carry
        state, inputs_t, grad_outputs_t = slices
        _, vjp = jax.vjp(step, weights, state, inputs_t)
        grad_weights_t, grad_state, grad_inputs = vjp((grad_state, grad_outputs_t))
        return (grad_state, jax.tree.map(jnp.add, grad_weights, grad_weights_t)), grad_inputs

    def back(carry, states, inputs, grad_outputs):
        return lax.scan(body, carry, (states, inputs, grad_outputs), reverse=True)

    def back_through_chunk(carry, slices):
        start, inputs, grad_outputs = slices
        _, (_, states) = _scan_with_states(step, weights, start, inputs)
        return back(carry, states, inputs, grad_outputs)

    carry = grad_final, jax.tree.map(jnp.zeros_like, weights)
    grads, count = _swap(grad_outputs), -(-inputs[0].shape[0] // keep)
    starts = kept.reshape(count, *grad_final.shape)
    if keep == 1:
        carry, grad_inputs = back(carry, starts, inputs, grads)
    else:
        (*head, head_grads), (*tail, tail_grads) = _chunks([*inputs, grads], keep)
        if len(tail_grads):
            carry, rest = back_through_chunk(carry, (starts[-1], tail, tail_grads))
        slices = starts[: head_grads.shape[0]], head, head_grads
        carry, grad_inputs = lax.scan(back_through_chunk, carry, slices, reverse=True)
        grad_inputs = [_joined(x) for x in grad_inputs]
        if len(tail_grads):
            pairs = zip(grad_inputs, rest, strict=True)
            grad_inputs = [jnp.concatenate(pair) for pair in pairs]
    grad_state, grad_weights = carry
    grad_weights = jax.tree.map(lambda g: g.sum(0), grad_weights)
    return grad_weights, [_swap(x) for x in grad_inputs], grad_state


def _joined(chunks):
    return chunks.reshape(chunks.shape[0] * chunks.shape[1], *chunks.shape[2:])


def _swap(x):
    return jnp.swapaxes(x, 0, 1)
