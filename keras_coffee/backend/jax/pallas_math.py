"""Recurrences over time as Pallas kernels for NVIDIA GPUs: the driver, for any step function.

One program of a kernel holds a tile of states `(N, P)` in registers and walks through time with it:
n states, padded to a power of two, of P (batch, feature) pairs. The last axis goes over threads, so
that neighbours read neighbouring features; the sum over the states stays within a thread where P
fills a warp. Everything that a step sees has two axes: features are `(1, P)`, matrices over time
`(N, 1)`, states and weights `(N, P)`. A recurrence is two functions, `advance(weights, state,
inputs_t)`, the next state, and `read(weights, state, inputs_t)`, the outputs; the kernel of the
gradient differentiates them.

The lowering computes offsets in 64 bits for arrays of more than 2^32 bytes; what has to stay below
2^31 are the numbers of pairs and of steps.
"""

import dataclasses
import functools

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


def is_available():
    """Whether this JAX has Pallas with the parts of its Triton backend that the kernels use."""
    try:
        from jax.experimental import pallas  # noqa: F401
        from jax.experimental.pallas import triton
    except ImportError:
        return False
    return all(hasattr(triton, name) for name in ("CompilerParams", "debug_barrier", "load"))


def forward(recurrence, weights, sequences, initial_state, *, kinds, keep, interpret):
    """Outputs `(B, T, D)`, the final state `(B, D, n)` and the kept states.

    Of the `sequences`, those of kind "feature" are `(B, T, D)`, "state" `(B, T, n)`, "mask"
    `(B, T)`; the first is of kind "feature". `weights` are stacked, `(W, D, n)`.
    """
    inputs, dtype = sequences[0], initial_state.dtype
    layout = _layout(inputs, initial_state, kinds, FORWARD_STATES)
    shapes = [
        jax.ShapeDtypeStruct(inputs.shape, inputs.dtype),
        jax.ShapeDtypeStruct(layout.states_shape(1), dtype),
    ]
    if keep:
        shapes.append(jax.ShapeDtypeStruct(layout.kept_shape(keep), dtype))
    kernel = functools.partial(_forward_kernel, recurrence, layout, kinds, keep)
    arrays = weights.swapaxes(1, 2), *sequences, _pairs_last(initial_state)
    outputs, final_state, *kept = _call(kernel, layout, shapes, arrays, interpret)
    final_state = _pairs_first(final_state, initial_state.shape)
    return outputs, final_state, kept[0].reshape(-1) if keep else jnp.zeros(0, dtype)


def backward(
    recurrence, grad_outputs, grad_final, kept, weights, sequences, *, kinds, keep, interpret
):
    """Gradients of the sequences (None for a mask), of the weights and of the initial state."""
    dtype = grad_final.dtype
    layout = _layout(sequences[0], grad_final, kinds, BACKWARD_STATES)
    shapes = [
        jax.ShapeDtypeStruct(layout.states_shape(count), dtype) for count in (1, len(weights))
    ]
    for sequence, kind in zip(sequences, kinds, strict=True):
        parts = (layout.tiles,) if kind == "state" else ()
        if kind != "mask":
            shapes.append(jax.ShapeDtypeStruct((*parts, *sequence.shape), sequence.dtype))
    if keep > 1:
        shapes.append(jax.ShapeDtypeStruct(layout.states_shape(min(keep, layout.length)), dtype))
    kernel = functools.partial(_backward_kernel, recurrence, layout, kinds, keep, interpret)
    kept = kept.reshape(layout.kept_shape(keep))
    arrays = (weights.swapaxes(1, 2), *sequences, kept, grad_outputs, _pairs_last(grad_final))
    grad_initial, grad_weights, *rest = _call(kernel, layout, shapes, arrays, interpret)
    grad_weights = _pairs_first(grad_weights, (len(weights), *grad_final.shape)).sum(1)
    grad_initial = _pairs_first(grad_initial, grad_final.shape)
    rest = iter(rest)
    grads = [
        None if kind == "mask" else next(rest).sum(0) if kind == "state" else next(rest)
        for kind in kinds
    ]
    return grads, grad_weights, grad_initial


# Memory follows the pairs in all arrays of states, as threads do: `(..., n, B D)`.


def _pairs_last(state):
    batch, dim, n = state.shape
    return state.reshape(1, batch * dim, n).swapaxes(1, 2)


def _pairs_first(states, shape):
    return states.swapaxes(1, 2).reshape(shape)


# How the work is cut into tiles.


@dataclasses.dataclass(frozen=True)
class _Layout:
    batch: int
    length: int
    dim: int
    n: int
    width: int  # P
    warps: int
    by_sequence: bool  # no tile has pairs of two sequences

    @property
    def padded(self):
        return _power_of_two(self.n)

    @property
    def tiles(self):
        """Tiles of a sequence, or of all of them together."""
        return -(-(self.dim if self.by_sequence else self.batch * self.dim) // self.width)

    @property
    def programs(self):
        return self.tiles * (self.batch if self.by_sequence else 1)

    def states_shape(self, count):
        return count, self.n, self.batch * self.dim

    def kept_shape(self, keep):
        return self.states_shape(-(-self.length // keep))


def _layout(inputs, state, kinds, per_thread):
    (batch, length, dim), n = inputs.shape, state.shape[-1]
    padded, by_sequence = _power_of_two(n), "state" in kinds
    while per_thread > 1 and batch * dim * padded < ENOUGH_WARPS * WARP * per_thread:
        per_thread //= 2
    # What a sequence's matrices over time get from a tile is a sum over its pairs.
    pairs = dim if by_sequence else batch * dim
    width = min(max(1, WARP * per_thread // padded), _power_of_two(pairs))
    warps = min(max(1, padded * width // (WARP * per_thread)), 16)
    return _Layout(batch, length, dim, n, width, warps, by_sequence)


def _power_of_two(number):
    """The smallest one that is no smaller."""
    return 1 << max(0, number - 1).bit_length()


def _call(kernel, layout, shapes, arrays, interpret):
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    if not layout.batch:
        return [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    call = pallas.pallas_call(
        kernel,
        shapes,
        grid=(layout.programs,),
        compiler_params=triton.CompilerParams(num_warps=layout.warps, num_stages=1),
        interpret=interpret,
    )
    return call(*arrays)


class _Tile:
    """What one program works on: where it reads and writes."""

    def __init__(self, layout, dtype):
        from jax.experimental import pallas

        program, dim = pallas.program_id(0), np.int32(layout.dim)
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
            inside = self.pairs < layout.batch * layout.dim
        states_inside = self.states < layout.n
        self.inside = {"feature": inside, "mask": inside, "state": states_inside}
        self.valid = inside & states_inside
        self.padded = layout.padded > layout.n or bool(
            (layout.dim if layout.by_sequence else layout.batch * layout.dim) % layout.width
        )
        self.dtype = dtype

    def step_of(self, recurrence):
        """`step(weights, state, inputs_t) -> (state, outputs_t)`."""
        advance, read = recurrence

        def step(weights, state, inputs_t):
            state = advance(weights, state, inputs_t)
            if self.padded:  # What only fills the tile must not reach a sum: zero times infinity.
                state = jnp.where(self.valid, state, 0)
            return state, read(weights, state, inputs_t)

        return step

    def load(self, ref, index, inside):
        from jax.experimental.pallas import triton

        return triton.load(ref.at[index], mask=inside, other=0).astype(self.dtype)

    def store(self, ref, index, values, inside):
        from jax.experimental.pallas import triton

        triton.store(ref.at[index], values.astype(ref.dtype), mask=inside)

    def load_weights(self, ref):
        weights = range(ref.shape[0])
        return [self.load(ref, (k, self.states, self.features), self.valid) for k in weights]

    def at(self, kind, t):
        """The index of step `t` of a sequence."""
        last = {"feature": (self.features,), "state": (self.states,), "mask": ()}[kind]
        return self.sequence, t, *last

    def load_inputs(self, refs, kinds, t):
        pairs = zip(refs, kinds, strict=True)
        return [self.load(ref, self.at(kind, t), self.inside[kind]) for ref, kind in pairs]

    def store_gradients(self, refs, kinds, t, gradients):
        """Gradients, of the shape of the tile, of what `load_inputs` gave."""
        refs = iter(refs)
        for kind, gradient in zip(kinds, gradients, strict=True):
            if kind != "mask":
                part = (self.number,) if kind == "state" else ()
                gradient = jnp.sum(gradient, 1 if kind == "state" else 0, keepdims=True)
                self.store(next(refs), (*part, *self.at(kind, t)), gradient, self.inside[kind])

    def load_states(self, ref, k):
        return self.load(ref, (k, self.states, self.pairs), self.valid)

    def store_states(self, ref, k, states, condition=True):
        self.store(ref, (k, self.states, self.pairs), states, self.valid & condition)


# The kernels.


def _forward_kernel(recurrence, layout, kinds, keep, weights_ref, *refs):
    count = len(kinds)
    sequence_refs, (initial_ref, outputs_ref, final_ref, *kept_refs) = refs[:count], refs[count:]
    tile = _Tile(layout, initial_ref.dtype)
    weights, step = tile.load_weights(weights_ref), tile.step_of(recurrence)

    def advance(t, inputs_t, state):
        for ref in kept_refs:
            chunk, within = lax.div(t, np.int32(keep)), lax.rem(t, np.int32(keep))
            tile.store_states(ref, chunk, state, within == 0)
        state, outputs = step(weights, state, inputs_t)
        tile.store(outputs_ref, tile.at("feature", t), outputs, tile.inside["feature"])
        return state

    load = functools.partial(tile.load_inputs, sequence_refs, kinds)
    state = _run(load, advance, layout.length, tile.load_states(initial_ref, 0))
    tile.store_states(final_ref, 0, state)


def _backward_kernel(recurrence, layout, kinds, keep, interpret, weights_ref, *refs):
    count = len(kinds)
    sequence_refs, (kept_ref, *others) = refs[:count], refs[count:]
    grad_outputs_ref, grad_final_ref, grad_initial_ref, grad_weights_ref, *grad_refs = others
    tile = _Tile(layout, grad_final_ref.dtype)
    weights, step = tile.load_weights(weights_ref), tile.step_of(recurrence)

    inputs = functools.partial(tile.load_inputs, sequence_refs, kinds)

    def retreat(states_ref, start, size, carry):
        """Back through the steps from `start` on, the states before them in `states_ref`."""

        def load(i):
            k = size - 1 - i
            grad_outputs_t = tile.load_inputs([grad_outputs_ref], ["feature"], start + k)[0]
            return tile.load_states(states_ref, k), inputs(start + k), grad_outputs_t

        def body(i, loaded, carry):
            state, inputs_t, grad_outputs_t = loaded
            grad_state, grad_weights = carry
            # Inputs of the full shape have their gradients summed once, not at each use of them.
            inputs_t = [jnp.broadcast_to(x, state.shape) for x in inputs_t]
            _, vjp = jax.vjp(step, weights, state, inputs_t)
            grad_weights_t, grad_state, grad_inputs_t = vjp((grad_state, grad_outputs_t))
            tile.store_gradients(grad_refs, kinds, start + size - 1 - i, grad_inputs_t)
            return grad_state, jax.tree.map(jnp.add, grad_weights, grad_weights_t)

        return _run(load, body, size, carry)

    def recompute(c, carry, size):
        """Back through chunk `c`: first forward, for its states."""
        start, states_ref = c * keep, grad_refs[-1]

        def body(i, inputs_t, state):
            tile.store_states(states_ref, i, state)
            return step(weights, state, inputs_t)[0]

        _run(lambda i: inputs(start + i), body, size, tile.load_states(kept_ref, c))
        _barrier(interpret)  # A state may be read by another thread than wrote it.
        carry = retreat(states_ref, start, size, carry)
        _barrier(interpret)
        return carry

    carry = tile.load_states(grad_final_ref, 0), jax.tree.map(jnp.zeros_like, weights)
    if keep == 1:
        carry = retreat(kept_ref, 0, layout.length, carry)
    else:
        carry = _chunks_backward(layout.length, keep, recompute, carry)
    grad_state, grad_weights = carry
    tile.store_states(grad_initial_ref, 0, grad_state)
    for k, gradient in enumerate(grad_weights):
        tile.store_states(grad_weights_ref, k, gradient)


def _chunks_backward(length, size, body, carry):
    """`carry = body(i, carry, size)` for each chunk, from the last, which may be shorter, on."""
    whole, rest = divmod(length, size)
    if rest:
        carry = body(np.int32(whole), carry, rest)
    return _loop(whole, lambda i, carry: body(whole - 1 - i, carry, size), carry)


def _run(load, body, length, carry):
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
        from jax.experimental.pallas import triton

        triton.debug_barrier()
