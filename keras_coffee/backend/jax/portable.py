"""Any recurrence in JAX's own operations: one `lax.scan` forward, one reversed `lax.scan` back.

They run wherever there is no kernel: for a user's cell, on TPUs, on several devices, in exported
programs. Loops are time-major, because `lax.scan` slices the first axis. kernels.py says what
arguments and results are.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax


def forward(*tensors, recurrence, keep):
    """Outputs, final state and the states before every `keep`-th step."""
    sequences, weights, state = recurrence.split(tensors)
    sequences = _time_major(sequences)
    step = functools.partial(_step(recurrence), weights)
    if keep == 0:
        state, outputs = lax.scan(step, state, sequences)
        kept = [jnp.zeros((0,), x.dtype) for x in state]
    elif keep == 1:
        state, (outputs, kept) = _with_states(step, state, sequences)
    else:
        state, (outputs, kept) = _in_chunks(step, state, sequences, keep)
    return [jnp.swapaxes(outputs, 0, 1), *state, *(x.reshape(-1) for x in kept)]


def backward(grad_outputs, *rest, recurrence, keep):
    """Gradients by all tensors that can have one, in order."""
    count = recurrence.state_count
    grad_final, kept, tensors = rest[:count], rest[count : 2 * count], rest[2 * count :]
    sequences, weights, state = recurrence.split(tensors)
    batch, length = grad_outputs.shape[:2]
    if recurrence.broadcasts:
        # One copy of the weights per sequence: their gradients are then added elementwise over
        # time, and summed over the batch once.
        shapes = [w.shape for w in _moving(weights)]
        copies = [_copies(w, batch, state[0].ndim) for w in _moving(weights)]
        weights = _filled(weights, copies)
    step, sequences = _step(recurrence), _time_major(sequences)
    starts = [x.reshape(-(-length // keep), *s.shape) for x, s in zip(kept, state, strict=True)]
    carry = list(grad_final), [jnp.zeros_like(w) for w in _moving(weights)]
    slices = starts, sequences, jnp.swapaxes(grad_outputs, 0, 1)
    if keep == 1:
        carry, grads = _back(step, weights, carry, *slices)
    else:
        carry, grads = _back_in_chunks(step, weights, carry, *slices, keep)
    grad_state, grad_weights = carry
    if recurrence.broadcasts:
        pairs = zip(grad_weights, shapes, strict=True)
        grad_weights = [g.sum(0).reshape(shape) for g, shape in pairs]
    return [*_time_major(grads), *grad_weights, *grad_state]


def _copies(weight, batch, rank):
    """A weight for each sequence, aligned with a state of this rank."""
    shape = *(1,) * max(0, rank - 1 - weight.ndim), *weight.shape
    return jnp.broadcast_to(weight.reshape(shape), (batch, *shape))


def is_differentiable(x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _moving(tensors):
    """Those that can have a gradient."""
    return [x for x in tensors if is_differentiable(x)]


def _filled(tensors, moving):
    """The tensors with others in the places of those that can have a gradient."""
    rest = iter(moving)
    return [next(rest) if is_differentiable(x) else x for x in tensors]


@functools.cache
def _step(recurrence):
    """`step(weights, state, slices) -> state, outputs`; cached, so that it is traced once."""

    def step(weights, state, slices):
        steps = recurrence.steps(weights)
        new = steps.step(state, slices)
        return new, steps.read(new, slices)

    return step


def _with_states(step, state, sequences):
    def body(state, slices):
        new, outputs = step(state, slices)
        return new, (outputs, state)

    return lax.scan(body, state, sequences)


def _in_chunks(step, state, sequences, size):
    def chunk(state, slices):
        new, outputs = lax.scan(step, state, slices)
        return new, (outputs, state)

    head, tail = _cut(sequences, size)
    state, (outputs, starts) = lax.scan(chunk, state, head)
    outputs = _joined(outputs)
    if len(tail[0]):
        state, (rest, start) = chunk(state, tail)
        outputs = jnp.concatenate([outputs, rest])
        starts = [jnp.concatenate([a, b[None]]) for a, b in zip(starts, start, strict=True)]
    return state, (outputs, starts)


def _cut(sequences, size):
    """Whole chunks, `(chunks, size, ...)`, and what is left."""
    whole = sequences[0].shape[0] // size * size
    head = [x[:whole].reshape(whole // size, size, *x.shape[1:]) for x in sequences]
    return head, [x[whole:] for x in sequences]


def _joined(chunks):
    return chunks.reshape(chunks.shape[0] * chunks.shape[1], *chunks.shape[2:])


def _back(step, weights, carry, states, sequences, grad_outputs):
    """From the last step to the first: what is carried, and gradients by the sequences."""

    def body(carry, slices):
        grad_state, grad_weights = carry
        state, inputs, grad_outputs = slices

        def of(moving_weights, state, moving_inputs):
            return step(_filled(weights, moving_weights), state, _filled(inputs, moving_inputs))

        _, vjp = jax.vjp(of, _moving(weights), state, _moving(inputs))
        grad_weights_t, grad_state, grad_inputs = vjp((list(grad_state), grad_outputs))
        return (grad_state, jax.tree.map(jnp.add, grad_weights, grad_weights_t)), grad_inputs

    return lax.scan(body, carry, (states, sequences, grad_outputs), reverse=True)


def _back_in_chunks(step, weights, carry, starts, sequences, grad_outputs, size):
    """Computes the states of each chunk again, then goes back through them."""

    def chunk(carry, slices):
        start, *sequences, grad_outputs = slices
        _, (_, states) = _with_states(functools.partial(step, weights), start, sequences)
        return _back(step, weights, carry, states, sequences, grad_outputs)

    head, tail = _cut([*sequences, grad_outputs], size)
    whole = head[0].shape[0]
    rest = None
    if len(tail[0]):
        carry, rest = chunk(carry, [[x[-1] for x in starts], *tail])
    carry, grads = lax.scan(chunk, carry, [[x[:whole] for x in starts], *head], reverse=True)
    grads = [_joined(x) for x in grads]
    if rest is not None:
        grads = [jnp.concatenate(pair) for pair in zip(grads, rest, strict=True)]
    return carry, grads


def _time_major(sequences):
    return [jnp.swapaxes(x, 0, 1) for x in sequences]


# The linear recurrence, whose outputs are its states.


def linear_forward(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, in a list."""

    def body(state, slices):
        state = slices[0] * state + slices[1]
        return state, state

    sequences = _time_major([jnp.broadcast_to(decay, inputs.shape), inputs])
    _, states = lax.scan(body, initial_state, tuple(sequences), reverse=reverse)
    return [jnp.swapaxes(states, 0, 1)]


def linear_backward(grad_states, states, decay, initial_state, *, reverse):
    """Gradients by decay, inputs and initial state.

    The adjoint of a linear scan is a linear scan the other way, with decays one step later.
    """
    whole = jnp.broadcast_to(decay, states.shape)
    start, zero = initial_state[:, None], jnp.zeros_like(whole[:, :1])
    if reverse:
        following = jnp.concatenate([zero, whole[:, :-1]], 1)
        previous, first = jnp.concatenate([states[:, 1:], start], 1), -1
    else:
        following = jnp.concatenate([whole[:, 1:], zero], 1)
        previous, first = jnp.concatenate([start, states[:, :-1]], 1), 0
    zeros = jnp.zeros_like(initial_state)
    (grads,) = linear_forward(following, grad_states, zeros, reverse=not reverse)
    grad_decay = grads * previous
    axes = tuple(k for k in (0, 1) if decay.shape[k] != states.shape[k])
    grad_decay = grad_decay.sum(axes, keepdims=True) if axes else grad_decay
    return [grad_decay, grads, whole[:, first] * grads[:, first]]
