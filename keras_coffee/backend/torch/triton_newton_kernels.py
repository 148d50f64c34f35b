"""The kernels of `triton_newton.py`."""

import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_affine import (
    at_lane,
    corrected,
    first_slot,
    is_everywhere,
    is_same,
    is_solved,
    load_lanes,
    next_slot,
    shifted,
)
from keras_coffee.backend.torch.triton_coffee import (
    gate_and_change,
    load_weights,
    read,
    step_back,
)
from keras_coffee.backend.torch.triton_math import rows

# Nothing is known of these when a kernel is compiled: see `triton_coffee.py`.
_INTEGERS = ["length", "dim", "n", "steps", "keep"]


@triton.jit(do_not_specialize=_INTEGERS)
def forward(
    inputs,
    mask,
    weights,
    initial_state,
    outputs,
    final_state,
    kept,
    length,
    dim,
    n,
    steps,
    keep,
    KEEP: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    TOLERANCE: tl.constexpr,
):
    length, dim, n = length.to(tl.int64), dim.to(tl.int64), n.to(tl.int64)
    pair, is_state, w = _pair(weights, dim, n, HAS_INPUT_MATRIX, HAS_OUTPUT_GATE, N)
    features = pair // dim * length * dim + pair % dim
    lane, at = tl.arange(0, LANES), pair * n + rows(N)
    state = tl.load(initial_state + at, mask=is_state, other=0.0)
    for window in range(0, length, LANES * steps):
        first = window + lane * steps
        count = tl.minimum(length - first, steps)
        inputs_at, mask_at = inputs + features + first * dim, mask
        frame = (count, steps, keep, dim, is_state)
        if mask is not None:
            mask_at += pair // dim * length + first
        start = tl.broadcast_to(state, (N, LANES))
        k, meets = 1, False
        while (k < LANES) & (not meets):
            end, growth = _run(
                start, inputs_at, mask_at, count, steps, dim, w, FEEDBACK, HAS_INPUT_MATRIX, GROUP
            )
            previous = shifted(end, state)
            bound = TOLERANCE * tl.maximum(tl.abs(previous), 1.0)
            fits = (tl.abs(previous - start) <= bound) | is_same(previous, start) | ~is_state
            meets = is_everywhere(fits)
            if not meets:
                start = corrected(start, previous, growth)
            k += 1
        end = _write(
            start,
            inputs_at,
            mask_at,
            outputs + features + first * dim,
            kept,
            at * ((length + keep - 1) // tl.maximum(keep, 1)),
            first,
            frame,
            w,
            KEEP,
            True,
            FEEDBACK,
            HAS_INPUT_MATRIX,
            HAS_OUTPUT_GATE,
            GROUP,
        )
        last = (tl.minimum(length - window, LANES * steps) - 1) // steps
        state = at_lane(end, last)
    tl.store(final_state + at, state, mask=is_state)


@triton.jit
def _pair(
    weights,
    dim,
    n,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    N: tl.constexpr,
):
    """The pair of a program, which of N rows are states, and the weights, [N, 1]."""
    pair = tl.program_id(0).to(tl.int64)
    is_state = rows(N) < n
    feature = tl.full((1,), 0, tl.int64) + pair % dim
    w = load_weights(weights, dim, n, feature, is_state, HAS_INPUT_MATRIX, HAS_OUTPUT_GATE, N)
    return pair, is_state, w


@triton.jit
def _run(
    state,
    inputs,
    mask,
    count,
    steps,
    dim,
    w,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Where each lane ends that starts from `state`, and the derivative of the one by the other."""
    growth = tl.full(state.shape, 1.0, state.dtype)
    sources, holds = _load(inputs, mask, 0, count, dim, 1, GROUP)
    for first in range(0, steps, GROUP):
        sources_now, holds_now = sources, holds
        sources, holds = _load(inputs, mask, first + GROUP, count, dim, 1, GROUP)
        for i in tl.static_range(GROUP):
            new, jacobian = _step(
                state, sources_now[i], holds_now[i], w, mask, FEEDBACK, HAS_INPUT_MATRIX
            )
            is_step = (first + i < count)[None, :]
            state = tl.where(is_step, new, state)
            growth = tl.where(is_step, jacobian * growth, growth)
    return state, growth


@triton.jit
def _load(inputs, mask, first, count, dim, STEP: tl.constexpr, GROUP: tl.constexpr):
    sources = load_lanes(inputs, first, count, dim, STEP, GROUP)
    holds = sources
    if mask is not None:
        holds = load_lanes(mask, first, count, 1, STEP, GROUP)
    return sources, holds


@triton.jit
def _step(state, source, hold, w, mask, FEEDBACK: tl.constexpr, HAS_INPUT_MATRIX: tl.constexpr):
    """The state after a step, and its derivative by the one before."""
    transition, gate = w[0], w[1]
    delta, change = gate_and_change(state, source, w, FEEDBACK, HAS_INPUT_MATRIX)
    slope = change
    if FEEDBACK == "sigmoid":
        slope = (delta - delta * delta) * change
    if mask is not None:
        delta *= hold[None, :]
        slope *= hold[None, :]
    jacobian = 1 + transition * delta
    if FEEDBACK != "none":
        jacobian += gate * slope
    return state + delta * change, jacobian


@triton.jit
def _write(
    state,
    inputs,
    mask,
    outputs,
    kept,
    kept_rows,
    start,
    frame,
    w,
    KEEP: tl.constexpr,
    READ: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Runs the lanes once more and writes outputs, and the states before every `keep`-th step."""
    count, steps, keep, dim, is_state = frame
    slot, phase = first_slot(start, keep, KEEP)
    sources, holds = _load(inputs, mask, 0, count, dim, 1, GROUP)
    for first in range(0, steps, GROUP):
        sources_now, holds_now = sources, holds
        sources, holds = _load(inputs, mask, first + GROUP, count, dim, 1, GROUP)
        for i in tl.static_range(GROUP):
            is_step = first + i < count
            if KEEP:
                at = kept + kept_rows + slot[None, :]
                tl.store(at, state, mask=is_state & (is_step & (phase == 0))[None, :])
                slot, phase = next_slot(slot, phase, keep, KEEP)
            new, _ = _step(state, sources_now[i], holds_now[i], w, mask, FEEDBACK, HAS_INPUT_MATRIX)
            state = tl.where(is_step[None, :], new, state)
            if READ:
                y = read(state, w, is_state, HAS_OUTPUT_GATE)
                at = outputs + (first + i) * dim
                tl.store(at, y.to(outputs.dtype.element_ty), mask=is_step)
    return state


@triton.jit(do_not_specialize=_INTEGERS)
def backward(
    grad_outputs,
    grad_final,
    kept,
    scratch,
    inputs,
    mask,
    weights,
    grad_inputs,
    grad_weights,
    grad_initial,
    length,
    dim,
    n,
    steps,
    keep,
    KEEP: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
):
    length, dim, n = length.to(tl.int64), dim.to(tl.int64), n.to(tl.int64)
    pair, is_state, w = _pair(weights, dim, n, HAS_INPUT_MATRIX, HAS_OUTPUT_GATE, N)
    features = pair // dim * length * dim + pair % dim
    # Time turned around: the first lane has the last steps of a window.
    lane, at = LANES - 1 - tl.arange(0, LANES), pair * n + rows(N)
    adjoint = tl.load(grad_final + at, mask=is_state, other=0.0)
    zero = tl.zeros((N, LANES), adjoint.dtype)
    sums = (zero, zero, zero, zero, zero)
    size = LANES * steps
    windows = (length + size - 1) // size
    for k in range(0, windows):
        first = (windows - 1 - k) * size + lane * steps
        count = tl.minimum(length - first, steps)
        inputs_at, mask_at = inputs + features + first * dim, mask
        frame = (count, steps, keep, dim, is_state)
        if mask is not None:
            mask_at += pair // dim * length + first
        if KEEP == 2:
            states_at = scratch + at * size + (lane * steps)[None, :]
            starts_at = kept + at * ((length + keep - 1) // keep) + (first // keep)[None, :]
            state = tl.load(starts_at, mask=is_state & (count > 0)[None, :], other=0.0)
            # Threads that read a state may be others than those that wrote it.
            tl.debug_barrier()
            _write(
                state,
                inputs_at,
                mask_at,
                inputs_at,
                scratch,
                at * size,
                lane * steps,
                frame,
                w,
                1,
                False,
                FEEDBACK,
                HAS_INPUT_MATRIX,
                HAS_OUTPUT_GATE,
                GROUP,
            )
            tl.debug_barrier()
        else:
            states_at = kept + at * length + first[None, :]
        pointers = (
            grad_outputs + features + first * dim,
            states_at,
            inputs_at,
            mask_at,
            grad_inputs + features + first * dim,
        )
        start = tl.where(lane[None, :] == LANES - 1, adjoint, zero)
        i, is_done = 1, False
        while (i < LANES) & (not is_done):
            end, growth, _ = _run_back(
                start,
                sums,
                pointers,
                frame,
                w,
                False,
                FEEDBACK,
                HAS_INPUT_MATRIX,
                HAS_OUTPUT_GATE,
                GROUP,
            )
            new = corrected(start, shifted(end, adjoint), growth)
            is_done = is_solved(new, start, is_state)
            start = new
            i += 1
        end, _, sums = _run_back(
            start,
            sums,
            pointers,
            frame,
            w,
            True,
            FEEDBACK,
            HAS_INPUT_MATRIX,
            HAS_OUTPUT_GATE,
            GROUP,
        )
        adjoint = at_lane(end, LANES - 1)
    tl.store(grad_initial + at, adjoint, mask=is_state)
    weight_count: tl.constexpr = 3 + HAS_INPUT_MATRIX + HAS_OUTPUT_GATE
    sums_at = grad_weights + pair // dim * weight_count * dim * n + pair % dim * n + rows(N)
    for i in tl.static_range(3):
        _store_sum(sums_at + i * dim * n, sums[i], is_state)
    if HAS_INPUT_MATRIX:
        _store_sum(sums_at + 3 * dim * n, sums[3], is_state)
    if HAS_OUTPUT_GATE:
        _store_sum(sums_at + (3 + HAS_INPUT_MATRIX) * dim * n, sums[4], is_state)


@triton.jit
def _store_sum(pointers, x, is_state):
    tl.store(pointers, tl.sum(x, 1)[:, None], mask=is_state)


@triton.jit
def _run_back(
    adjoint,
    sums,
    pointers,
    frame,
    w,
    WRITE: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Each lane from its last step to its first.

    Either the gradient by the state before the lane and its derivative by that after it, or,
    if WRITE, the gradients by inputs, and the sums of those by weights.
    """
    count, steps, keep, dim, is_state = frame
    mask, grad_inputs = pointers[3], pointers[4]
    growth = tl.full(adjoint.shape, 1.0, adjoint.dtype)
    last = (steps + GROUP - 1) // GROUP * GROUP - 1
    loads = _load_back(pointers, last, count, dim, is_state, GROUP)
    for k in range(0, last + 1, GROUP):
        grads, befores, sources, holds = loads
        loads = _load_back(pointers, last - k - GROUP, count, dim, is_state, GROUP)
        for i in tl.static_range(GROUP):
            step = last - k - i
            is_step = step < count
            # Outside of a lane all loads are zero. There Δ is, too, and nothing changes.
            hold = is_step.to(adjoint.dtype)
            if mask is not None:
                hold = holds[i]
            new, new_sums, grad_source = step_back(
                adjoint,
                sums,
                befores[i],
                sources[i],
                grads[i],
                hold[None, :],
                w,
                is_state,
                FEEDBACK,
                HAS_INPUT_MATRIX,
                HAS_OUTPUT_GATE,
            )
            adjoint = tl.where(is_step[None, :], new, adjoint)
            if WRITE:
                sums = new_sums
                at = grad_inputs + step * dim
                tl.store(at, grad_source.to(grad_inputs.dtype.element_ty), mask=is_step)
            else:
                _, jacobian = _step(
                    befores[i], sources[i], hold, w, hold, FEEDBACK, HAS_INPUT_MATRIX
                )
                growth *= jacobian
    return adjoint, growth, sums


@triton.jit
def _load_back(pointers, last, count, dim, is_state, GROUP: tl.constexpr):
    grad_outputs, states, inputs, mask, _ = pointers
    grads = load_lanes(grad_outputs, last, count, dim, -1, GROUP)
    state_count = tl.where(is_state, count[None, :], 0)
    befores = load_lanes(states, last, state_count, 1, -1, GROUP)
    sources, holds = _load(inputs, mask, last, count, dim, -1, GROUP)
    return grads, befores, sources, holds
