"""Scans for PyTorch on a GPU in Triton, one step after another, forward and backward.

A program's tile is [N, P]: P pairs of sequence and feature with the N states of each. Triton deals
it out to the lanes of a warp along P first. With P = 32 a lane has all states of a pair, and sums
over them stay in its registers. Where pairs are too few to fill the card, P is smaller and the
states of a pair lie in several lanes: a step then takes fewer instructions, which is what bounds
it. Where features share a sequence, a program has features of one sequence of the batch only, so
that what they share is the same for all of them.

The state stays in registers from the first step to the last. Kept states are slabs, one for each
step that is kept, in which each program has its n rows of P numbers in one piece. If not all are
kept, the backward kernel goes from one kept state to the next again, and writes the states between
them to a scratch slab. The lanes that read a number there may be others than those that wrote it,
but they belong to the same program, and no other program has its part of a slab. So a barrier of
the program's warps before and after is enough: one for the states to be there before they are read,
one for all to be read before those of the next stretch overwrite them.
"""

import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_recurrence import (
    Gradients,
    Place,
    Span,
    Tile,
    data,
    device_of,
    empty_results,
    in_states,
    keep_mode,
    places_of_gradients,
    rows,
    run,
    run_back,
    store_sums,
    zeros_for,
)

# Not even that one is divisible by 16 may be known: several pairs would be loaded at once by a lane
# and then have to be dealt out again.
_INTEGERS = ["batch", "length", "dim", "n", "keep"]

# Hopper's 132 multiprocessors have 16,896 lanes; two warps for each scheduler hide latencies.
_LANES = 2**15

# With more states a lane of a backward kernel would not get by with 255 registers, nor with so many
# if there are more sequences of its own and weights than these.
_STATES_IN_LANE = 8
_ARRAYS = 7

# Where features share a sequence a program has more pairs, or there would be more sums over a
# tile's features to do, and fewer, or there would be more to do for one.
_WIDTHS_IF_SHARED = 8, 16


def forward(recurrence, sequences, weights, state, *, keep, **options):
    """Outputs, the final state, and the states before every `keep`-th step (0: none)."""
    outputs, final_state, kept = results = empty_results(sequences[0], state, keep)
    tensors = (state, outputs, final_state, kept)
    _launch(_forward, recurrence, options, sequences, weights, tensors, state.shape, keep)
    return results


def backward(recurrence, grad_outputs, grad_final, kept, sequences, weights, *, keep, **options):
    """Gradients by the sequences, the weights and the initial state."""
    batch, length, dim = sequences[0].shape
    excess, is_shared = _excess(recurrence, sequences, weights), recurrence.is_shared(sequences)
    tile = _tiling(batch * dim, grad_final.shape[-1], excess, is_shared)[1]
    gradients = Gradients(recurrence, sequences, weights, grad_final, triton.cdiv(dim, tile))
    size = min(keep, length) * grad_final.numel() if keep > 1 else 0
    tensors = (grad_outputs, grad_final, kept, grad_final.new_empty(size))
    tensors += (*recurrence.split(gradients.sequences), gradients.weights, gradients.initial)
    _launch(_backward, recurrence, options, sequences, weights, tensors, grad_final.shape, keep)
    return gradients.summed()


def _excess(recurrence, sequences, weights):
    """How many arrays there are beyond those for which a lane has the most states."""
    return max(0, sum(x is not None for x in (*recurrence.split(sequences)[0], *weights)) - _ARRAYS)


def _tiling(pairs, n, excess, is_shared):
    """N, P, how many states of a pair a lane has, and the number of warps."""
    most = _STATES_IN_LANE // 2 if excess else _STATES_IN_LANE
    narrowest, widest = _WIDTHS_IF_SHARED if is_shared else (1, 32)
    states = triton.next_power_of_2(n)
    tile = max(narrowest, 32 // states)
    while tile < widest and tile * states < 32 * most and 16 * pairs >= _LANES * tile:
        tile *= 2
    in_lane = min(max(1, tile * states // 32), most)
    return states, tile, in_lane, max(1, tile * states // (32 * in_lane))


def _group(recurrence, own, shared, in_lane, excess, is_backward):
    """How many steps are loaded ahead, a power of two."""
    numbers = sum(x is not None for x in own)
    # Backward it is a gradient and a state, but not what features share.
    numbers += 1 + in_lane if is_backward else in_lane * sum(x is not None for x in shared)
    fit = max(1, (recurrence.ahead[is_backward] - excess * in_lane) // numbers)
    return min(4 if is_backward else 8, 1 << (fit.bit_length() - 1))


def _launch(kernel, recurrence, options, sequences, weights, tensors, shape, keep):
    batch, dim, n = shape
    if not batch * dim:
        return
    own, shared = recurrence.split(sequences)
    excess, is_shared = _excess(recurrence, sequences, weights), recurrence.is_shared(sequences)
    states, tile, in_lane, warps = _tiling(batch * dim, n, excess, is_shared)
    programs = batch * triton.cdiv(dim, tile) if is_shared else triton.cdiv(batch * dim, tile)
    pairs_in_turn = dim if is_shared else batch * dim
    with device_of(sequences[0]):
        kernel[(programs,)](
            recurrence.functions,
            recurrence.constants(options),
            own,
            shared,
            recurrence.with_axes(weights),
            *tensors,
            *(batch, sequences[0].shape[1], dim, n, keep),
            KEEP=keep_mode(keep),
            IS_SHARED=is_shared,
            N=states,
            P=tile,
            ALL_STATES=n == states,
            ALL_PAIRS=pairs_in_turn % tile == 0,
            GROUP=_group(recurrence, own, shared, in_lane, excess, kernel is _backward),
            num_warps=warps,
        )


@triton.jit
def _tile(
    batch,
    dim,
    n,
    IS_SHARED: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
):
    """A program's tile, and its place in a slab."""
    program, lane, state = tl.program_id(0).to(tl.int64), tl.arange(0, P)[None, :], rows(N)
    # What a program has are neighbours, up to the end of its sequence or of all of them.
    first, end, part = program * P, batch * dim, program
    if IS_SHARED:
        tiles = (dim + P - 1) // P
        sequence = program // tiles
        first, end = sequence * dim + program % tiles * P, (sequence + 1) * dim
        part = program % tiles * batch + sequence
        feature = first - sequence * dim + lane
    else:
        sequence, feature = (first + lane) // dim, (first + lane) % dim
    if ALL_PAIRS:
        is_pair, width = tl.full((1, P), 1, tl.int1), P
    else:
        is_pair, width = first + lane < end, tl.minimum(end - first, P)
    is_state = tl.full((N, 1), 1, tl.int1) if ALL_STATES else state < n
    # What features share is the same for all lanes along P: each loads what it needs.
    tile = Tile(sequence, feature, is_pair, state, is_state, state + tl.zeros_like(lane), part)
    return tile, first * n + state * width + lane


@triton.jit(do_not_specialize=_INTEGERS)
def _forward(
    recurrence,
    settings,
    sequences,
    shared,
    weights,
    initial_state,
    outputs,
    final_state,
    kept,
    batch,
    length,
    dim,
    n,
    keep,
    KEEP: tl.constexpr,
    IS_SHARED: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
    GROUP: tl.constexpr,
):
    batch, length = batch.to(tl.int64), length.to(tl.int64)
    dim, n = dim.to(tl.int64), n.to(tl.int64)
    tile, in_slab = _tile(batch, dim, n, IS_SHARED, N, P, ALL_STATES, ALL_PAIRS)
    is_number, slab = tile.is_state & tile.is_pair, batch * dim * n
    here = data(sequences, shared, weights, outputs, tile, length, dim, n)
    kept_at = Place(kept + in_slab, slab, is_number)
    KEEP_IN_STRETCH: tl.constexpr = "none" if KEEP == "some" else KEEP
    at = in_states(tile, dim, n)
    state = tl.load(initial_state + at, mask=is_number, other=0.0)
    stretch = tl.maximum(length, 1)
    if KEEP == "some":
        stretch = keep.to(tl.int64)
    for first in range(0, length, stretch):
        if KEEP == "some":
            tl.store(kept + in_slab + first // stretch * slab, state, mask=is_number)
        stop = tl.minimum(first + stretch, length)
        span = Span(first, stop, stop, 0, keep)
        state, growth = run(
            recurrence, settings, state, here, kept_at, span, KEEP_IN_STRETCH, True, GROUP
        )
    tl.store(final_state + at, state, mask=is_number)


@triton.jit(do_not_specialize=_INTEGERS)
def _backward(
    recurrence,
    settings,
    sequences,
    shared,
    weights,
    grad_outputs,
    grad_final,
    kept,
    scratch,
    by_sequences,
    by_shared,
    by_weights,
    by_initial,
    batch,
    length,
    dim,
    n,
    keep,
    KEEP: tl.constexpr,
    IS_SHARED: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
    GROUP: tl.constexpr,
):
    batch, length = batch.to(tl.int64), length.to(tl.int64)
    dim, n = dim.to(tl.int64), n.to(tl.int64)
    tile, in_slab = _tile(batch, dim, n, IS_SHARED, N, P, ALL_STATES, ALL_PAIRS)
    is_number, slab = tile.is_state & tile.is_pair, batch * dim * n
    here = data(sequences, shared, weights, grad_outputs, tile, length, dim, n)
    gradients_at = places_of_gradients(by_sequences, by_shared, tile, length, dim, n)
    at = in_states(tile, dim, n)
    adjoint = tl.load(grad_final + at, mask=is_number, other=0.0)
    sums = [zeros_for(x, adjoint) for x in here.weights]
    stretch = tl.maximum(length, 1)
    if KEEP == "some":
        stretch = keep.to(tl.int64)
    stretches = (length + stretch - 1) // stretch
    for k in range(0, stretches):
        first = (stretches - 1 - k) * stretch
        stop = tl.minimum(first + stretch, length)
        span = Span(first, stop, stop, 0, keep)
        states_at = Place(kept + in_slab, slab, is_number)
        if KEEP == "some":
            at_start = kept + in_slab + (stretches - 1 - k) * slab
            state = tl.load(at_start, mask=is_number, other=0.0)
            states_at = Place(scratch + in_slab, slab, is_number)
            tl.debug_barrier()
            run(recurrence, settings, state, here, states_at, span, "every", False, GROUP)
            tl.debug_barrier()
        adjoint, growth, sums = run_back(
            recurrence, settings, adjoint, sums, here, states_at, gradients_at, span, True, GROUP
        )
    tl.store(by_initial + at, adjoint, mask=is_number)
    store_sums(by_weights, sums, tile, batch, dim, n)
