"""Multiple shooting: what the kernels share that work on many stretches of a sequence at once.

A window of time is dealt out to the lanes of a program, each of which runs its stretch of steps in
order, from a guess of the state before it. Where one lane ends another starts, and Newton's method
makes them meet: with F the run of a lane and A its derivative, the product of the Jacobians,

    start'(j+1) = F(start(j)) + A(j) (start'(j) - start(j)),

which is affine in start', and solved by a prefix scan over the lanes (Bellen and Zennaro, 1989;
DEER is the case of one step a lane). Starts 0 ... k are those of the recurrence, to the last bit,
after k corrections: if start(j) does not change any more, start'(j+1) = F(start(j)). This holds for
any data and any guess, because a start that Newton's method takes out of the range of
floating-point numbers is replaced by F(start(j)). So as many corrections as there are lanes, less
one, always suffice, and they are the recurrence run in order.

The last axis of a tile is that of the lanes.
"""

import triton
import triton.language as tl


@triton.jit
def compose(decay, drive, later_decay, later_drive):
    """From x to decay x + drive, and then the later one."""
    return later_decay * decay, later_decay * drive + later_drive


@triton.jit
def lanes_of(x):
    """The number of the lane of each element."""
    lane = tl.arange(0, x.shape[len(x.shape) - 1])
    for _ in tl.static_range(len(x.shape) - 1):
        lane = tl.expand_dims(lane, 0)
    return tl.broadcast_to(lane, x.shape)


@triton.jit
def shifted(x, first):
    """For each lane what `x` is in the lane before it, and `first` in the first one."""
    lane = lanes_of(x)
    return tl.where(lane == 0, first, tl.gather(x, tl.maximum(lane - 1, 0), len(x.shape) - 1))


@triton.jit
def at_lane(x, lane):
    return tl.sum(tl.where(lanes_of(x) == lane, x, 0.0), len(x.shape) - 1, keep_dims=True)


@triton.jit
def corrected(start, previous, growth):
    """Newton's next starts. `previous` is where the lane before each one ended."""
    misfit = previous - start
    _, change = tl.associative_scan((shifted(growth, 0.0), misfit), len(start.shape) - 1, compose)
    # In this order the start is `previous` to the last bit if the start before it stays.
    start = previous + (change - misfit)
    return tl.where(is_finite(start), start, previous)


@triton.jit
def is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def is_same(x, y):
    """Equal, infinities too, or both NaN."""
    return (x == y) | ((x != x) & (y != y))


@triton.jit
def is_everywhere(condition):
    return tl.min(tl.ravel(condition.to(tl.int32)), 0) != 0


@triton.jit
def is_solved(start, old, is_state):
    """Whether the correction of `old` to `start` was the last one of an affine recurrence.

    One is enough, unless a number leaves the range on the way or the data are not finite.
    """
    return is_everywhere(is_finite(start) | ~is_state) | is_everywhere(
        is_same(start, old) | ~is_state
    )


@triton.jit
def load_lanes(
    pointers,
    first,
    count,
    stride,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    IS_WANTED: tl.constexpr = True,
):
    """A tuple of loads at the steps `first`, `first` + STEP, ... of each lane, which has `count`.

    What is outside of a lane is zero.
    """
    group = ()
    for i in tl.static_range(GROUP):
        if IS_WANTED:
            step = first + STEP * i
            is_step = (step >= 0) & (step < count)
            group = group + (tl.load(pointers + step * stride, mask=is_step, other=0.0),)
        else:
            group = group + (tl.full((), 0, tl.float32),)
    return group


@triton.jit
def first_slot(step, keep, KEEP: tl.constexpr):
    """Where the next kept state goes from `step` on, and the steps since the one before."""
    slot, phase = step.to(tl.int64), step * 0
    if KEEP == 2:
        slot, phase = slot // keep, step % keep
    return slot, phase


@triton.jit
def next_slot(slot, phase, keep, KEEP: tl.constexpr):
    if KEEP == 2:
        phase += 1
        slot += phase == keep
        phase = tl.where(phase == keep, 0, phase)
    else:
        slot += 1
    return slot, phase


def steps_of_lanes(length, lanes, most, group):
    """How many steps each lane has of a window: a multiple of `group`, `most` if time suffices."""
    return min(most, triton.cdiv(triton.cdiv(length, lanes), group) * group)


def lanes_to_recompute(length, lanes, steps):
    """How many lanes compute `steps` states again: a quarter of all of them at most, or two."""
    return min(lanes, max(2, (1 << (length // (4 * steps)).bit_length()) // 2))
