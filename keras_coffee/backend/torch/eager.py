"""Scans in PyTorch's own operators: a short loop over time, all else over blocks of time at once.

They serve where there is no kernel. An eager operation costs microseconds however small it is, so
the loops do as little as they can: forward, the state alone; backward, one multiply-add, because
the adjoint of a recurrence with a diagonal Jacobian is itself a linear scan.

Here a sequence of states is `(T, n, B, D)`, one of features `(T, 1, B, D)` and a weight
`(n, 1, D)`. With n last, where it is short, broadcasting over it and summing over it would take
four to eight times as long.
"""

import math

import torch

from keras_coffee.backend.torch.export import exported_scan
from keras_coffee.backend.torch.operators import refuse_second_derivatives

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
    mask,
    *,
    feedback,
    recompute,
):
    """COFFEE over inputs `(B, T, D)`: outputs `(B, T, D)` and the final state `(B, D, n)`."""
    optional = {"input_matrix": input_matrix, "output_gate": output_gate}
    present = {name: weight for name, weight in optional.items() if weight is not None}
    recurrence = _Coffee(feedback, ("transition", "gate", "readout", *present))
    weights = [_weight(w) for w in (transition, gate, readout, *present.values())]
    sequences = [_features(inputs)]
    if mask is not None:
        sequences.append(_features(mask[..., None].expand(inputs.shape)))
    return _scan(recurrence, weights, initial_state, sequences, recompute)


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
    weights = [_weight(w) for w in (transition, *(m for m in matrices if m.ndim == 2))]
    varying = [m.permute(1, 2, 0)[..., None].contiguous() for m in matrices if m.ndim == 3]
    sequences = [_features(inputs), _features(delta), *varying]
    return _scan(recurrence, weights, initial_state, sequences, recompute)


def _features(x):
    return x.transpose(0, 1)[:, None].contiguous()


def _weight(x):
    return x.t()[:, None].contiguous()


# Recurrences: `fill` computes a block of states from the first one on, `read` its outputs, and
# the object that `adjoint` makes goes through the blocks from the last to the first.


class _Coffee:
    def __init__(self, feedback, names):
        self.feedback, self.names = feedback, names

    def named(self, weights):
        return dict(zip(self.names, weights, strict=True))

    def fill(self, weights, inputs, states):
        w, (source, *mask) = self.named(weights), inputs
        drive = w["input_matrix"] * source if "input_matrix" in w else source
        transition, gate, views = w["transition"], w["gate"], states.unbind()
        delta, change = states.new_empty(2, *states.shape[1:])
        is_sigmoid = self.feedback == "sigmoid"
        deltas = [delta] * len(source)
        if self.feedback is None:
            deltas = torch.sigmoid(gate * source).unbind()
        masks = mask[0].unbind() if mask else [None] * len(source)
        steps = zip(views[:-1], views[1:], drive.unbind(), deltas, masks, strict=True)
        for before, after, drive_t, delta, mask_t in steps:
            if self.feedback:
                torch.mul(gate, before, out=delta)
            if is_sigmoid:
                delta.sigmoid_()
            if mask_t is not None:
                delta.mul_(mask_t)
            torch.addcmul(drive_t, transition, before, out=change)
            torch.addcmul(before, delta, change, out=after)

    def read(self, weights, inputs, state):
        w = self.named(weights)
        outputs = (w["readout"] * state).sum(1)
        if "output_gate" in w:
            outputs *= torch.sigmoid((w["output_gate"] * state).sum(1))
        return outputs

    def adjoint(self, weights, state, size):
        return _CoffeeAdjoint(self.feedback, self.named(weights), state, size)


class _CoffeeAdjoint:
    """Works in place, in buffers that all blocks share: fresh memory costs more than arithmetic."""

    def __init__(self, feedback, weights, state, size):
        self.feedback, self.weights = feedback, weights
        # One total for each step of a block and each sequence, reduced once at the end.
        self.totals = {name: state.new_zeros(size, *state.shape) for name in weights}
        self.buffers = state.new_empty(5, size, *state.shape)
        self.steps = [x.unbind() for x in self.buffers[:2]]

    def block(self, inputs, states, grad_outputs, grad_state):
        w, (source, *mask), state, count = self.weights, inputs, states[:-1], len(states) - 1
        adjoint, jacobian, delta, change, slope = self.buffers[:, :count]
        totals = {name: total[:count] for name, total in self.totals.items()}
        self._read(totals, states[1:], grad_outputs[:, None], adjoint, spare=change)
        by = state if self.feedback else source
        torch.mul(w["gate"], by, out=delta)
        if self.feedback != "linear":
            delta.sigmoid_()
        drive = w["input_matrix"] * source if "input_matrix" in w else source
        torch.addcmul(drive, w["transition"], state, out=change)
        # Of the new state by the argument of the gate.
        if self.feedback == "linear":
            slope.copy_(change)
        else:
            torch.addcmul(delta, delta, delta, value=-1, out=slope).mul_(change)
        for m in mask:
            delta.mul_(m)
            slope.mul_(m)
        torch.mul(delta, w["transition"], out=jacobian).add_(1)
        if self.feedback:
            jacobian.addcmul_(w["gate"], slope)
        adjoints, jacobians = (x[:count] for x in self.steps)
        grad_state = _carry_back(adjoints, jacobians, grad_state)
        grad_drive, grad_gate = delta.mul_(adjoint), slope.mul_(adjoint)
        totals["transition"].addcmul_(grad_drive, state)
        totals["gate"].addcmul_(grad_gate, by)
        if "input_matrix" in w:
            totals["input_matrix"].addcmul_(grad_drive, source)
            grad_drive.mul_(w["input_matrix"])
        if self.feedback is None:
            grad_drive.addcmul_(grad_gate, w["gate"])
        return grad_state, [grad_drive.sum(1, keepdim=True), *(None for _ in mask)]

    def _read(self, totals, state, grad_outputs, adjoint, spare):
        """Gradients of `read`: by the state, into `adjoint`, and by its weights."""
        w = self.weights
        if "output_gate" in w:
            outputs = torch.mul(w["readout"], state, out=spare).sum(1, keepdim=True)
            gate = torch.mul(w["output_gate"], state, out=spare).sum(1, keepdim=True).sigmoid_()
            grad_gate = grad_outputs * outputs * gate * (1 - gate)
            grad_outputs = grad_outputs * gate
            totals["output_gate"].addcmul_(grad_gate, state)
        totals["readout"].addcmul_(grad_outputs, state)
        torch.mul(grad_outputs, w["readout"], out=adjoint)
        if "output_gate" in w:
            adjoint.addcmul_(grad_gate, w["output_gate"])

    def grad_weights(self):
        return [total.sum((0, 2))[:, None] for total in self.totals.values()]


class _Selective:
    """Linear in the state, so all but one multiply-add a step is done block by block."""

    def __init__(self, discretization, is_varying):
        self.discretize = {"zoh": _zero_order_hold, "euler": _forward_euler}[discretization]
        self.is_varying = is_varying

    def _matrices(self, weights, inputs):
        fixed, varying = list(weights[1:]), list(inputs[2:])
        return [varying.pop(0) if v else fixed.pop(0) for v in self.is_varying]

    def prepare(self, weights, inputs):
        source, delta, *_ = inputs
        decay, gain = self.discretize(weights[0], delta)
        return decay, gain * self._matrices(weights, inputs)[0] * source

    def fill(self, weights, inputs, states):
        views, prepared = states.unbind(), self.prepare(weights, inputs)
        steps = zip(views[:-1], views[1:], *(x.unbind() for x in prepared), strict=True)
        for before, after, decay, drive in steps:
            torch.addcmul(drive, decay, before, out=after)

    def read(self, weights, inputs, state):
        return (self._matrices(weights, inputs)[1] * state).sum(1)

    def adjoint(self, weights, state, size):
        return _SelectiveAdjoint(self, weights)


class _SelectiveAdjoint:
    def __init__(self, recurrence, weights):
        self.recurrence, self.weights = recurrence, weights
        self.totals = [torch.zeros_like(w) for w in weights]

    def block(self, inputs, states, grad_outputs, grad_state):
        count = len(self.weights)
        sources = [x.detach().requires_grad_() for x in (*self.weights, *inputs)]
        state = states[1:].detach().requires_grad_()
        with torch.enable_grad():
            decay, drive = self.recurrence.prepare(sources[:count], sources[count:])
            outputs = self.recurrence.read(sources[:count], sources[count:], state)
        (adjoint,) = torch.autograd.grad(outputs, state, grad_outputs, retain_graph=True)
        grad_state = _carry_back(adjoint.unbind(), decay.detach().unbind(), grad_state)
        grads = torch.autograd.grad(
            [decay, drive, outputs],
            sources,
            [adjoint * states[:-1], adjoint, grad_outputs],
            materialize_grads=True,
        )
        for total, grad in zip(self.totals, grads, strict=False):
            total += grad
        return grad_state, grads[count:]

    def grad_weights(self):
        return [total.sum(1, keepdim=True) for total in self.totals]


def _forward_euler(transition, delta):
    return 1 + transition * delta, delta


def _zero_order_hold(transition, delta):
    """Decay e^z and gain (e^z - 1) / λ for z = λΔ, right through z = 0 with their derivatives."""
    exponent = transition * delta
    small = exponent.abs() < 0.1
    # Each branch gets numbers that suit it: what overflows in an unused one makes its gradient NaN.
    near, far = torch.where(small, exponent, 0), torch.where(small, 1, exponent)
    series = torch.ones_like(near)
    for k in range(11, 1, -1):  # what is left out, and its derivative, is below 1e-17
        series = 1 + series * near / k
    gain = delta * torch.where(small, series, torch.expm1(far) / far)
    return torch.exp(exponent), gain


# The driver.


def _scan(recurrence, weights, state, inputs, recompute):
    if torch.compiler.is_exporting():
        return exported_scan(recurrence, weights, state, inputs)
    length = len(inputs[0])
    size = max(1, min(length, _BLOCK_ELEMENTS // max(1, state.numel())))
    if recompute:
        size = max(1, math.isqrt(length))
    tensors = [state.permute(2, 0, 1), *weights, *inputs]
    # Decided here, because inside an autograd function gradients always look switched off.
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    keep = ("starts" if recompute else "states") if keep else None
    outputs, final_state = _Scan.apply(recurrence, len(weights), size, keep, *tensors)
    return outputs.transpose(0, 1), final_state.permute(1, 2, 0)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, recurrence, weight_count, size, keep, state, *tensors):
        inputs = tensors[weight_count:]
        weights = [w.expand(state.shape).contiguous() for w in tensors[:weight_count]]
        length = len(inputs[0])
        # Blocks overlap by one state, so that each finds the state before its first step.
        states = state.new_empty((length if keep == "states" else size) + 1, *state.shape)
        outputs, starts = inputs[0].new_empty(length, *inputs[0].shape[2:]), []
        for start in range(0, length, size):
            stop = min(start + size, length)
            first = start if keep == "states" else 0
            block = states[first : first + stop - start + 1]
            block[0] = state
            if keep == "starts":
                starts.append(state)
            steps = [x[start:stop] for x in inputs]
            recurrence.fill(weights, steps, block)
            outputs[start:stop] = recurrence.read(weights, steps, block[1:])
            # A copy, so that the last state does not keep its block alive.
            state = block[-1].clone()
        if keep:
            kept = starts if keep == "starts" else [states]
            ctx.save_for_backward(*tensors, *kept)
            ctx.recurrence, ctx.weight_count, ctx.size = recurrence, weight_count, size
            ctx.keep, ctx.tensor_count = keep, len(tensors)
        return outputs, state

    @staticmethod
    def backward(ctx, grad_outputs, grad_state):
        refuse_second_derivatives()
        # Read once: hooks unpack each tensor at every reading, and those of checkpoints only once.
        saved = ctx.saved_tensors
        tensors, kept = saved[: ctx.tensor_count], saved[ctx.tensor_count :]
        inputs = tensors[ctx.weight_count :]
        length, size = len(inputs[0]), ctx.size
        weights = [w.expand(grad_state.shape).contiguous() for w in tensors[: ctx.weight_count]]
        grad_outputs = grad_outputs.contiguous()
        needed = ctx.needs_input_grad[-len(inputs) :]
        pairs = zip(inputs, needed, strict=True)
        grad_inputs = [torch.empty_like(x) if need else None for x, need in pairs]
        adjoint = ctx.recurrence.adjoint(weights, grad_state.contiguous(), size)
        if ctx.keep == "starts":
            buffer = grad_state.new_empty(size + 1, *grad_state.shape)
        for start in reversed(range(0, length, size)):
            stop = min(start + size, length)
            steps = [x[start:stop] for x in inputs]
            if ctx.keep == "starts":
                states = buffer[: stop - start + 1]
                states[0] = kept[start // size]
                ctx.recurrence.fill(weights, steps, states)
            else:
                states = kept[0][start : stop + 1]
            grad_state, grads = adjoint.block(steps, states, grad_outputs[start:stop], grad_state)
            for whole, grad in zip(grad_inputs, grads, strict=True):
                if whole is not None:
                    whole[start:stop] = grad
        return None, None, None, None, grad_state, *adjoint.grad_weights(), *grad_inputs


def _carry_back(adjoints, jacobians, grad_state):
    """Adds to each step's adjoint, in place, what later steps contribute to it.

    l_t = g_t + J_{t+1} l_{t+1}; returns J_0 l_0, the gradient of the state before the block.
    """
    adjoints[-1].add_(grad_state)
    for t in range(len(adjoints) - 2, -1, -1):
        adjoints[t].addcmul_(adjoints[t + 1], jacobians[t + 1])
    return adjoints[0] * jacobians[0]
