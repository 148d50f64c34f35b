"""COFFEE for PyTorch on a GPU: one pass over time in Triton, forward and backward.

A lane of a warp has a pair of sequence and feature and keeps its states in registers. The inputs
of the steps to come are loaded while earlier ones are computed.
"""

import torch
import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_math import (
    device_of,
    load_steps,
    rows,
    sigmoid,
    sigmoid_of_product,
    sum_of_states,
    tiling,
)

# Not even that one is divisible by 16 may be known: several pairs would be loaded at once by a lane
# and then have to be dealt out again.
_INTEGERS = ["length", "dim", "pairs", "n", "keep"]


def coffee_forward(
    inputs, mask, weights, initial_state, *, feedback, has_input_matrix, has_output_gate, keep
):
    """Outputs, the final state, and the states before every `keep`-th step (0: none)."""
    outputs, final_state = torch.empty_like(inputs), torch.empty_like(initial_state)
    chunks = triton.cdiv(inputs.shape[1], keep) if keep else 0
    kept = weights.new_empty(chunks * initial_state.numel())
    tensors = inputs, _or_any(mask, inputs), weights, initial_state, outputs, final_state, kept
    flags = mask is not None, feedback, has_input_matrix, has_output_gate
    _launch(_forward, tensors, inputs.shape, keep, flags)
    return outputs, final_state, kept


def coffee_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    mask,
    weights,
    *,
    feedback,
    has_input_matrix,
    has_output_gate,
    keep,
):
    """Gradients by the inputs, the weights and the initial state."""
    batch, length, dim = inputs.shape
    count, _, n = weights.shape
    grad_inputs, grad_initial = torch.empty_like(inputs), torch.empty_like(grad_final)
    sums = weights.new_empty(count, n, batch, dim)
    scratch = weights.new_empty(min(keep, length) * grad_final.numel()) if keep > 1 else None
    tensors = grad_outputs, grad_final, kept, scratch, inputs, _or_any(mask, inputs), weights
    tensors += grad_inputs, sums, grad_initial
    flags = mask is not None, feedback, has_input_matrix, has_output_gate
    _launch(_backward, tensors, inputs.shape, keep, flags)
    return grad_inputs, sums.sum(2).transpose(1, 2).contiguous(), grad_initial


def _launch(kernel, tensors, shape, keep, flags):
    batch, length, dim = shape
    pairs, weights = batch * dim, tensors[6 if kernel is _backward else 2]
    if not pairs:
        return
    n = weights.shape[-1]
    states, tile, in_lane, warps = tiling(pairs, n)
    # Steps that are loaded ahead: forward a number each, backward a lane's states as well.
    group = 8 if kernel is _forward else 2 if in_lane > 4 else 4
    has_mask, feedback, has_input_matrix, has_output_gate = flags
    with device_of(weights):
        kernel[(triton.cdiv(pairs, tile),)](
            *tensors,
            *(length, dim, pairs, n, keep),
            KEEP=min(keep, 2),
            HAS_MASK=has_mask,
            FEEDBACK=feedback or "none",
            HAS_INPUT_MATRIX=has_input_matrix,
            HAS_OUTPUT_GATE=has_output_gate,
            N=states,
            P=tile,
            ALL_STATES=n == states,
            ALL_PAIRS=pairs % tile == 0,
            GROUP=group,
            num_warps=warps,
        )


def _or_any(mask, tensor):
    """A pointer is needed, even if nothing is read there."""
    return tensor if mask is None else mask


@triton.jit(do_not_specialize=_INTEGERS)
def _forward(
    inputs,
    mask,
    weights,
    initial_state,
    outputs,
    final_state,
    kept,
    length,
    dim,
    pairs,
    n,
    keep,
    KEEP: tl.constexpr,
    HAS_MASK: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
    GROUP: tl.constexpr,
):
    length, dim, pairs, n = (
        length.to(tl.int64),
        dim.to(tl.int64),
        pairs.to(tl.int64),
        n.to(tl.int64),
    )
    is_pair, sequence, feature, is_state, at, in_slab = _places(
        dim, pairs, n, N, P, ALL_STATES, ALL_PAIRS
    )
    is_number = is_state & is_pair[None, :]
    w = load_weights(weights, dim, n, feature, is_number, HAS_INPUT_MATRIX, HAS_OUTPUT_GATE, N)
    state = tl.load(initial_state + at, mask=is_number, other=0.0)
    features = sequence * length * dim + feature
    steps = (inputs + features, mask + sequence * length, outputs + features)
    slab = pairs * n
    frame = (is_pair, is_state, dim, slab)
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
            w,
            frame,
            KEEP == 1,
            True,
            HAS_MASK,
            FEEDBACK,
            HAS_INPUT_MATRIX,
            HAS_OUTPUT_GATE,
            GROUP,
        )
    tl.store(final_state + at, state, mask=is_number)


@triton.jit
def _places(
    dim,
    pairs,
    n,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
):
    """Where a program's tile [N, P] lies in arrays (B, D, n), and in one slab of kept states.

    In a slab each program has its n rows of P numbers in one piece.
    """
    first = tl.program_id(0).to(tl.int64) * P
    lane, state = tl.arange(0, P), rows(N)
    pair = first + lane
    if ALL_PAIRS:
        is_pair = tl.full((P,), 1, tl.int1)
        in_slab = first * n + state * P + lane[None, :]
    else:
        is_pair = pair < pairs
        in_slab = first * n + state * tl.minimum(pairs - first, P) + lane[None, :]
    is_state = tl.full((N, 1), 1, tl.int1) if ALL_STATES else state < n
    at = pair[None, :] * n + state
    return is_pair, pair // dim, pair % dim, is_state, at, in_slab


@triton.jit
def load_weights(
    weights,
    dim,
    n,
    feature,
    is_number,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    N: tl.constexpr,
):
    """Transition, gate, readout, input matrix and output gate; what is not there is zero."""
    at = weights + feature[None, :] * n + rows(N)
    transition = tl.load(at, mask=is_number, other=0.0)
    gate = tl.load(at + dim * n, mask=is_number, other=0.0)
    readout = tl.load(at + 2 * dim * n, mask=is_number, other=0.0)
    input_matrix = tl.zeros_like(transition)
    output_gate = tl.zeros_like(transition)
    if HAS_INPUT_MATRIX:
        input_matrix = tl.load(at + 3 * dim * n, mask=is_number, other=0.0)
    if HAS_OUTPUT_GATE:
        output_gate = tl.load(at + (3 + HAS_INPUT_MATRIX) * dim * n, mask=is_number, other=0.0)
    return transition, gate, readout, input_matrix, output_gate


@triton.jit
def _run(
    state,
    first,
    stop,
    at,
    kept,
    w,
    frame,
    KEEP: tl.constexpr,
    READ: tl.constexpr,
    HAS_MASK: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The state after the steps from `first` to `stop`; the one before each kept, if asked for."""
    inputs, mask, outputs = at
    is_pair, is_state, dim, slab = frame
    is_number = is_state & is_pair[None, :]
    # Loads of a group are under way while the group before it is computed.
    sources = load_steps(inputs, first, stop, dim, is_pair, GROUP, 1)
    holds = load_steps(mask, first, stop, 1, is_pair, GROUP, 1, HAS_MASK)
    for start in range(first, stop, GROUP):
        sources_now, holds_now = sources, holds
        sources = load_steps(inputs, start + GROUP, stop, dim, is_pair, GROUP, 1)
        holds = load_steps(mask, start + GROUP, stop, 1, is_pair, GROUP, 1, HAS_MASK)
        for i in tl.static_range(GROUP):
            t = start + i
            is_step = t < stop
            if KEEP:
                tl.store(kept + (t - first) * slab, state, mask=is_number & is_step)
            delta, change = gate_and_change(state, sources_now[i], w, FEEDBACK, HAS_INPUT_MATRIX)
            if HAS_MASK:
                delta *= holds_now[i][None, :]
            state = tl.where(is_step, state + delta * change, state)
            if READ:
                y = read(state, w, is_state, HAS_OUTPUT_GATE).to(outputs.dtype.element_ty)
                tl.store(outputs + t * dim, y, mask=is_pair & is_step)
    return state


@triton.jit
def gate_and_change(state, source, w, FEEDBACK: tl.constexpr, HAS_INPUT_MATRIX: tl.constexpr):
    """Δ, and λ x + b u."""
    transition, gate, input_matrix = w[0], w[1], w[3]
    source = source.to(state.dtype)[None, :]
    if FEEDBACK == "sigmoid":
        delta = sigmoid_of_product(gate, state)
    elif FEEDBACK == "linear":
        delta = gate * state
    else:
        delta = sigmoid_of_product(gate, source)
    drive = input_matrix * source if HAS_INPUT_MATRIX else source
    return delta, transition * state + drive


@triton.jit
def read(state, w, is_state, HAS_OUTPUT_GATE: tl.constexpr):
    readout, output_gate = w[2], w[4]
    outputs = sum_of_states(readout * state, is_state)
    if HAS_OUTPUT_GATE:
        outputs *= sigmoid(sum_of_states(output_gate * state, is_state))
    return outputs


@triton.jit(do_not_specialize=_INTEGERS)
def _backward(
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
    pairs,
    n,
    keep,
    KEEP: tl.constexpr,
    HAS_MASK: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    ALL_STATES: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
    GROUP: tl.constexpr,
):
    length, dim, pairs, n = (
        length.to(tl.int64),
        dim.to(tl.int64),
        pairs.to(tl.int64),
        n.to(tl.int64),
    )
    is_pair, sequence, feature, is_state, at, in_slab = _places(
        dim, pairs, n, N, P, ALL_STATES, ALL_PAIRS
    )
    is_number = is_state & is_pair[None, :]
    w = load_weights(weights, dim, n, feature, is_number, HAS_INPUT_MATRIX, HAS_OUTPUT_GATE, N)
    features = sequence * length * dim + feature
    steps = (inputs + features, mask + sequence * length, grad_inputs + features)
    steps = steps + (grad_outputs + features,)
    slab = pairs * n
    frame = (is_pair, is_state, dim, slab)
    adjoint = tl.load(grad_final + at, mask=is_number, other=0.0)
    zero = tl.zeros_like(adjoint)
    sums = (zero, zero, zero, zero, zero)
    chunk = length
    if KEEP == 2:
        chunk = keep.to(tl.int64)
    for k in range(0, (length + chunk - 1) // chunk):
        first = ((length + chunk - 1) // chunk - 1 - k) * chunk
        stop = tl.minimum(first + chunk, length)
        states = kept + in_slab
        if KEEP == 2:
            state = tl.load(states + first // chunk * slab, mask=is_number, other=0.0)
            states = scratch + in_slab
            # Lanes that read a state may be others than those that wrote it.
            tl.debug_barrier()
            _run(
                state,
                first,
                stop,
                steps[:3],
                states,
                w,
                frame,
                True,
                False,
                HAS_MASK,
                FEEDBACK,
                HAS_INPUT_MATRIX,
                HAS_OUTPUT_GATE,
                GROUP,
            )
            tl.debug_barrier()
        adjoint, sums = _run_back(
            adjoint,
            sums,
            first,
            stop,
            steps,
            states,
            w,
            frame,
            HAS_MASK,
            FEEDBACK,
            HAS_INPUT_MATRIX,
            HAS_OUTPUT_GATE,
            GROUP,
        )
    tl.store(grad_initial + at, adjoint, mask=is_number)
    first = tl.program_id(0).to(tl.int64) * P
    at = grad_weights + rows(N) * pairs + first + tl.arange(0, P)[None, :]
    tl.store(at, sums[0], mask=is_number)
    tl.store(at + slab, sums[1], mask=is_number)
    tl.store(at + 2 * slab, sums[2], mask=is_number)
    if HAS_INPUT_MATRIX:
        tl.store(at + 3 * slab, sums[3], mask=is_number)
    if HAS_OUTPUT_GATE:
        tl.store(at + (3 + HAS_INPUT_MATRIX) * slab, sums[4], mask=is_number)


@triton.jit
def _run_back(
    adjoint,
    sums,
    first,
    stop,
    at,
    states,
    w,
    frame,
    HAS_MASK: tl.constexpr,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """From the step before `stop` to `first`; `states` has the state before each."""
    inputs, mask, grad_inputs, grad_outputs = at
    is_pair, is_state, dim, slab = frame
    is_number = is_state & is_pair[None, :]
    states -= first * slab
    last, end = stop - 1, first - 1
    grads = load_steps(grad_outputs, last, end, dim, is_pair, GROUP, -1)
    sources = load_steps(inputs, last, end, dim, is_pair, GROUP, -1)
    befores = load_steps(states, last, end, slab, is_number, GROUP, -1)
    holds = load_steps(mask, last, end, 1, is_pair, GROUP, -1, HAS_MASK)
    for start in range(0, stop - first, GROUP):
        grads_now, sources_now, befores_now, holds_now = grads, sources, befores, holds
        t = last - start - GROUP
        grads = load_steps(grad_outputs, t, end, dim, is_pair, GROUP, -1)
        sources = load_steps(inputs, t, end, dim, is_pair, GROUP, -1)
        befores = load_steps(states, t, end, slab, is_number, GROUP, -1)
        holds = load_steps(mask, t, end, 1, is_pair, GROUP, -1, HAS_MASK)
        for i in tl.static_range(GROUP):
            t = last - start - i
            is_step = t > end
            hold = holds_now[i][None, :] if HAS_MASK else is_step.to(adjoint.dtype)
            adjoint, sums, grad_source = step_back(
                adjoint,
                sums,
                befores_now[i],
                sources_now[i],
                grads_now[i],
                hold,
                w,
                is_state,
                FEEDBACK,
                HAS_INPUT_MATRIX,
                HAS_OUTPUT_GATE,
            )
            grad_source = grad_source.to(grad_inputs.dtype.element_ty)
            tl.store(grad_inputs + t * dim, grad_source, mask=is_pair & is_step)
    return adjoint, sums


@triton.jit
def step_back(
    adjoint,
    sums,
    state,
    source,
    grad,
    hold,
    w,
    is_state,
    FEEDBACK: tl.constexpr,
    HAS_INPUT_MATRIX: tl.constexpr,
    HAS_OUTPUT_GATE: tl.constexpr,
):
    """The gradient by the state before a step, the sums with it, and that by its input.

    `adjoint` is the gradient by the state after the step, its own output left out.
    """
    transition, gate, readout, input_matrix, output_gate = w
    by_transition, by_gate, by_readout, by_input, by_output = sums
    delta, change = gate_and_change(state, source, w, FEEDBACK, HAS_INPUT_MATRIX)
    # Of the new state by the argument of the gate.
    slope = change
    if FEEDBACK != "linear":
        slope = (delta - delta * delta) * change
    delta *= hold
    slope *= hold
    source, grad = source.to(state.dtype)[None, :], grad.to(state.dtype)

    after = state + delta * change
    if HAS_OUTPUT_GATE:
        total = sum_of_states(readout * after, is_state)
        opening = sigmoid(sum_of_states(output_gate * after, is_state))
        grad_opening = (grad * total * (opening - opening * opening))[None, :]
        grad *= opening
        by_output += grad_opening * after
        adjoint += grad_opening * output_gate
    by_readout += grad[None, :] * after
    adjoint += grad[None, :] * readout

    grad_change, grad_argument = adjoint * delta, adjoint * slope
    by_transition += grad_change * state
    grad_drive = grad_change
    if HAS_INPUT_MATRIX:
        by_input += grad_change * source
        grad_drive = grad_change * input_matrix
    adjoint += transition * grad_change
    if FEEDBACK == "none":
        by_gate += grad_argument * source
        grad_drive += grad_argument * gate
    else:
        by_gate += grad_argument * state
        adjoint += grad_argument * gate
    sums = (by_transition, by_gate, by_readout, by_input, by_output)
    return adjoint, sums, sum_of_states(grad_drive, is_state)
