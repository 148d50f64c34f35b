"""h_t = a_t h_{t-1} + b_t, elementwise, as Pallas kernels: the states are the outputs.

A program holds one number of the state for each of its pairs and walks through time with it, or
against time with `reverse`. A complex number is two real ones: every array comes as a list of its
parts, one or two.

The adjoint l_t = g_t + conj(a_{t+1}) l_{t+1} is the same recurrence the other way, with the decay
of one step later: a program carries conj(a_t) l_t from each step to the one before. Nothing is
computed again, since the states are there. One walk gives both gradients, l_t by the inputs and
l_t conj(h_{t-1}) by the decay. A decay that is the same at all steps has its gradient summed in
registers. One that all sequences share is copied to each first, and its gradient is summed over
them afterwards.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from keras_coffee.backend.jax.pallas_driver import Tile, call, layout_of, run

# Most pairs per thread: what is loaded for two blocks of complex steps has to fit into registers.
PAIRS = 2
FIRST = np.int32(0)


def linear_forward(decay, inputs, state, *, reverse, interpret=False):
    """States `(B, T, ...)`. The decay has the rank of the inputs; its axes 0 and 1 may be 1."""
    arrays = _decays(decay, len(inputs)), _parts(inputs), _parts(state[:, None])
    (states,) = _call(_forward_kernel, arrays, arrays[1:2], reverse, interpret)
    return _whole(states, inputs.shape)


def linear_backward(grad_states, states, decay, state, *, reverse, interpret=False):
    """Gradients by the decay, the inputs and the initial state, dL/da + i dL/db by a + ib."""
    like = _decays(decay, len(states)), _parts(grad_states), _parts(state[:, None])
    arrays = *like, _parts(states)
    grads, *others = _call(_backward_kernel, arrays, like, not reverse, interpret)
    if len(decay) != len(states):
        grads = [x.sum(0) for x in grads]
    return tuple(map(_whole, (grads, *others), (decay.shape, states.shape, state.shape)))


def _decays(decay, batch):
    return _parts(jnp.broadcast_to(decay, (batch, *decay.shape[1:])))


def _parts(x):
    """The real part and, of a complex array, the imaginary one; features as one last axis."""
    x = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    return [x.real, x.imag] if jnp.iscomplexobj(x) else [x]


def _whole(parts, shape):
    return (lax.complex(*parts) if len(parts) == 2 else parts[0]).reshape(shape)


def _call(kernel, arrays, like, backwards, interpret):
    """Runs a kernel that walks through time, or backwards. Its results are like these arrays."""
    layout = layout_of(arrays[1][0].shape, 1, PAIRS, ["feature"])
    last, is_fixed = layout.length - 1, arrays[0][0].shape[1] == 1

    def order(k):
        """Time at the k-th step of the walk."""
        return last - k if backwards else k

    kernel = functools.partial(kernel, layout, is_fixed, order)
    return call(kernel, layout, jax.eval_shape(lambda: like), arrays, interpret)


def _forward_kernel(layout, is_fixed, order, decays, inputs, start, states):
    tile = Tile(layout)

    def load(k):
        return _load(tile, FIRST if is_fixed else order(k), decays), _load(tile, order(k), inputs)

    def advance(k, loaded, state):
        decay, drive = loaded
        state = _plus(_times(decay, state), drive)
        _store(tile, order(k), states, state)
        return state

    run(load, advance, layout.length, _load(tile, FIRST, start))


def _backward_kernel(layout, is_fixed, order, decays, grad_states, start, states, *to):
    (grad_decays, grad_inputs, grad_start), last = to, layout.length - 1
    tile = Tile(layout)
    start = _load(tile, FIRST, start)

    def load(k):
        before = order(jnp.minimum(k + 1, last))
        places = (
            (FIRST if is_fixed else order(k), decays),
            (order(k), grad_states),
            (before, states),
        )
        return [_load(tile, *place) for place in places]

    def retreat(k, loaded, carry):
        (decay, grad, previous), (carried, total) = loaded, carry
        adjoint = _plus(grad, carried)
        _store(tile, order(k), grad_inputs, adjoint)
        previous = [jnp.where(k == last, s, p) for s, p in zip(start, previous, strict=True)]
        grad_decay = _times(adjoint, _conjugate(previous))
        if is_fixed:
            total = _plus(total, grad_decay)
        else:
            _store(tile, order(k), grad_decays, grad_decay)
        return _times(_conjugate(decay), adjoint), total

    nothing = jax.tree.map(jnp.zeros_like, start)
    carried, total = run(load, retreat, layout.length, (nothing, nothing))
    _store(tile, FIRST, grad_start, carried)
    if is_fixed:
        _store(tile, FIRST, grad_decays, total)


def _load(tile, t, refs):
    return [tile.load_step(t, "feature", ref) for ref in refs]


def _store(tile, t, refs, parts):
    for ref, part in zip(refs, parts, strict=True):
        tile.store_step(t, "feature", ref, part)


def _plus(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def _times(a, b):
    if len(a) == 1:
        return [a[0] * b[0]]
    return [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]


def _conjugate(a):
    return [a[0], *(-x for x in a[1:])]
