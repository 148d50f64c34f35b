"""The linear recurrence for PyTorch on a GPU in Triton, real or complex, one step after another.

With decays a and inputs b, each number of a state on its own,

    h_t = a_t h_{t-1} + b_t.

Let g_t be the gradient of a loss by h_t alone, and l_t that by h_t and all that comes after it. By
PyTorch's convention a complex gradient is that by the real part plus i times that by the imaginary
part, so that it passes a product by the conjugate of the other factor:

    l_t = g_t + a*_{t+1} l_{t+1},    by b_t: l_t,    by a_t: l_t h*_{t-1},    by h_0: a*_1 l_1.

A lane has one number of a state of one sequence, its neighbours those beside it in memory. The
state is all there is in registers, so steps are loaded far ahead: that hides what a load takes. A
complex number is a pair of reals there as in memory; the second is None if all are real.
"""

import torch
import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_recurrence import Place, device_of, load_group, store

# Nothing is known of these when a kernel is compiled: see `triton_sequential`.
_INTEGERS = ["length", "width", "numbers", "decay_sequence", "decay_step", "step"]

_LANES = 32

# Real numbers that a lane loads ahead.
_AHEAD = 32


def forward(decay, inputs, state, *, reverse):
    """All states `(B, T, ...)`. Axes 0 and 1 of `decay` may be 1, the others are those of `inputs`.

    If `reverse`, the last step comes first.
    """
    states = torch.empty_like(inputs)
    _launch(_forward, (decay, inputs, state, states), decay, inputs, reverse)
    return states


def backward(grad_states, states, decay, state, *, reverse):
    """Gradients by decay, inputs and the initial state."""
    by_inputs, by_state = torch.empty_like(states), torch.empty_like(state)
    # A sum over time is done by the kernel, one over sequences is left to do.
    is_sum = decay.shape[1] == 1
    by_decay = torch.empty_like(state)[:, None] if is_sum else torch.empty_like(states)
    tensors = (decay, grad_states, states, state, by_decay, by_inputs, by_state)
    _launch(_backward, tensors, decay, states, not reverse, IS_SUM=is_sum)
    if decay.shape[0] == 1:
        by_decay = by_decay.sum(0, keepdim=True)
    return by_decay, by_inputs, by_state


def _launch(kernel, tensors, decay, inputs, is_backwards, **constants):
    batch, length, *shape = inputs.shape
    width = torch.Size(shape).numel()
    if not batch * width:
        return
    is_complex = inputs.is_complex()
    with device_of(inputs):
        kernel[(triton.cdiv(batch * width, _LANES),)](
            *(torch.view_as_real(x.resolve_conj()) if is_complex else x for x in tensors),
            *(length, width, batch * width),
            0 if decay.shape[0] == 1 else decay.shape[1] * width,
            0 if decay.shape[1] == 1 else width,
            -1 if is_backwards else 1,
            IS_COMPLEX=is_complex,
            LANES=_LANES,
            GROUP=_AHEAD // (4 if is_complex else 2) // (1 if kernel is _forward else 2),
            num_warps=1,
            **constants,
        )


@triton.jit(do_not_specialize=_INTEGERS)
def _forward(
    decay,
    inputs,
    initial_state,
    states,
    length,
    width,
    numbers,
    decay_sequence,
    decay_step,
    step,
    IS_COMPLEX: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
):
    number, is_in, at, first, stride = _lanes(length, width, numbers, step, LANES)
    decays_at = number // width * decay_sequence + first * decay_step + number % width
    decay = _parts(decay, decays_at, decay_step.to(tl.int64) * step, is_in, IS_COMPLEX)
    inputs = _parts(inputs, at, stride, is_in, IS_COMPLEX)
    states = _parts(states, at, stride, is_in, IS_COMPLEX)
    state = load_group(_parts(initial_state, number, 0, is_in, IS_COMPLEX), 0, 0, 1, 1, 1)[0]
    decay_ahead = load_group(decay, 0, 0, length, 1, GROUP)
    inputs_ahead = load_group(inputs, 0, 0, length, 1, GROUP)
    for start in range(0, length, GROUP):
        a, b = decay_ahead, inputs_ahead
        decay_ahead = load_group(decay, start + GROUP, 0, length, 1, GROUP)
        inputs_ahead = load_group(inputs, start + GROUP, 0, length, 1, GROUP)
        for i in tl.static_range(GROUP):
            state = _plus(_times(a[i], state), b[i])
            _store(states, state, start + i, start + i < length)


@triton.jit(do_not_specialize=_INTEGERS)
def _backward(
    decay,
    grad_states,
    states,
    initial_state,
    by_decay,
    by_inputs,
    by_state,
    length,
    width,
    numbers,
    decay_sequence,
    decay_step,
    step,
    IS_COMPLEX: tl.constexpr,
    IS_SUM: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
):
    number, is_in, at, first, stride = _lanes(length, width, numbers, step, LANES)
    decays_at = number // width * decay_sequence + first * decay_step + number % width
    decay = _parts(decay, decays_at, decay_step.to(tl.int64) * step, is_in, IS_COMPLEX)
    grads = _parts(grad_states, at, stride, is_in, IS_COMPLEX)
    states = _parts(states, at, stride, is_in, IS_COMPLEX)
    by_inputs = _parts(by_inputs, at, stride, is_in, IS_COMPLEX)
    by_decay = _parts(by_decay, number if IS_SUM else at, stride, is_in, IS_COMPLEX)
    initial = load_group(_parts(initial_state, number, 0, is_in, IS_COMPLEX), 0, 0, 1, 1, 1)[0]
    # What comes to an adjoint from the step after it, and the sum over time: both start at zero.
    carry = load_group(_parts(initial_state, number, 0, is_in, IS_COMPLEX), 0, 0, 0, 1, 1)[0]
    total = carry
    decay_ahead = load_group(decay, 0, 0, length, 1, GROUP)
    grads_ahead = load_group(grads, 0, 0, length, 1, GROUP)
    states_ahead = load_group(states, 1, 0, length, 1, GROUP)
    for start in range(0, length, GROUP):
        a, g, h = decay_ahead, grads_ahead, states_ahead
        decay_ahead = load_group(decay, start + GROUP, 0, length, 1, GROUP)
        grads_ahead = load_group(grads, start + GROUP, 0, length, 1, GROUP)
        states_ahead = load_group(states, start + GROUP + 1, 0, length, 1, GROUP)
        for i in tl.static_range(GROUP):
            t = start + i
            adjoint = _plus(g[i], carry)
            by_a = _times(adjoint, _conjugate(_where(t == length - 1, initial, h[i])))
            if IS_SUM:
                total = _where(t < length, _plus(total, by_a), total)
            else:
                _store(by_decay, by_a, t, t < length)
            _store(by_inputs, adjoint, t, t < length)
            carry = _where(t < length, _times(adjoint, _conjugate(a[i])), carry)
    _store(_parts(by_state, number, 0, is_in, IS_COMPLEX), carry, 0, is_in)
    if IS_SUM:
        _store(by_decay, total, 0, is_in)


@triton.jit
def _lanes(length, width, numbers, step, LANES: tl.constexpr):
    """Of each lane: its number, if there is one, where it is at the first step, and the stride."""
    number, step = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES), step.to(tl.int64)
    first = tl.where(step > 0, 0, length - 1).to(tl.int64)
    at = (number // width * length + first) * width + number % width
    return number, number < numbers, at, first, width * step


@triton.jit
def _parts(pointer, at, stride, is_in, IS_COMPLEX: tl.constexpr):
    """The places of the real and the imaginary part at the first step."""
    if IS_COMPLEX:
        at = pointer + 2 * at
        return Place(at, 2 * stride, is_in), Place(at + 1, 2 * stride, is_in)
    else:
        return Place(pointer + at, stride, is_in), None


@triton.jit
def _store(parts, x, t, is_step):
    store(parts[0], x[0], t, is_step)
    if parts[1] is not None:
        store(parts[1], x[1], t, is_step)


@triton.jit
def _plus(x, y):
    return x[0] + y[0], None if x[1] is None else x[1] + y[1]


@triton.jit
def _times(x, y):
    if x[1] is None:
        return x[0] * y[0], None
    else:
        return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


@triton.jit
def _conjugate(x):
    return x[0], None if x[1] is None else -x[1]


@triton.jit
def _where(condition, x, y):
    real = tl.where(condition, x[0], y[0])
    return real, None if x[1] is None else tl.where(condition, x[1], y[1])
