"""The selective scan for PyTorch on a GPU: one pass over time in Triton, forward and backward.

A lane of a warp has a pair of sequence and feature and keeps its states in registers. What the
steps to come need is loaded while earlier ones are computed. A program has features of one sequence
only, so that input and output matrices over time are the same for all of them.
"""

import torch
import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_math import (
    device_of,
    inverse_or_zero,
    load_steps,
    rows,
    sum_of_states,
    tiling,
    zero_order_hold,
)

# Not even that one is divisible by 16 may be known: several pairs would be loaded at once by a lane
# and then have to be dealt out again.
_INTEGERS = ["batch", "length", "dim", "n", "keep"]

# The fewest and the most pairs of a program, unless n is 1: with more there would be more to do
# for a sum over a tile's features, with fewer more of these sums.
_WIDTHS = 8, 16


def selective_forward(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    keep,
):
    """Outputs, the final state, and the states before every `keep`-th step (0: none)."""
    outputs, final_state = torch.empty_like(inputs), torch.empty_like(initial_state)
    chunks = triton.cdiv(inputs.shape[1], keep) if keep else 0
    kept = transition.new_empty(chunks * initial_state.numel())
    _launch(
        _forward,
        (inputs, delta, transition, input_matrix, output_matrix),
        (initial_state, outputs, final_state, kept),
        keep,
        discretization,
    )
    return outputs, final_state, kept


def selective_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    *,
    discretization,
    keep,
):
    """Gradients by inputs, delta, transition, both matrices and the initial state."""
    batch, length, dim = inputs.shape
    n = transition.shape[-1]
    tiles = triton.cdiv(dim, tiling(batch * dim, n, *_WIDTHS)[1])
    by_inputs, by_delta = torch.empty_like(inputs), torch.empty_like(delta)
    by_initial = torch.empty_like(grad_final)
    by_transition = transition.new_empty(n, batch, dim)
    # Sums over a tile of features, or over time.
    by_matrices = [
        m.new_empty((tiles, *m.shape) if m.ndim == 3 else (n, batch, dim))
        for m in (input_matrix, output_matrix)
    ]
    scratch = transition.new_empty(min(keep, length) * grad_final.numel()) if keep > 1 else None
    _launch(
        _backward,
        (inputs, delta, transition, input_matrix, output_matrix),
        (grad_outputs, grad_final, kept, scratch)
        + (by_inputs, by_delta, by_transition, *by_matrices, by_initial),
        keep,
        discretization,
    )
    by_transition, *by_matrices = (
        by.sum(0) if by.ndim == 4 else by.sum(1).t().contiguous()
        for by in (by_transition, *by_matrices)
    )
    return by_inputs, by_delta, by_transition, *by_matrices, by_initial


def _launch(kernel, arguments, tensors, keep, discretization):
    inputs, _, transition, input_matrix, output_matrix = arguments
    batch, length, dim = inputs.shape
    if not batch * dim:
        return
    n = transition.shape[-1]
    states, tile, in_lane, warps = tiling(batch * dim, n, *_WIDTHS)
    # Steps that are loaded ahead, as many as there are registers for.
    group = min(4, 8 // in_lane) if kernel is _forward else max(1, min(2, 4 // in_lane))
    with device_of(inputs):
        kernel[(batch * triton.cdiv(dim, tile),)](
            *arguments,
            *tensors,
            *(batch, length, dim, n, keep),
            KEEP=min(keep, 2),
            IS_ZERO_ORDER_HOLD=discretization == "zoh",
            IS_INPUT_VARYING=input_matrix.ndim == 3,
            IS_OUTPUT_VARYING=output_matrix.ndim == 3,
            N=states,
            P=tile,
            ALL_STATES=n == states,
            ALL_PAIRS=dim % tile == 0,
            GROUP=group,
            num_warps=warps,
        )


@triton.jit
def _places(
    batch,
    dim,
    n,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
):
    """Where a program's tile [N, P] lies in arrays (B, D, n), and in one slab of kept states.

    In a slab each program has its n rows of P numbers in one piece.
    """
    program, tiles = tl.program_id(0).to(tl.int64), (dim + P - 1) // P
    sequence, first = program // tiles, program % tiles * P
    lane, state, feature = tl.arange(0, P), rows(N), first + tl.arange(0, P)
    in_slab = (sequence * dim + first) * n
    if ALL_PAIRS:
        is_pair = tl.full((P,), 1, tl.int1)
        in_slab += state * P + lane[None, :]
    else:
        is_pair = feature < dim
        in_slab += state * tl.minimum(dim - first, P) + lane[None, :]
    is_state = tl.full((N, 1), 1, tl.int1) if ALL_STATES else state < n
    in_weight = feature[None, :] * n + state
    # The same for all features: each lane loads what it needs.
    in_matrix = tl.zeros_like(lane)[None, :] + state
    return sequence, first // P, feature, is_pair, is_state, in_weight, in_matrix, in_slab


@triton.jit(do_not_specialize=_INTEGERS)
def _forward(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
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
    IS_ZERO_ORDER_HOLD: tl.constexpr,
    IS_INPUT_VARYING: tl.constexpr,
    IS_OUTPUT_VARYING: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
    GROUP: tl.constexpr,
):
    batch, length = batch.to(tl.int64), length.to(tl.int64)
    dim, n = dim.to(tl.int64), n.to(tl.int64)
    sequence, _, feature, is_pair, is_state, in_weight, in_matrix, in_slab = _places(
        batch, dim, n, N, P, ALL_STATES, ALL_PAIRS
    )
    is_number = is_state & is_pair[None, :]
    features, slab = sequence * length * dim + feature, batch * dim * n
    frame = (is_pair, is_state, dim, n, slab)
    rate = tl.load(transition + in_weight, mask=is_number, other=0.0)
    in_input = sequence * length * n + in_matrix if IS_INPUT_VARYING else in_weight
    in_output = sequence * length * n + in_matrix if IS_OUTPUT_VARYING else in_weight
    steps = (inputs + features, delta + features, input_matrix + in_input)
    steps = steps + (output_matrix + in_output, outputs + features)
    at = sequence * dim * n + in_weight
    state = tl.load(initial_state + at, mask=is_number, other=0.0)
    kept_at = kept + in_slab
    chunk = length
    if KEEP == 2:
        chunk = keep.to(tl.int64)
    for first in range(0, length, chunk):
        if KEEP == 2:
            tl.store(kept_at, state, mask=is_number)
            kept_at += slab
        state = _run(
            state,
            first,
            tl.minimum(first + chunk, length),
            steps,
            kept_at,
            rate,
            frame,
            KEEP == 1,
            True,
            IS_ZERO_ORDER_HOLD,
            IS_INPUT_VARYING,
            IS_OUTPUT_VARYING,
            GROUP,
        )
    tl.store(final_state + at, state, mask=is_number)


@triton.jit
def _run(
    state,
    first,
    stop,
    at,
    kept,
    rate,
    frame,
    KEEP: tl.constexpr,
    READ: tl.constexpr,
    IS_ZERO_ORDER_HOLD: tl.constexpr,
    IS_INPUT_VARYING: tl.constexpr,
    IS_OUTPUT_VARYING: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The state after the steps from `first` to `stop`; the one before each kept, if asked for."""
    inputs, delta, input_matrix, output_matrix, outputs = at
    is_pair, is_state, dim, n, slab = frame
    is_number = is_state & is_pair[None, :]
    inverse = inverse_or_zero(rate)
    fixed_input = _load_unless(IS_INPUT_VARYING, input_matrix, is_number)
    fixed_output = _load_unless(IS_OUTPUT_VARYING, output_matrix, is_number)
    # Loads of a group are under way while the group before it is computed.
    sources = load_steps(inputs, first, stop, dim, is_pair, GROUP, 1)
    deltas = load_steps(delta, first, stop, dim, is_pair, GROUP, 1)
    is_read: tl.constexpr = READ and IS_OUTPUT_VARYING
    writes = load_steps(input_matrix, first, stop, n, is_number, GROUP, 1, IS_INPUT_VARYING)
    reads = load_steps(output_matrix, first, stop, n, is_number, GROUP, 1, is_read)
    for start in range(first, stop, GROUP):
        sources_now, deltas_now, writes_now, reads_now = sources, deltas, writes, reads
        t = start + GROUP
        sources = load_steps(inputs, t, stop, dim, is_pair, GROUP, 1)
        deltas = load_steps(delta, t, stop, dim, is_pair, GROUP, 1)
        writes = load_steps(input_matrix, t, stop, n, is_number, GROUP, 1, IS_INPUT_VARYING)
        reads = load_steps(output_matrix, t, stop, n, is_number, GROUP, 1, is_read)
        for i in tl.static_range(GROUP):
            # Steps from `stop` on have Δ = 0, which holds the state.
            is_step = start + i < stop
            if KEEP:
                kept_at = kept + (start + i - first) * slab
                tl.store(kept_at, state, mask=is_number & is_step)
            write = writes_now[i] if IS_INPUT_VARYING else fixed_input
            decay, gain, _ = _discretize(rate, inverse, deltas_now[i], IS_ZERO_ORDER_HOLD)
            state = decay * state + gain * (write * sources_now[i].to(state.dtype)[None, :])
            if READ:
                read = reads_now[i] if IS_OUTPUT_VARYING else fixed_output
                y = sum_of_states(read * state, is_state).to(outputs.dtype.element_ty)
                tl.store(outputs + (start + i) * dim, y, mask=is_pair & is_step)
    return state


@triton.jit
def _load_unless(IS_VARYING: tl.constexpr, pointers, is_in):
    if IS_VARYING:
        return tl.full((), 0, tl.float32)
    else:
        return tl.load(pointers, mask=is_in, other=0.0)


@triton.jit
def _discretize(rate, inverse, delta, IS_ZERO_ORDER_HOLD: tl.constexpr):
    """Decay, gain, and the derivative of the gain by λ."""
    delta = delta[None, :]
    if IS_ZERO_ORDER_HOLD:
        return zero_order_hold(rate, inverse, delta)
    else:
        return 1 + rate * delta, delta, tl.zeros_like(delta)


@triton.jit(do_not_specialize=_INTEGERS)
def _backward(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    grad_outputs,
    grad_final,
    kept,
    scratch,
    by_inputs,
    by_delta,
    by_transition,
    by_input_matrix,
    by_output_matrix,
    by_initial,
    batch,
    length,
    dim,
    n,
    keep,
    KEEP: tl.constexpr,
    IS_ZERO_ORDER_HOLD: tl.constexpr,
    IS_INPUT_VARYING: tl.constexpr,
    IS_OUTPUT_VARYING: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
    GROUP: tl.constexpr,
):
    batch, length = batch.to(tl.int64), length.to(tl.int64)
    dim, n = dim.to(tl.int64), n.to(tl.int64)
    sequence, tile, feature, is_pair, is_state, in_weight, in_matrix, in_slab = _places(
        batch, dim, n, N, P, ALL_STATES, ALL_PAIRS
    )
    is_number = is_state & is_pair[None, :]
    features, slab = sequence * length * dim + feature, batch * dim * n
    frame = (is_pair, is_state, dim, n, slab)
    rate = tl.load(transition + in_weight, mask=is_number, other=0.0)
    in_input = sequence * length * n + in_matrix if IS_INPUT_VARYING else in_weight
    in_output = sequence * length * n + in_matrix if IS_OUTPUT_VARYING else in_weight
    steps = (inputs + features, delta + features, input_matrix + in_input)
    steps = steps + (output_matrix + in_output, by_inputs + features, by_delta + features)
    steps = steps + (grad_outputs + features,)
    # Where a sum over a tile's features goes, at the first step.
    in_sums = (tile * batch + sequence) * length * n + tl.arange(0, N)
    sums_at = (by_input_matrix + in_sums, by_output_matrix + in_sums)
    at = sequence * dim * n + in_weight
    adjoint = tl.load(grad_final + at, mask=is_number, other=0.0)
    zero = tl.zeros_like(adjoint)
    sums = (zero, zero, zero)
    chunk = length
    if KEEP == 2:
        chunk = keep.to(tl.int64)
    chunks = (length + chunk - 1) // chunk
    for k in range(0, chunks):
        first = (chunks - 1 - k) * chunk
        stop = tl.minimum(first + chunk, length)
        states = kept + in_slab
        if KEEP == 2:
            state = tl.load(states + (chunks - 1 - k) * slab, mask=is_number, other=0.0)
            states = scratch + in_slab
            # Lanes that read a state may be others than those that wrote it.
            tl.debug_barrier()
            _run(
                state,
                first,
                stop,
                steps[:5],
                states,
                rate,
                frame,
                True,
                False,
                IS_ZERO_ORDER_HOLD,
                IS_INPUT_VARYING,
                IS_OUTPUT_VARYING,
                GROUP,
            )
            tl.debug_barrier()
        adjoint, sums = _run_back(
            adjoint,
            sums,
            first,
            stop,
            steps,
            sums_at,
            states,
            rate,
            frame,
            IS_ZERO_ORDER_HOLD,
            IS_INPUT_VARYING,
            IS_OUTPUT_VARYING,
            GROUP,
        )
    tl.store(by_initial + at, adjoint, mask=is_number)
    # (n, B, D)
    at = rows(N) * (batch * dim) + sequence * dim + feature[None, :]
    tl.store(by_transition + at, sums[0], mask=is_number)
    if not IS_INPUT_VARYING:
        tl.store(by_input_matrix + at, sums[1], mask=is_number)
    if not IS_OUTPUT_VARYING:
        tl.store(by_output_matrix + at, sums[2], mask=is_number)


@triton.jit
def _run_back(
    adjoint,
    sums,
    first,
    stop,
    at,
    sums_at,
    states,
    rate,
    frame,
    IS_ZERO_ORDER_HOLD: tl.constexpr,
    IS_INPUT_VARYING: tl.constexpr,
    IS_OUTPUT_VARYING: tl.constexpr,
    GROUP: tl.constexpr,
):
    """From the step before `stop` to `first`; `states` has the state before each."""
    inputs, delta, input_matrix, output_matrix, by_inputs, by_delta, grad_outputs = at
    by_input_matrix, by_output_matrix = sums_at
    is_pair, is_state, dim, n, slab = frame
    is_number = is_state & is_pair[None, :]
    is_row = tl.sum(is_state.to(tl.int32), 1) > 0
    inverse = inverse_or_zero(rate)
    states -= first * slab
    fixed_input = _load_unless(IS_INPUT_VARYING, input_matrix, is_number)
    fixed_output = _load_unless(IS_OUTPUT_VARYING, output_matrix, is_number)
    last, end = stop - 1, first - 1
    grads = load_steps(grad_outputs, last, end, dim, is_pair, GROUP, -1)
    sources = load_steps(inputs, last, end, dim, is_pair, GROUP, -1)
    deltas = load_steps(delta, last, end, dim, is_pair, GROUP, -1)
    befores = load_steps(states, last, end, slab, is_number, GROUP, -1)
    for start in range(0, stop - first, GROUP):
        grads_now, sources_now, deltas_now, befores_now = grads, sources, deltas, befores
        t = last - start - GROUP
        grads = load_steps(grad_outputs, t, end, dim, is_pair, GROUP, -1)
        sources = load_steps(inputs, t, end, dim, is_pair, GROUP, -1)
        deltas = load_steps(delta, t, end, dim, is_pair, GROUP, -1)
        befores = load_steps(states, t, end, slab, is_number, GROUP, -1)
        for i in tl.static_range(GROUP):
            # Steps before `first` have Δ = 0 and gradient 0, which holds the adjoint.
            t = last - start - i
            is_step = t > end
            write, read = fixed_input, fixed_output
            if IS_INPUT_VARYING:
                write = tl.load(input_matrix + t * n, mask=is_number & is_step, other=0.0)
            if IS_OUTPUT_VARYING:
                read = tl.load(output_matrix + t * n, mask=is_number & is_step, other=0.0)
            adjoint, by_rate, by_write, by_read, by_source, by_step = _step_back(
                adjoint,
                befores_now[i],
                sources_now[i],
                deltas_now[i],
                grads_now[i],
                rate,
                inverse,
                write,
                read,
                IS_ZERO_ORDER_HOLD,
            )
            sums = (
                sums[0] + by_rate,
                sums[1] if IS_INPUT_VARYING else sums[1] + by_write,
                sums[2] if IS_OUTPUT_VARYING else sums[2] + by_read,
            )
            if IS_INPUT_VARYING:
                tl.store(by_input_matrix + t * n, tl.sum(by_write, 1), mask=is_row & is_step)
            if IS_OUTPUT_VARYING:
                tl.store(by_output_matrix + t * n, tl.sum(by_read, 1), mask=is_row & is_step)
            by_source = sum_of_states(by_source, is_state).to(by_inputs.dtype.element_ty)
            tl.store(by_inputs + t * dim, by_source, mask=is_pair & is_step)
            tl.store(by_delta + t * dim, sum_of_states(by_step, is_state), mask=is_pair & is_step)
    return adjoint, sums


@triton.jit
def _step_back(
    adjoint,
    state,
    source,
    step,
    grad,
    rate,
    inverse,
    write,
    read,
    IS_ZERO_ORDER_HOLD: tl.constexpr,
):
    """The gradient by the state before a step, and those by all that enters it, not summed.

    `adjoint` is the gradient by the state after the step, its own output left out.
    """
    source, grad = source.to(state.dtype)[None, :], grad.to(state.dtype)[None, :]
    decay, gain, slope = _discretize(rate, inverse, step, IS_ZERO_ORDER_HOLD)
    # Of the decay by z = λΔ.
    decay_slope = decay if IS_ZERO_ORDER_HOLD else tl.full((1, 1), 1, decay.dtype)
    drive = write * source
    by_read = grad * (decay * state + gain * drive)
    adjoint += grad * read
    by_drive, by_decay, by_gain = adjoint * gain, adjoint * state, adjoint * drive
    by_rate = by_decay * (step[None, :] * decay_slope) + by_gain * slope
    by_step = (by_decay * rate + by_gain) * decay_slope
    return adjoint * decay, by_rate, by_drive * source, by_read, by_drive * write, by_step
