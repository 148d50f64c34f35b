"""PyTorch: what calls a function, and plain loops that autograd differentiates.

Sigmoid feedback only, no options and no checks.
"""

import torch

VERSION = f"torch {torch.__version__}"
LOOP = "autograd over a loop"


def use_threads(threads):
    torch.set_num_threads(threads)


def inference(scan):
    """`scan` without gradients."""
    return torch.inference_mode()(scan)


def training(scan):
    """What `scan` returns, and the gradients by its tensors from those of what it returns."""

    def run(grads, *tensors):
        leaves = [x.detach().requires_grad_() for x in tensors]
        outputs = scan(*leaves)
        return *outputs, *torch.autograd.grad(outputs, leaves, tuple(grads))

    return run


def coffee_scan(inputs, transition, gate, readout, initial_state):
    state, outputs = initial_state, []
    # Not inputs[:, t]: the gradient of every such slice is as large as the inputs.
    for source in inputs.unbind(1):
        delta = torch.sigmoid(gate * state)
        state = state + delta * (transition * state + source[..., None])
        outputs.append((readout * state).sum(-1))
    return torch.stack(outputs, 1), state


def selective_scan(inputs, delta, transition, input_matrix, output_matrix):
    state, outputs = inputs.new_zeros(len(inputs), *transition.shape), []
    slices = (x.unbind(1) for x in (inputs, delta, input_matrix, output_matrix))
    for source, width, entry, exit_ in zip(*slices, strict=True):
        exponent = width[..., None] * transition
        held = torch.expm1(exponent) / transition * entry[:, None] * source[..., None]
        state = torch.exp(exponent) * state + held
        outputs.append((state * exit_[:, None]).sum(-1))
    return torch.stack(outputs, 1), state
