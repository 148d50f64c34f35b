"""Recurrences over time as Pallas kernels for NVIDIA GPUs: the driver, for any step function.

One program of a kernel holds a tile of states `(N, P)` in registers and walks through time with it:
n states, padded to a power of two, of P (batch, feature) pairs. The last axis goes over threads, so
that neighbours read neighbouring features; the sum over the states stays within a thread where P
fills a warp. Everything that a step sees has two axes: features are `(1, P)`, matrices over time
`(N, 1)`, states and weights `(N, P)`. The inputs of a block of steps are loaded while the block
before it is computed.

The gradient walks from the last step to the first with the adjoint of the state, and differentiates
each step in place: `jax.vjp` of the step is traced into the kernel, so a recurrence needs no
adjoint. The state before a step is a kept one, or is computed again: with `keep` steps between two
kept states, a program first walks forward through a chunk of so many steps and writes their states
to a buffer. The adjoints of the weights are summed over time in registers, and over the batch
afterwards.

Sequences are `(B, T, D)`, `(B, T, n)` or `(B, T)`, weights `(D, n)` or `(D, 1)`, states
`(B, D, n)`; a sequence or a weight may be None. Kept states are one flat array. The lowering
computes offsets in 64 bits for arrays of more than 2^32 bytes; what has to stay below 2^31 are the
numbers of pairs and steps.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Steps whose inputs are loaded together, while the steps before them are computed.
BLOCK = 4

WARP = 32
# Most states per thread. The gradient holds several numbers for each in registers.
FORWARD_STATES, BACKWARD_STATES = 8, 4
# A program is made smaller, down to one state per thread, until there are so many warps.
ENOUGH_WARPS = 1024


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """A recurrence as its step, on tiles.

    Attributes:
        kinds: what each sequence is: "feature" `(B, T, D)`, "state" `(B, T, n)` or "mask" `(B, T)`,
            which has no gradient. The first one is of kind "feature". The last one has the resets:
            where it is not 0, the state is zero before the step.
        advance: `advance(weights, state, inputs_t, **options)`, the next state. Its inputs, and
            those of `read`, come without the resets.
        read: `read(weights, state, inputs_t)`, the outputs, from the next state.
    """

    kinds: tuple[str, ...]
    advance: Callable
    read: Callable

    def kinds_of(self, sequences):
        """The kinds, None for a sequence that is absent, so that trees of both match."""
        pairs = zip(self.kinds, sequences, strict=True)
        return [None if x is None else kind for kind, x in pairs]


def forward(recurrence, sequences, weights, state, *, keep, interpret=False, **options):
    """Outputs, the final state, and the states before steps 0, k, 2k, ..., none if `keep` is 0."""
    kinds = recurrence.kinds_of(sequences)
    layout = layout_of(sequences[0].shape, state.shape[-1], FORWARD_STATES, kinds)
    array = functools.partial(jax.ShapeDtypeStruct, dtype=state.dtype)
    kept = array(layout.kept(keep)) if keep else None
    shapes = array(sequences[0].shape), array(layout.states), kept
    kernel = functools.partial(_forward_kernel, recurrence, options, layout, keep)
    arrays = sequences, jax.tree.map(jnp.transpose, weights), _pairs_last(state)
    outputs, final_state, kept = call(kernel, layout, shapes, arrays, interpret)
    kept = kept.reshape(-1) if keep else jnp.zeros(0, state.dtype)
    return outputs, _pairs_first(final_state, state.shape), kept


def backward(
    recurrence,
    grad_outputs,
    grad_final,
    kept,
    sequences,
    weights,
    *,
    keep,
    interpret=False,
    **options,
):
    """Gradients by the sequences, by the weights and by the initial state."""
    kinds, shape = recurrence.kinds_of(sequences), grad_final.shape
    layout = layout_of(grad_outputs.shape, shape[-1], BACKWARD_STATES, kinds)
    array = functools.partial(jax.ShapeDtypeStruct, dtype=grad_final.dtype)

    def gradient(kind, x):
        # Each tile has a part of the gradient by a matrix over time.
        parts = (layout.tiles,) if kind == "state" else ()
        return None if kind == "mask" else array((*parts, *x.shape))

    grads = jax.tree.map(gradient, kinds, sequences)
    grad_weights = jax.tree.map(lambda w: array((w.shape[1], layout.states[1])), weights)
    buffer = array((min(keep, layout.length), *layout.states)) if keep > 1 else None
    shapes = grads, grad_weights, array(layout.states), buffer
    kernel = functools.partial(_backward_kernel, recurrence, options, layout, keep, interpret)
    given = grad_outputs, _pairs_last(grad_final), kept.reshape(layout.kept(keep))
    arrays = given, sequences, jax.tree.map(jnp.transpose, weights)
    grads, grad_weights, grad_initial, _ = call(kernel, layout, shapes, arrays, interpret)
    grads = jax.tree.map(lambda kind, x: x.sum(0) if kind == "state" else x, kinds, grads)
    grad_weights = jax.tree.map(
        lambda w: _pairs_first(w, (*shape[:2], len(w))).sum(0), grad_weights
    )
    return grads, grad_weights, _pairs_first(grad_initial, shape)


# Memory follows the pairs in all arrays of states, as threads do: `(..., n, B D)`.


def _pairs_last(state):
    batch, dim, n = state.shape
    return state.reshape(batch * dim, n).T


def _pairs_first(states, shape):
    return states.T.reshape(shape)


# How the work is cut into tiles.


@dataclasses.dataclass(frozen=True)
class Layout:
    """The sizes of a problem, and of the tiles `(N, P)` that it is cut into."""

    batch: int
    length: int
    dim: int
    n: int
    width: int  # P
    warps: int
    kinds: list[str | None]

    @property
    def padded(self):
        return _power_of_two(self.n)

    @property
    def by_sequence(self):
        """Whether no tile has pairs of two sequences: it sums up gradients of their matrices."""
        return "state" in self.kinds

    @property
    def pairs(self):
        """Pairs of a sequence, or of all of them together."""
        return self.dim if self.by_sequence else self.batch * self.dim

    @property
    def tiles(self):
        return -(-self.pairs // self.width)

    @property
    def states(self):
        return self.n, self.batch * self.dim

    def kept(self, keep):
        return -(-self.length // keep), *self.states


def layout_of(shape, n, per_thread, kinds):
    """For inputs of `shape`, with at most so many states per thread."""
    batch, length, dim = shape
    padded = _power_of_two(n)
    while per_thread > 1 and batch * dim * padded < ENOUGH_WARPS * WARP * per_thread:
        per_thread //= 2
    pairs = dim if "state" in kinds else batch * dim
    width = min(max(1, WARP * per_thread // padded), _power_of_two(pairs))
    warps = min(max(1, padded * width // (WARP * per_thread)), 16)
    return Layout(batch, length, dim, n, width, warps, kinds)


def _power_of_two(number):
    """The smallest one that is no smaller."""
    return 1 << max(0, number - 1).bit_length()


def call(kernel, layout, shapes, arrays, interpret):
    """Runs the kernel. Its references come in trees, as the arrays and the shapes of results do."""
    programs = layout.tiles * (layout.batch if layout.by_sequence else 1)
    if not programs:  # The sums over nothing are zero.
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    parameters = _pallas().triton.CompilerParams(num_warps=layout.warps, num_stages=1)
    run = _pallas().pallas_call(
        kernel, shapes, grid=(programs,), compiler_params=parameters, interpret=interpret
    )
    return run(*arrays)


def _pallas():
    # Imported where a kernel is traced: it takes a while, and other platforms do without.
    import jax.experimental.pallas.triton

    return jax.experimental.pallas


class Tile:
    """What one program works on: where it reads and writes."""

    def __init__(self, layout):
        program, dim = _pallas().program_id(0), np.int32(layout.dim)
        lanes = lax.broadcasted_iota(jnp.int32, (1, layout.width), 1)
        self.states = lax.broadcasted_iota(jnp.int32, (layout.padded, 1), 0)
        if layout.by_sequence:
            tiles = np.int32(layout.tiles)
            self.sequence, self.number = lax.div(program, tiles), lax.rem(program, tiles)
            self.features = self.number * layout.width + lanes
            self.pairs = self.sequence * dim + self.features
            inside = self.features < layout.dim
        else:
            self.pairs = program * layout.width + lanes
            self.sequence, self.features = lax.div(self.pairs, dim), lax.rem(self.pairs, dim)
            inside = self.pairs < layout.pairs
        states_inside = self.states < layout.n
        self.inside = {"feature": inside, "mask": inside, "state": states_inside}
        self.valid = inside & states_inside
        self.is_padded = layout.padded > layout.n or layout.pairs % layout.width > 0

    def load(self, ref, index, inside):
        return _pallas().triton.load(ref.at[index], mask=inside, other=0)

    def store(self, ref, index, values, inside):
        _pallas().triton.store(ref.at[index], values, mask=inside)

    def load_weights(self, refs):
        return jax.tree.map(
            lambda ref: self.load(ref, (self.rows(ref), self.features), self.has_row(ref)), refs
        )

    def rows(self, ref):
        """The states, or one row for a weight that those of a feature share."""
        return self.states if ref.shape[0] > 1 else lax.broadcasted_iota(jnp.int32, (1, 1), 0)

    def has_row(self, ref):
        return self.valid if ref.shape[0] > 1 else self.inside["feature"]

    def store_sum(self, ref, values):
        """The gradient by a weight, summed over a sequence."""
        self.store(ref, (self.rows(ref), self.pairs), values, self.has_row(ref))

    def load_states(self, ref, *chunk):
        return self.load(ref, (*chunk, self.states, self.pairs), self.valid)

    def store_states(self, ref, states, *chunk, condition=True):
        self.store(ref, (*chunk, self.states, self.pairs), states, self.valid & condition)

    def at(self, kind, t):
        """The index of step `t` of a sequence."""
        if kind == "mask":  # one number for all pairs, each of which loads it
            return self.sequence + lax.full_like(self.features, 0), t
        return self.sequence, t, self.features if kind == "feature" else self.states

    def load_step(self, t, kind, ref):
        return self.load(ref, self.at(kind, t), self.inside[kind])

    def store_step(self, t, kind, ref, values, *part):
        self.store(ref, (*part, *self.at(kind, t)), values, self.inside[kind])

    def load_inputs(self, kinds, refs, t):
        return jax.tree.map(functools.partial(self.load_step, t), kinds, refs)

    def store_gradient(self, t, kind, ref, gradient):
        """A gradient, of the shape of the tile, by what `load_step` gave."""
        if kind == "state":
            self.store_step(t, kind, ref, jnp.sum(gradient, 1, keepdims=True), self.number)
        elif kind == "feature":
            self.store_step(t, kind, ref, jnp.sum(gradient, 0, keepdims=True))


# The kernels.


def _step(recurrence, options, tile):
    """`step(weights, state, inputs_t) -> (state, outputs_t)`."""

    def step(weights, state, inputs_t):
        *inputs_t, reset = inputs_t
        if reset is not None:
            state = jnp.where(reset != 0, 0, state)
        state = recurrence.advance(weights, state, inputs_t, **options)
        if tile.is_padded:  # What only fills the tile must not reach a sum: zero times infinity.
            state = jnp.where(tile.valid, state, 0)
        return state, recurrence.read(weights, state, inputs_t)

    return step


def _forward_kernel(
    recurrence, options, layout, keep, sequences, weights, initial, outputs, final, kept
):
    tile = Tile(layout)
    weights, step = tile.load_weights(weights), _step(recurrence, options, tile)

    def advance(t, inputs_t, state):
        if keep:
            chunk, within = lax.div(t, np.int32(keep)), lax.rem(t, np.int32(keep))
            tile.store_states(kept, state, chunk, condition=within == 0)
        state, outputs_t = step(weights, state, inputs_t)
        tile.store_step(t, "feature", outputs, outputs_t)
        return state

    load = functools.partial(tile.load_inputs, layout.kinds, sequences)
    tile.store_states(final, run(load, advance, layout.length, tile.load_states(initial)))


def _backward_kernel(recurrence, options, layout, keep, interpret, given, sequences, weights, *to):
    (grad_outputs, grad_final, kept), (grads, grad_weights, grad_initial, buffer) = given, to
    tile, kinds = Tile(layout), layout.kinds
    weights, step = tile.load_weights(weights), _step(recurrence, options, tile)
    inputs = functools.partial(tile.load_inputs, kinds, sequences)

    def retreat(states, start, size, carry):
        """Back through the steps from `start` on, the states before them in `states`."""

        def load(i):
            k = size - 1 - i
            grad_outputs_t = tile.load_step(start + k, "feature", grad_outputs)
            return tile.load_states(states, k), inputs(start + k), grad_outputs_t

        def body(i, loaded, carry):
            state, inputs_t, grad_outputs_t = loaded
            grad_state, grad_weights = carry
            # Inputs of the full shape have their gradients summed once, not at each use of them.
            inputs_t = jax.tree.map(lambda x: jnp.broadcast_to(x, state.shape), inputs_t)
            _, vjp = jax.vjp(step, weights, state, inputs_t)
            grad_weights_t, grad_state, grads_t = vjp((grad_state, grad_outputs_t))
            store = functools.partial(tile.store_gradient, start + size - 1 - i)
            jax.tree.map(store, kinds, grads, grads_t)
            return grad_state, jax.tree.map(jnp.add, grad_weights, grad_weights_t)

        return run(load, body, size, carry)

    def recompute(c, carry, size):
        """Back through chunk `c`: first forward, for its states."""
        start = c * keep

        def body(i, inputs_t, state):
            tile.store_states(buffer, state, i)
            return step(weights, state, inputs_t)[0]

        run(lambda i: inputs(start + i), body, size, tile.load_states(kept, c))
        _barrier(interpret)  # A state may be read by another thread than wrote it.
        carry = retreat(buffer, start, size, carry)
        _barrier(interpret)
        return carry

    carry = tile.load_states(grad_final), jax.tree.map(jnp.zeros_like, weights)
    if keep == 1:
        carry = retreat(kept, 0, layout.length, carry)
    else:
        carry = _chunks_backward(layout.length, keep, recompute, carry)
    tile.store_states(grad_initial, carry[0])
    jax.tree.map(tile.store_sum, grad_weights, carry[1])


def _chunks_backward(length, size, body, carry):
    """`carry = body(i, carry, size)` for each chunk, from the last, which may be shorter, on."""
    whole, rest = divmod(length, size)
    if rest:
        carry = body(np.int32(whole), carry, rest)
    return _loop(whole, lambda i, carry: body(whole - 1 - i, carry, size), carry)


def run(load, body, length, carry):
    """`carry = body(i, load(i), carry)` for each i below `length`, loading a block ahead."""

    def block_of_loads(first):
        return [load(jnp.minimum(first + i, length - 1)) for i in range(BLOCK)]

    def block(k, carry):
        carry, loaded = carry
        following = block_of_loads((k + 1) * BLOCK)
        for i in range(BLOCK):
            carry = body(k * BLOCK + i, loaded[i], carry)
        return carry, following

    whole, rest = divmod(length, BLOCK)
    carry, loaded = _loop(whole, block, (carry, block_of_loads(np.int32(0))))
    for i in range(rest):
        carry = body(np.int32(whole * BLOCK + i), loaded[i], carry)
    return carry


def _loop(count, body, carry):
    def of_32_bits(i, carry):  # whatever JAX makes of Python's integers
        return body(i.astype(np.int32), carry)

    return lax.fori_loop(0, count, of_32_bits, carry) if count else carry


def _barrier(interpret):
    if not interpret:
        _pallas().triton.debug_barrier()
