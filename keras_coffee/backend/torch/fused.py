"""Scans for PyTorch, and which implementation runs one."""

import torch

from keras_coffee.backend.cpu import blocks
from keras_coffee.backend.torch import cpu_kernels, eager, gpu_kernels, operators
from keras_coffee.backend.torch.export import exported_linear_scan, refuse_to_fix_the_length


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
    refuse_to_fix_the_length()
    weights = [transition, gate, readout, input_matrix, output_gate]
    if implementation(inputs) == "eager":
        tensors = [inputs, *weights, initial_state, mask]
        return eager.coffee_scan(*tensors, feedback=feedback, recompute=recompute)
    tensors = [inputs, mask, torch.stack([w for w in weights if w is not None]), initial_state]
    outputs, final_state, _ = operators.coffee_forward(
        *map(_contiguous, tensors),
        feedback=feedback,
        has_input_matrix=input_matrix is not None,
        has_output_gate=output_gate is not None,
        keep=_steps_between_kept_states(tensors, recompute),
    )
    return outputs, final_state


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
    refuse_to_fix_the_length()
    tensors = [inputs, delta, transition, input_matrix, output_matrix, initial_state]
    if implementation(inputs) == "eager":
        return eager.selective_scan(*tensors, discretization=discretization, recompute=recompute)
    outputs, final_state, _ = operators.selective_forward(
        *map(_contiguous, tensors),
        discretization=discretization,
        keep=_steps_between_kept_states(tensors, recompute),
    )
    return outputs, final_state


def implementation(inputs):
    """What runs a scan of these: `"kernel"`, one pass over time, or `"eager"`, PyTorch's operators.

    Kernels are there for a CPU with a C compiler and for a GPU with Triton. Which of several for a
    GPU, `gpu_kernels` says. Exported programs must run without this package, so they have none.
    """
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return "eager"
    is_there = {
        "cpu": cpu_kernels.is_available,
        "cuda": gpu_kernels.is_available,
        "meta": lambda: True,
    }
    is_available = is_there.get(inputs.device.type, lambda: False)
    return "kernel" if is_available() else "eager"


def _contiguous(x):
    return None if x is None else x.contiguous()


def _steps_between_kept_states(tensors, recompute):
    # Decided here, because inside an operator gradients always look switched off.
    needed = any(x is not None and x.requires_grad for x in tensors)
    if not (needed and torch.is_grad_enabled()):
        return 0
    if not recompute:
        return blocks.KEEP if tensors[0].device.type == "cpu" else 1
    # Counted, because `torch.compile` has no roots of a length that it does not know.
    keep = 1
    while (keep + 1) ** 2 <= tensors[0].shape[1]:
        keep += 1
    return keep


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
    decay, inputs = decay.transpose(0, 1), inputs.transpose(0, 1)
    refuse_to_fix_the_length()
    if torch.compiler.is_exporting():
        return exported_linear_scan(decay, inputs, initial_state, reverse).transpose(0, 1)
    return _LinearScan.apply(reverse, decay, inputs, initial_state).transpose(0, 1)


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, reverse, decay, inputs, initial_state):
        states = _linear_loop(decay, inputs, initial_state, reverse)
        ctx.save_for_backward(decay, states, initial_state)
        ctx.reverse = reverse
        return states

    @staticmethod
    def backward(ctx, grad_states):
        operators.refuse_second_derivatives()
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
