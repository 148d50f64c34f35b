"""Scans for PyTorch: a short loop over time, everything else vectorized over blocks of time.

An eager operation costs microseconds however small it is, so the loops do as little as they can:
forward, the state alone; backward, one multiply-add, because the adjoint of a recurrence with a
diagonal Jacobian is itself a linear scan. Everything below the public functions is time-major.
"""

import math

import torch
from torch.autograd.function import once_differentiable

# Elements of one block of states: large enough to spread the cost of an operation, small enough
# for a block's temporaries to stay in cache.
_BLOCK_ELEMENTS = 2**16


def coffee_scan(
    inputs,
    transition,
    gate,
    readout,
    input_matrix,
    output_gate,
    initial_state,
    *,
    feedback,
    recompute,
):
    """COFFEE over inputs `(B, T, D)`: outputs `(B, T, D)` and the final state `(B, D, n)`."""
    optional = {"input_matrix": input_matrix, "output_gate": output_gate}
    present = {name: weight for name, weight in optional.items() if weight is not None}
    recurrence = _Coffee(feedback, tuple(present))
    weights = [transition, gate, readout, *present.values()]
    return _scan(recurrence, weights, initial_state, [inputs], recompute)


def selective_scan(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    recompute,
):
    """Selective state-space model over inputs `(B, T, D)`: outputs and the final state.

    An input or output matrix of rank 3 is `(B, T, n)`, one of rank 2 is `(D, n)`.
    """
    matrices = (input_matrix, output_matrix)
    recurrence = _Selective(discretization, [m.ndim == 3 for m in matrices])
    weights = [transition, *(m for m in matrices if m.ndim == 2)]
    sequences = [inputs, delta, *(m for m in matrices if m.ndim == 3)]
    return _scan(recurrence, weights, initial_state, sequences, recompute)


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    decay, inputs = decay.transpose(0, 1), inputs.transpose(0, 1)
    return _LinearScan.apply(reverse, decay, inputs, initial_state).transpose(0, 1)


# Recurrences. Their methods take one step or a block of steps alike, but for `gradient`.


class _Coffee:
    def __init__(self, feedback, optional):
        self.feedback, self.optional = feedback, optional

    def _named(self, weights):
        return dict(zip(("transition", "gate", "readout", *self.optional), weights, strict=True))

    def prepare(self, weights, inputs):
        w, source = self._named(weights), inputs[0][..., None]
        shape = (*source.shape[:-1], w["gate"].shape[-1])
        drive = w["input_matrix"] * source if "input_matrix" in w else source.expand(shape)
        # Contiguous, because an operation on broadcast operands takes twice as long.
        drive = drive.contiguous()
        return [drive] if self.feedback else [drive, torch.sigmoid(w["gate"] * source)]

    def advance(self, weights, prepared, state, out):
        transition, gate, *_ = weights
        drive, *delta = prepared
        if self.feedback:
            delta = [torch.mul(gate, state)]
        if self.feedback == "sigmoid":
            delta[0].sigmoid_()
        change = torch.addcmul(drive, transition, state)
        torch.addcmul(state, delta[0], change, out=out)

    def read(self, weights, inputs, state):
        w = self._named(weights)
        outputs = (w["readout"] * state).sum(-1)
        if "output_gate" in w:
            outputs *= torch.sigmoid((w["output_gate"] * state).sum(-1))
        return outputs

    def gradient(self, weights, inputs, states, grad_outputs, grad_state, buffers):
        # In place, in buffers that all blocks share: fresh memory costs more than the arithmetic.
        w, state, source = self._named(weights), states[:-1], inputs[0][..., None]
        delta, change, slope, spare, adjoint = buffers
        grads = self._read_gradient(w, states[1:], grad_outputs, adjoint, spare)
        torch.mul(w["gate"], state if self.feedback else source, out=delta)
        if self.feedback != "linear":
            delta.sigmoid_()
        drive = w["input_matrix"] * source if "input_matrix" in w else source
        torch.addcmul(drive, w["transition"], state, out=change)
        # Of the new state by the argument of the gate.
        if self.feedback == "linear":
            slope.copy_(change)
        else:
            torch.addcmul(delta, delta, delta, value=-1, out=slope).mul_(change)
        torch.mul(delta, w["transition"], out=spare).add_(1)
        if self.feedback:
            spare.addcmul_(w["gate"], slope)
        grad_state = _carry_back(adjoint, spare, grad_state)
        grad_drive, grad_gate = delta.mul_(adjoint), slope.mul_(adjoint)
        grads["transition"] = _total(torch.mul(grad_drive, state, out=spare))
        by = state if self.feedback else source
        grads["gate"] = _total(torch.mul(grad_gate, by, out=spare))
        grad_source = grad_drive
        if "input_matrix" in w:
            grads["input_matrix"] = _total(torch.mul(grad_drive, source, out=spare))
            grad_source = grad_drive.mul_(w["input_matrix"])
        if self.feedback is None:
            grad_source = grad_source.addcmul_(grad_gate, w["gate"])
        return grad_state, [*(grads[name] for name in w), grad_source.sum(-1)]

    def _read_gradient(self, w, state, grad_outputs, grad_state, spare):
        """Gradients of `read`: by the state, into `grad_state`, and by its weights."""
        grad_sum, grads = grad_outputs[..., None], {}
        if "output_gate" in w:
            outputs = torch.mul(w["readout"], state, out=spare).sum(-1, keepdim=True)
            gate = torch.mul(w["output_gate"], state, out=spare).sum(-1, keepdim=True).sigmoid_()
            grad_gate = grad_sum * outputs * gate * (1 - gate)
            grad_sum = grad_sum * gate
            grads["output_gate"] = _total(torch.mul(grad_gate, state, out=spare))
        grads["readout"] = _total(torch.mul(grad_sum, state, out=spare))
        torch.mul(grad_sum, w["readout"], out=grad_state)
        if "output_gate" in w:
            grad_state.addcmul_(grad_gate, w["output_gate"])
        return grads


class _Selective:
    """Linear in the state, so all but one multiply-add a step is done block by block."""

    def __init__(self, discretization, is_varying):
        self.discretize = {"zoh": _zero_order_hold, "euler": _forward_euler}[discretization]
        self.is_varying = is_varying

    def _matrices(self, weights, inputs):
        fixed, varying = list(weights[1:]), list(inputs[2:])
        return [varying.pop(0)[..., None, :] if v else fixed.pop(0) for v in self.is_varying]

    def prepare(self, weights, inputs):
        source, delta = (x[..., None] for x in inputs[:2])
        decay, gain = self.discretize(weights[0], delta)
        return [decay, gain * self._matrices(weights, inputs)[0] * source]

    def advance(self, weights, prepared, state, out):
        decay, drive = prepared
        torch.addcmul(drive, decay, state, out=out)

    def read(self, weights, inputs, state):
        return (self._matrices(weights, inputs)[1] * state).sum(-1)

    def gradient(self, weights, inputs, states, grad_outputs, grad_state, buffers):
        sources = [x.detach().requires_grad_() for x in (*weights, *inputs)]
        weights, inputs = sources[: len(weights)], sources[len(weights) :]
        state = states[1:].detach().requires_grad_()
        with torch.enable_grad():
            decay, drive = self.prepare(weights, inputs)
            outputs = self.read(weights, inputs, state)
        (adjoint,) = torch.autograd.grad(outputs, state, grad_outputs, retain_graph=True)
        grad_state = _carry_back(adjoint, decay.detach(), grad_state)
        grads = torch.autograd.grad(
            [decay, drive, outputs],
            sources,
            [adjoint * states[:-1], adjoint, grad_outputs],
            materialize_grads=True,
        )
        return grad_state, grads


def _forward_euler(transition, delta):
    return 1 + transition * delta, delta


def _zero_order_hold(transition, delta):
    exponent = transition * delta
    return torch.exp(exponent), delta * _expm1_ratio(exponent)


def _expm1_ratio(x):
    """(e^x - 1) / x, with value and derivative right through x = 0."""
    small = x.abs() < 0.1
    series = torch.ones_like(x)
    for k in range(9, 1, -1):  # x^9 / 10! is below float64's rounding for |x| < 0.1
        series = 1 + series * x / k
    safe = torch.where(small, 1, x)
    return torch.where(small, series, torch.expm1(safe) / safe)


# The driver.


def _scan(recurrence, weights, state, inputs, recompute):
    length = inputs[0].shape[1]
    size = max(1, min(length, _BLOCK_ELEMENTS // max(1, state.numel())))
    if recompute:
        size = max(1, math.isqrt(length))
    tensors = [state, *weights, *(x.transpose(0, 1) for x in inputs)]
    # Decided here, because inside an autograd function gradients always look switched off.
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    keep = ("starts" if recompute else "states") if keep else None
    outputs, final_state = _Scan.apply(recurrence, len(weights), size, keep, *tensors)
    return outputs.transpose(0, 1), final_state


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, recurrence, weight_count, size, keep, state, *tensors):
        weights, inputs = tensors[:weight_count], tensors[weight_count:]
        kept, outputs = [], []
        for block in zip(*(x.split(size) for x in inputs), strict=True):
            states = _block_states(recurrence, weights, state, block)
            outputs.append(recurrence.read(weights, block, states[1:]))
            state = states[-1]
            if keep:
                kept.append(states if keep == "states" else states[0].clone())
        # A copy, so that the last state does not keep its block alive.
        state = state.clone()
        if keep:
            ctx.save_for_backward(*tensors, *kept)
            ctx.recurrence, ctx.weight_count, ctx.size = recurrence, weight_count, size
            ctx.keep, ctx.tensor_count = keep, len(tensors)
        return torch.cat(outputs), state

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_outputs, grad_state):
        tensors, kept = ctx.saved_tensors[: ctx.tensor_count], ctx.saved_tensors[ctx.tensor_count :]
        weights, inputs = tensors[: ctx.weight_count], tensors[ctx.weight_count :]
        blocks = zip(*(x.split(ctx.size) for x in (*inputs, grad_outputs)), kept, strict=True)
        buffers = grad_state.new_empty(5, ctx.size, *grad_state.shape)
        grad_weights, grad_inputs = [torch.zeros_like(w) for w in weights], []
        for *block, grad_block, states in reversed(list(blocks)):
            if ctx.keep == "starts":
                states = _block_states(ctx.recurrence, weights, states, block)
            grad_state, grads = ctx.recurrence.gradient(
                weights, block, states, grad_block, grad_state, buffers[:, : len(grad_block)]
            )
            for total, grad in zip(grad_weights, grads, strict=False):
                total += grad
            grad_inputs.append(grads[len(weights) :])
        grad_inputs = [torch.cat(x[::-1]) for x in zip(*grad_inputs, strict=True)]
        return None, None, None, None, grad_state, *grad_weights, *grad_inputs


def _block_states(recurrence, weights, state, inputs):
    """The state before the block and after each of its steps."""
    prepared = recurrence.prepare(weights, inputs)
    states = state.new_empty(len(inputs[0]) + 1, *state.shape)
    states[0] = state
    views = states.unbind()
    steps = zip(*(x.unbind() for x in prepared), strict=True)
    for before, after, step in zip(views[:-1], views[1:], steps, strict=True):
        recurrence.advance(weights, step, before, after)
    return states


def _carry_back(adjoint, jacobian, grad_state):
    """Adds to each step's `adjoint`, in place, what later steps contribute to it.

    l_t = g_t + J_{t+1} l_{t+1}; returns J_0 l_0, the gradient of the state before the block.
    """
    steps, jacobians = adjoint.unbind(), jacobian.unbind()
    steps[-1].add_(grad_state)
    for t in range(len(steps) - 2, -1, -1):
        steps[t].addcmul_(steps[t + 1], jacobians[t + 1])
    return steps[0] * jacobians[0]


def _total(x):
    return x.sum((0, 1))


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, reverse, decay, inputs, initial_state):
        states = _linear_loop(decay, inputs, initial_state, reverse)
        ctx.save_for_backward(decay, states, initial_state)
        ctx.reverse = reverse
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_states):
        decay, states, initial_state = ctx.saved_tensors
        # The adjoint of a linear scan is a linear scan the other way, with decays one step later.
        conjugate, start = decay.conj(), initial_state[None]
        zero = torch.zeros_like(conjugate[:1])
        if ctx.reverse:
            following = torch.cat([zero, conjugate[:-1]])
            previous = torch.cat([states[1:], start])
        else:
            following = torch.cat([conjugate[1:], zero])
            previous = torch.cat([start, states[:-1]])
        grads = _linear_loop(
            following, grad_states, torch.zeros_like(initial_state), not ctx.reverse
        )
        first = -1 if ctx.reverse else 0
        return None, grads * previous.conj(), grads, conjugate[first] * grads[first]


def _linear_loop(decay, inputs, state, reverse):
    steps = list(zip(decay.unbind(), inputs.unbind(), strict=True))
    states = []
    for decay_t, inputs_t in reversed(steps) if reverse else steps:
        state = torch.addcmul(inputs_t, decay_t, state)
        states.append(state)
    return torch.stack(states[::-1] if reverse else states)
