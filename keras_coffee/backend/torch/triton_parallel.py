"""Scans for PyTorch on a GPU in Triton, parallel in time: for few channels and many steps.

A program has one pair of sequence and feature, and one window of time after the other. It deals out
a window to lanes, each of which runs its stretch of steps in order, from a guess of the state
before it. Where one lane ends another starts, and Newton's method makes them meet (multiple
shooting): with F the run of a lane and A its derivative, the product of those of its steps,

    start'(j+1) = F(start(j)) + A(j) (start'(j) - start(j)),

which is linear in start', and solved by a prefix scan over the lanes (Bellen and Zennaro, 1989;
DEER is the case of one step a lane). Starts 0 ... k are those of the recurrence, to the last bit,
after k corrections: if start(j) does not change any more, start'(j+1) = F(start(j)). This holds for
any data and any guess, because a start that Newton's method takes out of the range of
floating-point numbers is replaced by F(start(j)). So as many corrections as there are lanes, less
one, always suffice, and give the recurrence itself.

A linear recurrence needs one correction, and so does the adjoint of any recurrence: with time
reversed, so that the first lane has the last steps, it is the same scheme.

No kernel looks at states of other pairs, so what happens in one can't touch another. But where
features share a sequence, the gradient by it is a sum over them, and a program of the backward
kernel has a few features: partial sums are a quarter of the states at most. Tiles are [N, G, LANES]
of states, features and lanes. Kept states of a pair lie side by side in time. If not all are kept,
each lane of the backward kernel goes from one kept state to the next again and writes the states
between them to scratch memory of the program's own, between barriers, as `triton_sequential` says.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_recurrence import (
    Gradients,
    Place,
    Span,
    Tile,
    all_moved,
    data,
    device_of,
    empty_results,
    in_states,
    keep_mode,
    moved_data,
    places_of_gradients,
    rows,
    run,
    run_back,
    store_sums,
    zeros_for,
)

# Nothing is known of these when a kernel is compiled: see `triton_sequential`.
_INTEGERS = ["batch", "length", "dim", "n", "steps", "keep"]

# Steps that are loaded ahead. With more of them the registers do not suffice.
_GROUP = 2

# Features of a program where they share a sequence.
_FEATURES = 4


class _Window(NamedTuple):
    """How many numbers a tile should have, the fewest and most lanes, and the steps of a lane."""

    numbers: int
    fewest: int
    most: int
    steps: int


# Longer stretches forget more of their start and need fewer corrections, until states that don't
# forget go astray. Runs of the lanes of COFFEE, on average, with 32 lanes, n = 8, inputs of 1, λ
# uniform in [-2, 0] and gates of standard deviation 0.5, 1, 2 and 4: 6, 8, 10 and 11 with 1 step;
# 5, 6, 12 and 16 with 16; 3, 4, 17 and 27 with 128.
_WINDOWS = {"linear": _Window(512, 4, 256, 32), "nonlinear": _Window(256, 32, 128, 16)}


def forward(recurrence, sequences, weights, state, *, keep, **options):
    """Outputs, the final state, and the states before every `keep`-th step (0: none)."""
    outputs, final_state, kept = results = empty_results(sequences[0], state, keep)
    tiling = _tiling(recurrence, sequences[0].shape[1], 1, state.shape[-1])
    tensors = (state, outputs, final_state, kept)
    tolerance = 8 * torch.finfo(state.dtype).eps
    arguments = (_forward, recurrence, options, sequences, weights, tensors, state.shape, keep)
    _launch(*arguments, 1, *tiling, TOLERANCE=tolerance)
    return results


def backward(recurrence, grad_outputs, grad_final, kept, sequences, weights, *, keep, **options):
    """Gradients by the sequences, the weights and the initial state."""
    _, length, dim = sequences[0].shape
    is_shared = recurrence.is_shared(sequences)
    features = min(_FEATURES, triton.next_power_of_2(max(1, dim))) if is_shared else 1
    lanes, warps, steps = _tiling(recurrence, length, features, grad_final.shape[-1])
    if keep > 1:
        # A quarter of all steps at most is computed again at once, if two lanes are that few.
        steps = min(keep, length)
        lanes = min(lanes, max(2, (1 << (length // (4 * steps)).bit_length()) // 2))
    gradients = Gradients(recurrence, sequences, weights, grad_final, triton.cdiv(dim, features))
    scratch = grad_final.new_empty(grad_final.numel() * lanes * steps if keep > 1 else 0)
    tensors = (grad_outputs, grad_final, kept, scratch, *recurrence.split(gradients.sequences))
    tensors += (gradients.weights, gradients.initial)
    arguments = (_backward, recurrence, options, sequences, weights, tensors, grad_final.shape)
    _launch(*arguments, keep, features, lanes, warps, steps)
    return gradients.summed()


def _tiling(recurrence, length, features, n):
    """Lanes, warps, and steps of a lane in a window: a multiple of those that are loaded ahead."""
    window, rows = _WINDOWS[recurrence.functions.kind.value], features * triton.next_power_of_2(n)
    lanes = max(window.fewest, min(window.most, window.numbers // rows))
    lanes = min(lanes, max(2, triton.next_power_of_2(triton.cdiv(length, _GROUP))))
    steps = min(window.steps, triton.cdiv(triton.cdiv(length, lanes), _GROUP) * _GROUP)
    return lanes, max(1, min(8, lanes * rows // 64)), steps


def _launch(
    kernel,
    recurrence,
    options,
    sequences,
    weights,
    tensors,
    shape,
    keep,
    features,
    lanes,
    warps,
    steps,
    **constants,
):
    batch, dim, n = shape
    if not batch * dim:
        return
    with device_of(sequences[0]):
        kernel[(batch * triton.cdiv(dim, features),)](
            recurrence.functions,
            recurrence.constants(options),
            *recurrence.split(sequences),
            recurrence.with_axes(weights),
            *tensors,
            *(batch, sequences[0].shape[1], dim, n, steps, keep),
            KEEP=keep_mode(keep),
            N=triton.next_power_of_2(n),
            G=features,
            LANES=lanes,
            GROUP=_GROUP,
            num_warps=warps,
            **constants,
        )


@triton.jit
def _tile(batch, dim, n, N: tl.constexpr, G: tl.constexpr):
    """A program's tile, [N, G, 1]."""
    groups = (dim + G - 1) // G
    program = tl.program_id(0).to(tl.int64)
    sequence, group = program // groups, program % groups
    state = rows(N)[:, :, None]
    feature = group * G + tl.arange(0, G)[None, :, None]
    part = group * batch + sequence
    return Tile(sequence, feature, feature < dim, state, state < n, state, part)


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
    steps,
    keep,
    KEEP: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    TOLERANCE: tl.constexpr,
):
    batch, length = batch.to(tl.int64), length.to(tl.int64)
    dim, n = dim.to(tl.int64), n.to(tl.int64)
    tile = _tile(batch, dim, n, N, G)
    is_number, at = tile.is_state & tile.is_pair, in_states(tile, dim, n)
    here = data(sequences, shared, weights, outputs, tile, length, dim, n)
    chunks = (length + keep - 1) // tl.maximum(keep, 1)
    state = tl.load(initial_state + at, mask=is_number, other=0.0)
    lane = tl.arange(0, LANES)[None, None, :]
    for window in range(0, length, LANES * steps):
        first = window + lane * steps
        span = Span(0, steps, tl.minimum(length - first, steps), first, keep)
        now, first_kept = moved_data(here, first), first if KEEP == "every" else first * 0
        kept_at = Place(kept + at * chunks + first_kept, 1, is_number)
        # Nothing is known of the starts. Linear recurrences are the same from all.
        start = tl.broadcast_to(state, (N, G, LANES))
        if recurrence.kind == "linear":
            start = tl.where(lane == 0, start, 0.0)
        k, is_done = 1, False
        while (k < LANES) & (not is_done):
            end, growth = run(recurrence, settings, start, now, kept_at, span, "none", False, GROUP)
            previous = _shifted(end, state)
            if recurrence.kind == "linear":
                new = _corrected(start, previous, growth)
                is_done = _is_solved(new, start, is_number)
                start = new
            else:
                is_done = _meets(start, previous, is_number, TOLERANCE)
                if not is_done:
                    start = _corrected(start, previous, growth)
            k += 1
        end, growth = run(recurrence, settings, start, now, kept_at, span, KEEP, True, GROUP)
        state = _at_lane(end, (tl.minimum(length - window, LANES * steps) - 1) // steps)
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
    steps,
    keep,
    KEEP: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
):
    batch, length = batch.to(tl.int64), length.to(tl.int64)
    dim, n = dim.to(tl.int64), n.to(tl.int64)
    tile = _tile(batch, dim, n, N, G)
    is_number, at = tile.is_state & tile.is_pair, in_states(tile, dim, n)
    here = data(sequences, shared, weights, grad_outputs, tile, length, dim, n)
    gradients_at = places_of_gradients(by_sequences, by_shared, tile, length, dim, n)
    # Time is reversed: the first lane has the last steps of a window.
    lane = LANES - 1 - tl.arange(0, LANES)[None, None, :]
    adjoint = tl.load(grad_final + at, mask=is_number, other=0.0)
    zero = tl.zeros((N, G, LANES), adjoint.dtype)
    sums = [zeros_for(x, zero) for x in here.weights]
    size = LANES * steps
    windows = (length + size - 1) // size
    for k in range(0, windows):
        first = (windows - 1 - k) * size + lane * steps
        span = Span(0, steps, tl.minimum(length - first, steps), first, keep)
        now = moved_data(here, first)
        gradients_now = all_moved(gradients_at[0], first), all_moved(gradients_at[1], first)
        if KEEP == "some":
            states_at = Place(scratch + at * size + lane * steps, 1, is_number)
            at_start = kept + at * ((length + keep - 1) // keep) + first // keep
            state = tl.load(at_start, mask=is_number & (first < length), other=0.0)
            tl.debug_barrier()
            run(recurrence, settings, state, now, states_at, span, "every", False, GROUP)
            tl.debug_barrier()
        else:
            states_at = Place(kept + at * length + first, 1, is_number)
        start = tl.where(lane == LANES - 1, adjoint, zero)
        i, is_done = 1, False
        while (i < LANES) & (not is_done):
            end, growth, unused = run_back(
                recurrence, settings, start, sums, now, states_at, gradients_now, span, False, GROUP
            )
            new = _corrected(start, _shifted(end, adjoint), growth)
            is_done = _is_solved(new, start, is_number)
            start = new
            i += 1
        end, growth, sums = run_back(
            recurrence, settings, start, sums, now, states_at, gradients_now, span, True, GROUP
        )
        adjoint = _at_lane(end, LANES - 1)
    tl.store(by_initial + at, adjoint, mask=is_number)
    store_sums(by_weights, [_sum_of_lanes(x) for x in sums], tile, batch, dim, n)


# Lanes, the last axis of a tile.


@triton.jit
def _compose(decay, drive, later_decay, later_drive):
    """From x to decay x + drive, and then the later one."""
    return later_decay * decay, later_decay * drive + later_drive


@triton.jit
def _lanes_of(x):
    """The number of the lane of each element."""
    return tl.broadcast_to(tl.arange(0, x.shape[2])[None, None, :], x.shape)


@triton.jit
def _shifted(x, first):
    """For each lane what `x` is in the lane before it, and `first` in the first one."""
    lane = _lanes_of(x)
    return tl.where(lane == 0, first, tl.gather(x, tl.maximum(lane - 1, 0), 2))


@triton.jit
def _sum_of_lanes(x):
    if x is None:
        return None
    else:
        return tl.sum(x, 2, keep_dims=True)


@triton.jit
def _at_lane(x, lane):
    return tl.sum(tl.where(_lanes_of(x) == lane, x, 0.0), 2, keep_dims=True)


@triton.jit
def _corrected(start, previous, growth):
    """Newton's next starts. `previous` is where the lane before each one ended."""
    misfit = previous - start
    _, change = tl.associative_scan((_shifted(growth, 0.0), misfit), 2, _compose)
    # In this order the start is `previous` to the last bit if the start before it stays.
    start = previous + (change - misfit)
    return tl.where(_is_finite(start), start, previous)


@triton.jit
def _meets(start, previous, is_number, TOLERANCE: tl.constexpr):
    """Whether each lane starts where the one before it ends."""
    bound = TOLERANCE * tl.maximum(tl.abs(previous), 1.0)
    is_near = tl.abs(previous - start) <= bound
    return _is_everywhere(is_near | _is_same(previous, start) | ~is_number)


@triton.jit
def _is_solved(start, old, is_number):
    """Whether the correction of `old` to `start` was the last one of a linear recurrence.

    One is enough, unless a number leaves the range on the way or the data are not finite.
    """
    return _is_everywhere(_is_finite(start) | ~is_number) | _is_everywhere(
        _is_same(start, old) | ~is_number
    )


@triton.jit
def _is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def _is_same(x, y):
    """Equal, infinities too, or both NaN."""
    return (x == y) | ((x != x) & (y != y))


@triton.jit
def _is_everywhere(condition):
    return tl.min(tl.ravel(condition.to(tl.int32)), 0) != 0
