"""h_t = a_t h_{t-1} + b_t, elementwise, as Pallas kernels: the states are the outputs.

A program holds one number of the state for each of its pairs and walks through time with it, or
against time with `reverse`. A complex number is two real ones: every array comes as a list of its
parts, one or two.

The adjoint l_t = g_t + conj(a_{t+1}) l_{t+1} is the same recurrence the other way, with the decay
of one step later: a program carries conj(a_t) l_t from each step to the one before. Nothing is
computed again, since the states are there. One walk gives both gradients, l_t by the inputs and
l_t conj(h_{t-1}) by the decay. A decay that is the same at all steps has its gradient summed in
registers; one that all sequences share, over the sequences afterwards.
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


def linear_forward(decay, inputs, state, *, reverse, interpret=False):
    """States `(B, T, ...)`. The decay has the rank of the inputs; its axes 0 and 1 may be 1."""
    decays, drives, starts = _parts(decay, 2), _parts(inputs, 2), _parts(state, 1)
    layout = layout_of(drives[0].shape, 1, PAIRS, ["feature"])
    kernel = functools.partial(_forward_kernel, layout, _order(layout, reverse))
    shapes = (jax.eval_shape(lambda: drives),)
    (states,) = call(kernel, layout, shapes, (decays, drives, starts), interpret)
    return _whole(states, inputs.shape)


def linear_backward(grad_states, states, decay, state, *, reverse, interpret=False):
    """Gradients by the decay, the inputs and the initial state, dL/da + i dL/db by a + ib."""
    arrays = _parts(grad_states, 2), _parts(states, 2), _parts(decay, 2), _parts(state, 1)
    layout = layout_of(arrays[0][0].shape, 1, PAIRS, ["feature"])
    kernel = functools.partial(_backward_kernel, layout, _order(layout, not reverse))
    rows = [jax.ShapeDtypeStruct((layout.batch, *x.shape[1:]), x.dtype) for x in arrays[2]]
    shapes = rows, *jax.eval_shape(lambda: (arrays[0], arrays[3]))
    grads, grad_inputs, grad_state = call(kernel, layout, shapes, arrays, interpret)
    if decay.shape[0] != layout.batch:
        grads = [x.sum(0) for x in grads]
    grad_inputs = _whole(grad_inputs, states.shape)
    return _whole(grads, decay.shape), grad_inputs, _whole(grad_state, state.shape)


def _parts(x, axes):
    """The real part and, of a complex array, the imaginary one, with features as one last axis."""
    x = x.reshape(*x.shape[:axes], math.prod(x.shape[axes:]))
    return [x.real, x.imag] if jnp.iscomplexobj(x) else [x]


def _whole(parts, shape):
    return (lax.complex(*parts) if len(parts) == 2 else parts[0]).reshape(shape)


def _order(layout, reverse):
    """The time of the k-th step of a walk."""
    return (lambda k: layout.length - 1 - k) if reverse else (lambda k: k)


def _forward_kernel(layout, order, decays, inputs, starts, states):
    tile = _Tile(layout)

    def load(k):
        return tile.load_parts(decays, order(k)), tile.load_parts(inputs, order(k))

    def advance(k, loaded, state):
        decay, drive = loaded
        state = _plus(_times(decay, state), drive)
        tile.store_parts(states, state, order(k))
        return state

    run(load, advance, layout.length, tile.load_parts(starts))


def _backward_kernel(layout, order, grad_states, states, decays, starts, *to):
    (grad_decays, grad_inputs, grad_starts), tile, last = to, _Tile(layout), layout.length - 1
    start = tile.load_parts(starts)
    is_summed = decays[0].shape[1] < layout.length

    def load(k):
        before = order(jnp.minimum(k + 1, last))
        pairs = (grad_states, order(k)), (states, before), (decays, order(k))
        return [tile.load_parts(*pair) for pair in pairs]

    def retreat(k, loaded, carry):
        (grad, previous, decay), (adjoint, total) = loaded, carry
        adjoint = _plus(grad, adjoint)
        tile.store_parts(grad_inputs, adjoint, order(k))
        previous = [jnp.where(k == last, s, p) for s, p in zip(start, previous, strict=True)]
        grad_decay = _times(adjoint, _conjugate(previous))
        if is_summed:
            total = _plus(total, grad_decay)
        else:
            tile.store_parts(grad_decays, grad_decay, order(k))
        return _times(_conjugate(decay), adjoint), total

    nothing = jax.tree.map(jnp.zeros_like, start)
    adjoint, total = run(load, retreat, layout.length, (nothing, nothing))
    tile.store_parts(grad_starts, adjoint)
    if is_summed:
        tile.store_parts(grad_decays, total, np.int32(0))


class _Tile(Tile):
    """Reads and writes numbers in parts, at a step, or without one those of the initial state."""

    def __init__(self, layout):
        super().__init__(layout)
        self.sizes = layout.batch, layout.length

    def load_parts(self, refs, *time):
        return [self.load(ref, self._index(ref, *time), self.inside["feature"]) for ref in refs]

    def store_parts(self, refs, parts, *time):
        for ref, part in zip(refs, parts, strict=True):
            self.store(ref, self._index(ref, *time), part, self.inside["feature"])

    def _index(self, ref, *time):
        """With zero for an axis along which a decay is the same."""
        triples = zip((self.sequence, *time), ref.shape, self.sizes, strict=False)
        zero = np.int32(0)
        return *(zero if size == 1 < whole else i for i, size, whole in triples), self.features


def _plus(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def _times(a, b):
    if len(a) == 1:
        return [a[0] * b[0]]
    return [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]


def _conjugate(a):
    return [a[0], *(-x for x in a[1:])]
