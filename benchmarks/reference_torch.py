"""The baseline on PyTorch: autograd over a plain loop."""

import torch

VERSION = f"torch {torch.__version__}"
BASELINE = "autograd over a plain loop"


def use_one_thread():
    torch.set_num_threads(1)


def inference(scan, tensors, _):
    def run():
        with torch.inference_mode():
            return scan(*tensors)

    return run


def training(scan, tensors, grad_outputs):
    leaves = [x.detach().requires_grad_() for x in tensors]

    def run():
        outputs = scan(*leaves)
        return outputs, *torch.autograd.grad(outputs, leaves, grad_outputs)

    return run


MODES = {"training": training, "recompute": training, "inference": inference}


def coffee_scan(inputs, transition, gate, readout, initial_state):
    state, outputs = initial_state, []
    # Not inputs[:, t]: the gradient of every such slice is as large as the inputs.
    for source in inputs.unbind(1):
        delta = torch.sigmoid(gate * state)
        state = state + delta * (transition * state + source[..., None])
        outputs.append((readout * state).sum(-1))
    return torch.stack(outputs, 1)
