"""The kernels of `triton_chunked_selective.py`."""

import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_affine import (
    at_lane,
    corrected,
    first_slot,
    is_solved,
    load_lanes,
    next_slot,
    shifted,
)
from keras_coffee.backend.torch.triton_math import (
    inverse_or_zero,
    rows,
    zero_order_hold,
)

# Nothing is known of these when a kernel is compiled: see `triton_selective.py`.
_INTEGERS = ["length", "dim", "n", "steps", "keep"]


@triton.jit
def _places(dim, n, N: tl.constexpr, G: tl.constexpr):
    """The sequence of a program and its group of features, and where these lie."""
    groups = (dim + G - 1) // G
    program = tl.program_id(0).to(tl.int64)
    sequence, group = program // groups, program % groups
    state = rows(N)[:, :, None]
    feature = group * G + tl.arange(0, G)[None, :, None]
    in_weight = feature * n + state
    return sequence, group, feature, state, state < n, feature < dim, in_weight


@triton.jit(do_not_specialize=_INTEGERS)
def forward(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
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
    FLAGS: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
):
    length, dim, n = length.to(tl.int64), dim.to(tl.int64), n.to(tl.int64)
    sequence, group, feature, in_row, is_state, is_pair, in_weight = _places(dim, n, N, G)
    IS_INPUT_VARYING: tl.constexpr = FLAGS[1]
    IS_OUTPUT_VARYING: tl.constexpr = FLAGS[2]
    is_number = is_state & is_pair
    rate = tl.load(transition + in_weight, mask=is_number, other=0.0)
    in_state = sequence * dim * n + in_weight
    state = tl.load(initial_state + in_state, mask=is_number, other=0.0)
    lane = tl.arange(0, LANES)[None, None, :]
    chunks = (length + keep - 1) // tl.maximum(keep, 1)
    for window in range(0, length, LANES * steps):
        first = window + lane * steps
        count = tl.minimum(length - first, steps)
        frame = (count, steps, keep, dim, n, is_state, is_pair)
        at = sequence * length * dim + feature + first * dim
        in_matrix = (sequence * length + first) * n + in_row
        arrays = (
            inputs + at,
            delta + at,
            input_matrix + (in_matrix if IS_INPUT_VARYING else in_weight),
            output_matrix + (in_matrix if IS_OUTPUT_VARYING else in_weight),
        )
        start = tl.where(lane == 0, state, tl.zeros((N, G, LANES), state.dtype))
        k, is_done = 1, False
        while (k < LANES) & (not is_done):
            end, growth = _run(
                start, rate, arrays, outputs, kept, first, frame, 0, False, FLAGS, GROUP
            )
            new = corrected(start, shifted(end, state), growth)
            is_done = is_solved(new, start, is_number)
            start = new
            k += 1
        end, growth = _run(
            start,
            rate,
            arrays,
            outputs + at,
            kept + in_state * chunks,
            first,
            frame,
            KEEP,
            True,
            FLAGS,
            GROUP,
        )
        last = (tl.minimum(length - window, LANES * steps) - 1) // steps
        state = at_lane(end, last)
    tl.store(final_state + in_state, state, mask=is_number)


@triton.jit
def _run(
    state,
    rate,
    arrays,
    outputs,
    kept,
    first,
    frame,
    KEEP: tl.constexpr,
    READ: tl.constexpr,
    FLAGS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Where each lane ends that starts from `state`, and the product of its decays.

    If READ, outputs are written, and with KEEP the states before every `keep`-th step.
    """
    IS_ZERO_ORDER_HOLD: tl.constexpr = FLAGS[0]
    IS_INPUT_VARYING: tl.constexpr = FLAGS[1]
    IS_OUTPUT_VARYING: tl.constexpr = FLAGS[2]
    inputs, delta, input_matrix, output_matrix = arrays
    count, steps, keep, dim, n, is_state, is_pair = frame
    inverse, growth = inverse_or_zero(rate), tl.full(state.shape, 1.0, state.dtype)
    fixed_write = _load_unless(IS_INPUT_VARYING, input_matrix, is_state & is_pair)
    is_read: tl.constexpr = READ and IS_OUTPUT_VARYING
    fixed_read = _load_unless(IS_OUTPUT_VARYING, output_matrix, is_state & is_pair)
    slot, phase = first_slot(first, keep, KEEP)
    pair_count, row_count = tl.where(is_pair, count, 0), tl.where(is_state, count, 0)
    sources = load_lanes(inputs, 0, pair_count, dim, 1, GROUP)
    deltas = load_lanes(delta, 0, pair_count, dim, 1, GROUP)
    writes = load_lanes(input_matrix, 0, row_count, n, 1, GROUP, IS_INPUT_VARYING)
    reads = load_lanes(output_matrix, 0, row_count, n, 1, GROUP, is_read)
    for start in range(0, steps, GROUP):
        sources_now, deltas_now, writes_now, reads_now = sources, deltas, writes, reads
        # Loads of a group are under way while the group before it is computed.
        t = start + GROUP
        sources = load_lanes(inputs, t, pair_count, dim, 1, GROUP)
        deltas = load_lanes(delta, t, pair_count, dim, 1, GROUP)
        writes = load_lanes(input_matrix, t, row_count, n, 1, GROUP, IS_INPUT_VARYING)
        reads = load_lanes(output_matrix, t, row_count, n, 1, GROUP, is_read)
        for i in tl.static_range(GROUP):
            # Outside of a lane Δ = 0, which holds the state.
            is_step = start + i < pair_count
            if KEEP:
                at = kept + slot
                tl.store(at, state, mask=is_state & is_step & (phase == 0))
                slot, phase = next_slot(slot, phase, keep, KEEP)
            write = writes_now[i] if IS_INPUT_VARYING else fixed_write
            decay, gain, _ = _discretize(rate, inverse, deltas_now[i], IS_ZERO_ORDER_HOLD)
            state = decay * state + gain * (write * sources_now[i].to(state.dtype))
            growth *= decay
            if READ:
                read = reads_now[i] if IS_OUTPUT_VARYING else fixed_read
                y = _sum_of_states(read * state, is_state)
                at = outputs + (start + i) * dim
                tl.store(at, y.to(outputs.dtype.element_ty), mask=is_step)
    return state, growth


@triton.jit
def _load_unless(IS_VARYING: tl.constexpr, pointers, mask):
    if IS_VARYING:
        return tl.full((), 0, tl.float32)
    else:
        return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def _discretize(rate, inverse, delta, IS_ZERO_ORDER_HOLD: tl.constexpr):
    """Decay, gain, and the derivative of the gain by λ."""
    if IS_ZERO_ORDER_HOLD:
        return zero_order_hold(rate, inverse, delta)
    else:
        return 1 + rate * delta, delta, tl.zeros_like(delta)


@triton.jit
def _sum_of_states(x, is_state):
    """[1, G, LANES], without what pads n to a power of two."""
    return tl.sum(tl.where(is_state, x, 0.0), 0, keep_dims=True)


@triton.jit(do_not_specialize=_INTEGERS)
def backward(
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
    length,
    dim,
    n,
    steps,
    keep,
    KEEP: tl.constexpr,
    FLAGS: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
):
    length, dim, n = length.to(tl.int64), dim.to(tl.int64), n.to(tl.int64)
    sequence, group, feature, in_row, is_state, is_pair, in_weight = _places(dim, n, N, G)
    IS_INPUT_VARYING: tl.constexpr = FLAGS[1]
    IS_OUTPUT_VARYING: tl.constexpr = FLAGS[2]
    is_number = is_state & is_pair
    rate = tl.load(transition + in_weight, mask=is_number, other=0.0)
    in_state = sequence * dim * n + in_weight
    adjoint = tl.load(grad_final + in_state, mask=is_number, other=0.0)
    # Time turned around: the first lane has the last steps of a window.
    lane = LANES - 1 - tl.arange(0, LANES)[None, None, :]
    zero = tl.zeros((N, G, LANES), adjoint.dtype)
    sums = (zero, zero, zero)
    size = LANES * steps
    windows = (length + size - 1) // size
    batch = tl.num_programs(0) // ((dim + G - 1) // G)
    for k in range(0, windows):
        first = (windows - 1 - k) * size + lane * steps
        count = tl.minimum(length - first, steps)
        frame = (count, steps, keep, dim, n, is_state, is_pair)
        at = sequence * length * dim + feature + first * dim
        in_matrix = (sequence * length + first) * n + in_row
        in_sums = group * batch * length * n + in_matrix
        arrays = (
            inputs + at,
            delta + at,
            input_matrix + (in_matrix if IS_INPUT_VARYING else in_weight),
            output_matrix + (in_matrix if IS_OUTPUT_VARYING else in_weight),
        )
        if KEEP == 2:
            chunks = (length + keep - 1) // keep
            is_there = is_number & (count > 0)
            state = tl.load(kept + in_state * chunks + first // keep, mask=is_there, other=0.0)
            # Threads that read a state may be others than those that wrote it.
            tl.debug_barrier()
            _run(
                state,
                rate,
                arrays,
                by_inputs + at,
                scratch + in_state * size,
                lane * steps,
                frame,
                1,
                False,
                FLAGS,
                GROUP,
            )
            tl.debug_barrier()
            states = scratch + in_state * size + lane * steps
        else:
            states = kept + in_state * length + first
        results = (
            by_inputs + at,
            by_delta + at,
            by_input_matrix + in_sums,
            by_output_matrix + in_sums,
        )
        start = tl.where(lane == LANES - 1, adjoint, zero)
        i, is_done = 1, False
        while (i < LANES) & (not is_done):
            end, growth, same = _run_back(
                start,
                sums,
                rate,
                grad_outputs + at,
                states,
                arrays,
                results,
                frame,
                False,
                FLAGS,
                GROUP,
            )
            new = corrected(start, shifted(end, adjoint), growth)
            is_done = is_solved(new, start, is_number)
            start = new
            i += 1
        end, growth, sums = _run_back(
            start, sums, rate, grad_outputs + at, states, arrays, results, frame, True, FLAGS, GROUP
        )
        adjoint = at_lane(end, LANES - 1)
    tl.store(by_initial + in_state, adjoint, mask=is_number)
    tl.store(by_transition + in_state, tl.sum(sums[0], 2, keep_dims=True), mask=is_number)
    if not IS_INPUT_VARYING:
        tl.store(by_input_matrix + in_state, tl.sum(sums[1], 2, keep_dims=True), mask=is_number)
    if not IS_OUTPUT_VARYING:
        tl.store(by_output_matrix + in_state, tl.sum(sums[2], 2, keep_dims=True), mask=is_number)


@triton.jit
def _run_back(
    adjoint,
    sums,
    rate,
    grad_outputs,
    states,
    arrays,
    results,
    frame,
    WRITE: tl.constexpr,
    FLAGS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Each lane from its last step to its first.

    Either the gradient by the state before the lane and its derivative by that after it, or,
    if WRITE, the gradients by what there is at each step, and the sums of the others.
    """
    IS_ZERO_ORDER_HOLD: tl.constexpr = FLAGS[0]
    IS_INPUT_VARYING: tl.constexpr = FLAGS[1]
    IS_OUTPUT_VARYING: tl.constexpr = FLAGS[2]
    inputs, delta, input_matrix, output_matrix = arrays
    count, steps, keep, dim, n, is_state, is_pair = frame
    inverse, growth = inverse_or_zero(rate), tl.full(adjoint.shape, 1.0, adjoint.dtype)
    is_number = is_state & is_pair
    is_written: tl.constexpr = WRITE and IS_INPUT_VARYING
    fixed_write = _load_unless(IS_INPUT_VARYING, input_matrix, is_number)
    fixed_read = _load_unless(IS_OUTPUT_VARYING, output_matrix, is_number)
    pair_count, row_count = tl.where(is_pair, count, 0), tl.where(is_state, count, 0)
    number_count = tl.where(is_number, count, 0)
    last = (steps + GROUP - 1) // GROUP * GROUP - 1
    grads = load_lanes(grad_outputs, last, pair_count, dim, -1, GROUP)
    deltas = load_lanes(delta, last, pair_count, dim, -1, GROUP)
    for k in range(0, last + 1, GROUP):
        grads_now, deltas_now, t = grads, deltas, last - k
        grads = load_lanes(grad_outputs, t - GROUP, pair_count, dim, -1, GROUP)
        deltas = load_lanes(delta, t - GROUP, pair_count, dim, -1, GROUP)
        reads = load_lanes(output_matrix, t, row_count, n, -1, GROUP, IS_OUTPUT_VARYING)
        befores = load_lanes(states, t, number_count, 1, -1, GROUP, WRITE)
        sources = load_lanes(inputs, t, pair_count, dim, -1, GROUP, WRITE)
        writes = load_lanes(input_matrix, t, row_count, n, -1, GROUP, is_written)
        for i in tl.static_range(GROUP):
            # Outside of a lane Δ and all else are zero, which holds the adjoint.
            decay, gain, slope = _discretize(rate, inverse, deltas_now[i], IS_ZERO_ORDER_HOLD)
            grad = grads_now[i].to(adjoint.dtype)
            adjoint += grad * (reads[i] if IS_OUTPUT_VARYING else fixed_read)
            if WRITE:
                sums = _write_gradients(
                    t - i,
                    adjoint,
                    sums,
                    grad,
                    befores[i],
                    sources[i].to(adjoint.dtype),
                    deltas_now[i],
                    writes[i] if IS_INPUT_VARYING else fixed_write,
                    (rate, decay, gain, slope),
                    results,
                    (pair_count, row_count, dim, n, is_state),
                    FLAGS,
                )
            adjoint *= decay
            growth *= decay
    return adjoint, growth, sums


@triton.jit
def _write_gradients(
    t,
    adjoint,
    sums,
    grad,
    state,
    source,
    step,
    write,
    coefficients,
    results,
    frame,
    FLAGS: tl.constexpr,
):
    """Of step t, where `adjoint` is the gradient by the state after it; returns the sums."""
    IS_ZERO_ORDER_HOLD: tl.constexpr = FLAGS[0]
    IS_INPUT_VARYING: tl.constexpr = FLAGS[1]
    IS_OUTPUT_VARYING: tl.constexpr = FLAGS[2]
    rate, decay, gain, slope = coefficients
    by_inputs, by_delta, by_input_matrix, by_output_matrix = results
    pair_count, row_count, dim, n, is_state = frame
    drive = write * source
    by_read, by_write = grad * (decay * state + gain * drive), adjoint * gain * source
    by_decay, by_gain = adjoint * state, adjoint * drive
    decay_by_exponent = decay if IS_ZERO_ORDER_HOLD else tl.full((1, 1, 1), 1, decay.dtype)
    by_rate = by_decay * step * decay_by_exponent + by_gain * slope
    by_step = _sum_of_states((by_decay * rate + by_gain) * decay_by_exponent, is_state)
    by_source = _sum_of_states(adjoint * gain * write, is_state).to(by_inputs.dtype.element_ty)
    tl.store(by_inputs + t * dim, by_source, mask=t < pair_count)
    tl.store(by_delta + t * dim, by_step, mask=t < pair_count)
    by_transition, by_fixed_write, by_fixed_read = sums
    if IS_INPUT_VARYING:
        at = by_input_matrix + t * n
        tl.store(at, tl.sum(by_write, 1, keep_dims=True), mask=t < row_count)
    else:
        by_fixed_write += by_write
    if IS_OUTPUT_VARYING:
        at = by_output_matrix + t * n
        tl.store(at, tl.sum(by_read, 1, keep_dims=True), mask=t < row_count)
    else:
        by_fixed_read += by_read
    return by_transition + by_rate, by_fixed_write, by_fixed_read
