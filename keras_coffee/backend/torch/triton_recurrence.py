"""The loops over time of a recurrence in Triton, which the two drivers share.

A driver divides the work: `triton_sequential` takes one step after another, `triton_parallel` many
stretches of a sequence at once. A recurrence supplies its step. With state h, inputs x at a step
and weights w,

    h_t = step(h_{t-1}, x_t, w),    y_t = read(h_t, x_t, w),

the gradient l_t of a loss by h_t obeys the adjoint recurrence, from the last step to the first,

    l_t = (∂y_t/∂h_t)ᵀ g_t + J_{t+1} l_{t+1},    J_{t+1} = ∂h_{t+1}/∂h_t, which is diagonal,

where g_t is the gradient by y_t, and that by h_T comes from the final state. `step_back` takes
J_{t+1} l_{t+1} to J_t l_t, and adds what the step contributes to the gradients by the weights. It
needs h_{t-1} alone: all else of a step is computed again, which costs less than to load it.

Loads take far longer than a step. So those of a group of steps are issued before the group ahead of
it is computed. Steps outside of time are loaded as zeros, in which nothing must change.
"""

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Functions(NamedTuple):
    """A recurrence as kernels take it: device functions, and a string made known to the compiler.

    Tiles have states along the first axis. `x` has what the sequences are at a step, for each
    feature, `shared` what those are that features share, for each state, and `weights` what the
    weights are, in the order of the arguments of `forward`; None where there is none. Where
    `is_step` is false, `state`, `x` and `grad` are zero, and the state, the adjoint and the sums
    must stay what they are. A weight that the states of a feature share has one row, as its sum.

    `step(state, x, shared, weights, is_step, settings)`
        The next state, and its derivative by `state`.
    `read(state, x, shared, weights, is_state, settings)`
        The outputs, summed over the states that there are.
    `step_back(adjoint, sums, state, x, shared, grad, weights, is_state, is_step, settings)`
        From the adjoint of the state after the step, without its own output, to that of `state`
        before it; `sums` with the gradients by the weights added; the gradients by `x`, summed over
        the states; and those by `shared`, not summed.
    `kind`
        Of the step, as a function of the state: "linear" or "nonlinear".
    """

    step: object
    read: object
    step_back: object
    kind: tl.constexpr


@dataclass(frozen=True)
class Recurrence:
    """What the drivers know of a recurrence.

    `axes` are those of each sequence beyond batch and time: "features" (B, T, D), none, "", or last
    "states" (B, T, n), which features share. `settings` makes a named tuple of the options. `ahead`
    is how many numbers a lane may load ahead forward and backward, as registers allow.
    """

    functions: Functions
    axes: tuple[str, ...]
    settings: type
    ahead: tuple[int, int]

    def split(self, sequences):
        """The sequences with their axis, and those that features share."""
        pairs = list(zip(sequences, self.axes, strict=True))
        own = [None if x is None else (x, tl.constexpr(a)) for x, a in pairs if a != "states"]
        return tuple(own), tuple(x for x, axis in pairs if axis == "states")

    @staticmethod
    def with_axes(weights):
        """The weights with their axis beyond the features: "states" (D, n), or none (D, 1)."""
        axes = ["" if w is None or w.shape[-1] == 1 else "states" for w in weights]
        pairs = zip(weights, axes, strict=True)
        return tuple(None if w is None else (w, tl.constexpr(axis)) for w, axis in pairs)

    def constants(self, options):
        """The options as kernels take them. Triton keeps the name `options` for itself."""
        known = {k: None if v is None else tl.constexpr(v) for k, v in options.items()}
        return self.settings(**known)

    def is_shared(self, sequences):
        """Whether features share a sequence, so that the gradient by it is a sum over them."""
        return any(x is not None for x in self.split(sequences)[1])


# Tensors of results.


def keep_mode(keep):
    """Before which steps kernels keep the state: "none", "every", or "some", each keep-th."""
    return ("none", "every", "some")[min(keep, 2)]


def empty_results(inputs, state, keep):
    """Outputs, the final state, and the states before every `keep`-th step."""
    chunks = triton.cdiv(inputs.shape[1], keep) if keep else 0
    kept = state.new_empty(chunks * state.numel())
    return torch.empty_like(inputs), torch.empty_like(state), kept


class Gradients:
    """Buffers that a kernel fills, in which sums over features and sequences are left to do.

    A gradient by what features share is a partial sum for each of `tiles` of features. `weights`
    has (n, B, D), or (1, B, D), of each weight that there is, one after the other: neighbouring
    pairs of sequence and feature, which a tile has, write to neighbouring places.
    """

    def __init__(self, recurrence, sequences, weights, grad_final, tiles):
        batch, dim, n = grad_final.shape
        shapes = {"features": (), "states": (tiles,)}
        self.sequences = [
            None if x is None or not axis else x.new_empty(shapes[axis] + x.shape)
            for x, axis in zip(sequences, recurrence.axes, strict=True)
        ]
        self._rows = [0 if w is None else w.shape[-1] for w in weights]
        self.weights = grad_final.new_empty(sum(self._rows), batch, dim)
        self.initial = torch.empty_like(grad_final)

    def summed(self):
        """The gradients by sequences, weights and the initial state."""
        sequences = [x.sum(0) if x is not None and x.ndim == 4 else x for x in self.sequences]
        # Operators must not return views of one tensor.
        sums = self.weights.sum(1).split(self._rows)
        weights = [
            x.t().clone(memory_format=torch.contiguous_format) if rows else None
            for x, rows in zip(sums, self._rows, strict=True)
        ]
        return sequences, weights, self.initial


def device_of(tensor):
    """The context in which kernels on `tensor` are launched."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


# Where the numbers of a program's tile are.


class Tile(NamedTuple):
    """A program's pairs of sequence and feature along axis 1, with their states along axis 0.

    `sequence`, `feature` and `is_pair` have length 1 along axis 0, `state` and `is_state` along
    axis 1. `in_shared` is the number of a state, in the shape in which what features share is
    loaded. `part` is the number of the tile's partial sum over features.
    """

    sequence: object
    feature: object
    is_pair: object
    state: object
    is_state: object
    in_shared: object
    part: object


class Place(NamedTuple):
    """Of a tensor: pointers to a tile's numbers at a step, the way to the next step, and a mask."""

    pointers: object
    stride: object
    mask: object


class Data(NamedTuple):
    """What the steps of a tile need.

    Tuples of weights and of the places of what features have of their own and share, the place of
    the outputs or of the gradient by them, and which states there are.
    """

    weights: object
    x_at: object
    shared_at: object
    y_at: object
    is_state: object


class Span(NamedTuple):
    """Steps from `start` to `stop`. Those from `count` on, which may differ, are outside of time.

    Step 0 has number `first` in its sequence, of which every `keep`-th state is kept.
    """

    start: object
    stop: object
    count: object
    first: object
    keep: object


@triton.jit
def rows(N: tl.constexpr):
    """The numbers of a tile's rows, a column.

    Triton would deal out states that it sees to be neighbours in memory to neighbouring lanes.
    """
    return tl.max_contiguous(tl.arange(0, N)[:, None], (1, 1))


@triton.jit
def in_states(tile, dim, n):
    """The place of each number of a tile in an array (B, D, n)."""
    return (tile.sequence * dim + tile.feature) * n + tile.state


@triton.jit
def weight(weights, tile, n):
    """A tile of an array (D, n), or a row of it for an array (D, 1)."""
    if weights is None:
        return None
    elif weights[1] == "states":
        at = weights[0] + (tile.feature * n + tile.state)
        return tl.load(at, mask=tile.is_state & tile.is_pair, other=0.0)
    else:
        return tl.load(weights[0] + tile.feature, mask=tile.is_pair, other=0.0)


@triton.jit
def zeros_for(weight, like):
    """A sum for a weight, over the lanes that `like` has."""
    if weight is None:
        return None
    elif weight.shape[0] == 1:
        return tl.zeros_like(tl.sum(like, 0, keep_dims=True))
    else:
        return tl.zeros_like(like)


@triton.jit
def store_sums(by_weights, sums, tile, batch, dim, n):
    """Stores the sums over a tile's steps, of each weight by itself."""
    pairs, at = batch * dim, tile.sequence * dim + tile.feature
    for k in tl.static_range(len(sums)):
        if sums[k] is not None:
            if sums[k].shape[0] == 1:
                tl.store(by_weights + at, sums[k], mask=tile.is_pair)
                by_weights += pairs
            else:
                in_sums = by_weights + (tile.state * pairs + at)
                tl.store(in_sums, sums[k], mask=tile.is_state & tile.is_pair)
                by_weights += pairs * n


@triton.jit
def place(sequence, tile, length, dim):
    """Where a sequence is at its first step."""
    if sequence is None:
        return None
    elif sequence[1] == "features":
        at = sequence[0] + (tile.sequence * length * dim + tile.feature)
        return Place(at, dim, tile.is_pair)
    else:
        at = sequence[0] + (tile.sequence * length + tl.zeros_like(tile.feature))
        return Place(at, 1, tile.is_pair)


@triton.jit
def place_of_shared(sequence, tile, length, n):
    if sequence is None:
        return None
    else:
        at = sequence + (tile.sequence * length * n + tile.in_shared)
        return Place(at, n, tile.is_state)


@triton.jit
def place_of_sum(sums, tile, length, n):
    """Where the gradient by what features share goes, summed over those of the tile."""
    if sums is None:
        return None
    else:
        return Place(sums + (tile.part * length * n + tile.state), n, tile.is_state)


@triton.jit
def data(sequences, shared, weights, outputs, tile, length, dim, n):
    """All of it, places at step 0."""
    return Data(
        [weight(x, tile, n) for x in weights],
        [place(x, tile, length, dim) for x in sequences],
        [place_of_shared(x, tile, length, n) for x in shared],
        place((outputs, "features"), tile, length, dim),
        tile.is_state,
    )


@triton.jit
def places_of_gradients(by_sequences, by_shared, tile, length, dim, n):
    """Those by what features have of their own, and by what they share."""
    by_x_at = [place(x, tile, length, dim) for x in by_sequences]
    return by_x_at, [place_of_sum(x, tile, length, n) for x in by_shared]


@triton.jit
def moved(place, step):
    """The place `step` steps later."""
    if place is None:
        return None
    else:
        return Place(place.pointers + step * place.stride, place.stride, place.mask)


@triton.jit
def all_moved(places, step):
    return [moved(place, step) for place in places]


@triton.jit
def moved_data(data, step):
    x_at, shared_at = all_moved(data.x_at, step), all_moved(data.shared_at, step)
    return Data(data.weights, x_at, shared_at, moved(data.y_at, step), data.is_state)


@triton.jit
def load(place, t, is_step):
    if place is None:
        return None
    else:
        return tl.load(place.pointers + t * place.stride, mask=place.mask & is_step, other=0.0)


@triton.jit
def store(place, value, t, is_step):
    tl.store(place.pointers + t * place.stride, value, mask=place.mask & is_step)


@triton.jit
def store_all(places, values, t, is_step, SUM: tl.constexpr):
    """Stores what has a place, as it is or summed over the features of the tile."""
    for k in tl.static_range(len(places)):
        if places[k] is not None:
            value = tl.sum(values[k], 1, keep_dims=True) if SUM else values[k]
            store(places[k], value, t, is_step)


@triton.jit
def load_group(places, first, start, count, STEP: tl.constexpr, GROUP: tl.constexpr):
    """What is at the steps `first`, `first` + STEP, ..., a tuple each; zero if out of bounds."""
    group = ()
    for i in tl.static_range(GROUP):
        t = first + STEP * i
        is_step = t < count
        if STEP < 0:
            is_step = is_step & (t >= start)
        group = group + ([load(place, t, is_step) for place in places],)
    return group


@triton.jit
def restarted(numbers, x):
    """Zeros where the last of the sequences says that a new one begins at this step."""
    if x[len(x) - 1] is None:
        return numbers
    else:
        return tl.where(x[len(x) - 1] != 0, 0.0, numbers)


# The loops over time. `kept_at` is the place of the state before the first step of a span.


@triton.jit
def run(
    recurrence,
    settings,
    state,
    data,
    kept_at,
    span,
    KEEP: tl.constexpr,
    READ: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The state after the steps, and its derivative by the one before them.

    If READ, outputs are written. States before steps are kept: those before "every" one, before
    "some", each `keep`-th, or "none".
    """
    start, stop, count, first, keep = span
    growth = tl.full(state.shape, 1.0, state.dtype)
    x_ahead = load_group(data.x_at, start, start, count, 1, GROUP)
    shared_ahead = load_group(data.shared_at, start, start, count, 1, GROUP)
    for group in range(start, stop, GROUP):
        x, shared = x_ahead, shared_ahead
        x_ahead = load_group(data.x_at, group + GROUP, start, count, 1, GROUP)
        shared_ahead = load_group(data.shared_at, group + GROUP, start, count, 1, GROUP)
        for i in tl.static_range(GROUP):
            t = group + i
            is_step = t < count
            state = restarted(state, x[i])
            if KEEP == "every":
                store(kept_at, state, t - start, is_step)
            elif KEEP == "some":
                step = (first + t).to(tl.int32)
                store(kept_at, state, step // keep, is_step & (step % keep == 0))
            state, derivative = recurrence.step(
                state, x[i], shared[i], data.weights, is_step, settings
            )
            growth = restarted(growth * derivative, x[i])
            if READ:
                y = recurrence.read(state, x[i], shared[i], data.weights, data.is_state, settings)
                store(data.y_at, y, t, is_step)
    return state, growth


@triton.jit
def run_back(
    recurrence,
    settings,
    adjoint,
    sums,
    data,
    kept_at,
    gradients_at,
    span,
    WRITE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """From the last step to the first.

    Returns the adjoint of the state before them; its derivative by that of the state after them;
    and the sums. If WRITE, the gradients by the sequences are written. Else the sums are left out,
    and the compiler leaves out what only they need.
    """
    start, stop, count, _, _ = span
    growth = tl.full(adjoint.shape, 1.0, adjoint.dtype)
    others_at = (data.y_at, moved(kept_at, -start))
    x_ahead = load_group(data.x_at, stop - 1, start, count, -1, GROUP)
    others_ahead = load_group(others_at, stop - 1, start, count, -1, GROUP)
    for done in range(0, stop - start, GROUP):
        x, others = x_ahead, others_ahead
        last = stop - 1 - done
        x_ahead = load_group(data.x_at, last - GROUP, start, count, -1, GROUP)
        others_ahead = load_group(others_at, last - GROUP, start, count, -1, GROUP)
        # A number for each state: there are no registers in which these could wait.
        shared = load_group(data.shared_at, last, start, count, -1, GROUP)
        for i in tl.static_range(GROUP):
            t = last - i
            is_step, w = (t >= start) & (t < count), data.weights
            grad, state = others[i]
            unused, derivative = recurrence.step(state, x[i], shared[i], w, is_step, settings)
            growth = restarted(growth * derivative, x[i])
            adjoint, new_sums, by_x, by_shared = recurrence.step_back(
                adjoint, sums, state, x[i], shared[i], grad, w, data.is_state, is_step, settings
            )
            adjoint = restarted(adjoint, x[i])
            if WRITE:
                sums = new_sums
                store_all(gradients_at[0], by_x, t, is_step, False)
                store_all(gradients_at[1], by_shared, t, is_step, True)
    return adjoint, growth, sums
