"""Any recurrence in PyTorch's own operators, for recurrences without a kernel.

Even a small eager operation costs microseconds, so the loop over time runs the step only. Outputs
are read for a block of steps at once, which the recurrence sees as a longer batch. Going back, all
steps of a block are differentiated at once:

- if the Jacobian is diagonal, from the states that the forward pass kept. One vector-Jacobian
  product gives all Jacobians, a linear scan the adjoints l_t = g_t + J_{t+1} l_{t+1}, and a second
  product the gradients by inputs and weights;
- else by running the block once more, recorded, from the one state that was kept of it.
"""

import math

import torch

from keras_coffee.backend.torch.operators import (
    linear_scan,
    refuse_forward_derivatives,
    refuse_second_derivatives,
)

# Elements of one block of states: large enough to spread the cost of an operation, small enough
# for a block's temporaries to stay in cache.
_BLOCK_ELEMENTS = 2**18


def scan_cell(recurrence, *tensors, recompute):
    """Outputs `(B, T, ...)` and the final state of any recurrence; `numpy.py` says of what."""
    refuse_forward_derivatives(*tensors)
    _, _, state = recurrence.split(tensors)
    length = tensors[0].shape[1]
    elements = max(1, *(x.numel() for x in state))
    size = math.isqrt(length) if recompute else min(length, _BLOCK_ELEMENTS // elements)
    # Decided here, because inside an autograd function gradients always look switched off.
    is_kept = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    outputs, *final_state = _Scan.apply(recurrence, max(1, size), recompute, is_kept, *tensors)
    return outputs, final_state


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, recurrence, size, recompute, is_kept, *tensors):
        run = _Run(recurrence, tensors)
        # The states before each step, or before each block only.
        is_whole = is_kept and recurrence.structure == "diagonal" and not recompute
        outputs, kept, state = [], [], run.state
        for start in range(0, run.length, size):
            before, state = run.fill(start, start + size, state)
            outputs.append(run.read(start, [*before[1:], state]))
            if is_kept:
                kept += before if is_whole else before[:1]
        ctx.recurrence, ctx.size, ctx.tensor_count = recurrence, size, len(tensors)
        ctx.save_for_backward(*tensors, *(x for state in kept for x in state))
        return torch.cat(outputs, 1), *(x.clone() for x in state)

    @staticmethod
    def backward(ctx, grad_outputs, *grad_state):
        refuse_second_derivatives()
        # Read once: hooks unpack each tensor at every reading, and those of checkpoints only once.
        saved = ctx.saved_tensors
        tensors, leaves = saved[: ctx.tensor_count], saved[ctx.tensor_count :]
        run, size, count = _Run(ctx.recurrence, tensors), ctx.size, ctx.recurrence.state_count
        kept = [list(leaves[k : k + count]) for k in range(0, len(leaves), count)]
        is_whole = len(kept) == run.length
        grads, carry = _Gradients(run, ctx.needs_input_grad[4:]), list(grad_state)
        for start in reversed(range(0, run.length, size)):
            given = grad_outputs[:, start : start + size]
            first = kept[start if is_whole else start // size]
            if ctx.recurrence.structure == "dense":
                carry = grads.unrolled(start, first, given, carry)
                continue
            if is_whole:
                before = kept[start : start + size]
            else:
                before, _ = run.fill(start, start + size, first)
            carry = grads.diagonal(start, before, given, carry)
        return None, None, None, None, *grads.results(carry)


class _Run:
    """A scan, and how to do a part of it."""

    def __init__(self, recurrence, tensors):
        self.sequences, self.weights, self.state = recurrence.split(tensors)
        self.recurrence = recurrence
        self.batch, self.length = self.sequences[0].shape[:2]

    def fill(self, start, stop, state):
        """The states before each of some steps, and the one after the last of them."""
        step = self.recurrence.steps(self.weights).step
        # One call for all views: an index costs as much as an operation of a step.
        steps = zip(*(x[:, start:stop].unbind(1) for x in self.sequences), strict=True)
        before = []
        for inputs in steps:
            before.append(state)
            state = step(state, list(inputs))
        return before, state

    def slices(self, start, stop):
        """The sequences of some steps as one batch."""
        return [x[:, start:stop].flatten(0, 1) for x in self.sequences]

    def read(self, start, states):
        """The outputs `(B, K, ...)` of the states after K steps."""
        slices = self.slices(start, start + len(states))
        outputs = self.recurrence.steps(self.weights).read(_joined(states), slices)
        return outputs.unflatten(0, (self.batch, len(states)))


def _joined(states):
    """States of some steps as one batch."""
    return [torch.stack(x, 1).flatten(0, 1) for x in zip(*states, strict=True)]


class _Gradients:
    """Gradients by weights and sequences, filled block by block from the last to the first."""

    def __init__(self, run, needed):
        self.run = run
        sequences, weights, _ = run.recurrence.split(list(needed))
        self.by_sequences = _where_needed(torch.empty_like, run.sequences, sequences)
        self.by_weights = _where_needed(torch.zeros_like, run.weights, weights)

    def _sources(self, start, stop):
        """Weights and sequences of a block, of which some are to be differentiated by."""
        weights = [w.detach() for w in self.run.weights]
        slices = [x.detach() for x in self.run.slices(start, stop)]
        totals = *self.by_weights, *self.by_sequences
        for x, total in zip([*weights, *slices], totals, strict=True):
            x.requires_grad_(total is not None)
        return weights, slices

    def _add(self, start, grads):
        """Takes gradients by all of `_sources` that are needed, in order."""
        grads = iter(grads)
        for total in self.by_weights:
            if total is not None:
                total += next(grads)
        for whole in self.by_sequences:
            if whole is not None:
                grad = next(grads).unflatten(0, (whole.shape[0], -1) if len(whole) else (0, 1))
                whole[:, start : start + grad.shape[1]] = grad

    def diagonal(self, start, before, grad_outputs, grad_state):
        """The gradient by the state before a block, from those by outputs and the state after."""
        count = len(before)
        weights, slices = self._sources(start, start + count)
        steps = self.run.recurrence.steps(weights)
        (old,) = (x.requires_grad_() for x in _joined(before))
        with torch.enable_grad():
            (new,) = steps.step([old], slices)
            state = new.detach().requires_grad_()
            outputs = steps.read([state], slices)
        given = grad_outputs.flatten(0, 1)
        direct, jacobian = (
            _gradients([y], [x], [g])[0].unflatten(0, (self.run.batch, count))
            for y, x, g in ((outputs, state, given), (new, old, torch.ones_like(new)))
        )
        adjoint, grad_before = self._adjoint(start, jacobian, direct, grad_state[0])
        sources = [x for x in (*weights, *slices) if x.requires_grad]
        self._add(start, _gradients([new, outputs], sources, [adjoint.flatten(0, 1), given]))
        return [grad_before]

    def _adjoint(self, start, jacobian, direct, carry):
        """l_t = g_t + J_{t+1} l_{t+1} of all steps of a block, and J_0 l_0.

        In pieces that begin at resets: the Jacobian is zero there, but zero times NaN is not.
        """
        count = jacobian.shape[1]
        pieces: list[torch.Tensor] = []
        _, _, reset = self.run.recurrence.unmarked(self.run.sequences)
        begins = [0]
        if reset is not None:
            reset = reset[:, start : start + count]
            begins += (reset[:, 1:].any(0).nonzero()[:, 0] + 1).tolist()
        for begin, end in reversed(list(zip(begins, [*begins[1:], count], strict=True))):
            ones = torch.ones_like(jacobian[:, :1])
            following = torch.cat([jacobian[:, begin + 1 : end], ones], 1)
            pieces.insert(0, linear_scan(following, direct[:, begin:end], carry, reverse=True))
            carry = jacobian[:, begin] * pieces[0][:, 0]
            if reset is not None:
                is_cut = reset[:, begin].view(-1, *[1] * (carry.ndim - 1))
                carry = torch.where(is_cut, 0, carry)
        return torch.cat(pieces, 1), carry

    def unrolled(self, start, first, grad_outputs, grad_state):
        """The same, by running the block again."""
        count = grad_outputs.shape[1]
        weights, slices = self._sources(start, start + count)
        steps = self.run.recurrence.steps(weights)
        state = first = [x.detach().requires_grad_() for x in first]
        states = []
        with torch.enable_grad():
            views = [x.unflatten(0, (self.run.batch, count)).unbind(1) for x in slices]
            for at_step in zip(*views, strict=True):
                state = steps.step(state, list(at_step))
                states.append(state)
            outputs = steps.read(_joined(states), slices)
        sources = [*first, *(x for x in (*weights, *slices) if x.requires_grad)]
        given = [*grad_state, grad_outputs.flatten(0, 1)]
        grads = _gradients([*state, outputs], sources, given)
        self._add(start, grads[len(first) :])
        return list(grads[: len(first)])

    def results(self, grad_state):
        """A gradient or None for each tensor of the scan."""
        return [*self.by_sequences, *self.by_weights, *grad_state]


def _where_needed(make, tensors, needed):
    return [make(x) if need else None for x, need in zip(tensors, needed, strict=True)]


def _gradients(outputs, sources, grads):
    pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    if not (pairs and sources):
        return [torch.zeros_like(x) for x in sources]
    outputs, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, sources, grads, retain_graph=True, materialize_grads=True)
