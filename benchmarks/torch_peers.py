"""The same recurrences by other people's packages for PyTorch, which the extra `bench` installs."""

import cases
import reference_torch
import torch


def mambapy_scan():
    """The selective scan around the parallel scan of mambapy.

    As in its `MambaBlock.selective_scan`, except for the input, which it takes as Δ B u; here the
    zero-order hold, as for A and as in our S6.
    """
    from mambapy.pscan import pscan

    def scan(inputs, delta, transition, input_matrix, output_matrix):
        exponent = delta.unsqueeze(-1) * transition
        held = torch.expm1(exponent) / transition
        sources = held * input_matrix.unsqueeze(2) * inputs.unsqueeze(-1)
        states = pscan(torch.exp(exponent), sources)
        return (states @ output_matrix.unsqueeze(-1)).squeeze(3), states[:, -1]

    return scan


def mambapy_mamba_scan():
    """The scan of mambapy's `MambaBlock`, whose method it is, with the final state."""
    from mambapy.pscan import pscan

    def scan(inputs, delta, transition, input_matrix, output_matrix, skip):
        decay = torch.exp(delta.unsqueeze(-1) * transition)
        sources = delta.unsqueeze(-1) * input_matrix.unsqueeze(2) * inputs.unsqueeze(-1)
        states = pscan(decay, sources)
        outputs = (states @ output_matrix.unsqueeze(-1)).squeeze(3) + skip * inputs
        return outputs, states[:, -1]

    return scan


def transformers_scan():
    """The loop of transformers, which it runs without the kernels of mamba-ssm."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    def scan(inputs, delta, transition, input_matrix, output_matrix, skip):
        tensors = (x.transpose(1, 2) for x in (inputs, delta, input_matrix, output_matrix))
        inputs, delta, input_matrix, output_matrix = tensors
        outputs, state = mamba_selective_scan(
            *(inputs, delta, transition, input_matrix, output_matrix, skip),
            return_last_state=True,
        )
        return outputs.transpose(1, 2), state

    return scan


def mambapy_block(shape):
    """mambapy's `MambaBlock` with the given weights."""
    from mambapy.mamba import MambaBlock, MambaConfig

    _, _, dim, n = shape
    return _with_weights(MambaBlock(MambaConfig(d_model=dim, n_layers=1, d_state=n)), shape)


def transformers_block(shape):
    """The `MambaMixer` of transformers likewise."""
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    _, _, dim, n = shape
    config = MambaConfig(hidden_size=dim, state_size=n, num_hidden_layers=1, vocab_size=1)
    return _with_weights(MambaMixer(config, layer_idx=0), shape)


def _with_weights(block, shape):
    """A block as a function of inputs and weights; both packages have the same names for these."""
    names = list(cases.block_weights(*shape[2:]))

    def run(inputs, *weights):
        w = dict(zip(names, weights, strict=True))
        parameters = {
            "in_proj.weight": w["input_projection"].T,
            "conv1d.weight": w["kernel"].T[:, None],
            "conv1d.bias": w["bias"],
            "x_proj.weight": w["selection_projection"].T,
            "dt_proj.weight": w["step_projection"].T,
            "dt_proj.bias": w["step_bias"],
            "A_log": w["log_transition"],
            "D": w["skip"],
            "out_proj.weight": w["output_projection"].T,
        }
        return (torch.func.functional_call(block, parameters, (inputs,)),)

    return run


class CoffeeCell(torch.nn.Module):
    """COFFEE for pararnn: a step and its Jacobian, for a state with one axis."""

    jac_structure = "diag"

    def __init__(self, dim, n):
        super().__init__()
        self.d_h = self.hidden_size = dim * n
        self.n = n
        self.transition = torch.nn.Parameter(torch.empty(dim * n))
        self.gate = torch.nn.Parameter(torch.empty(dim * n))

    def step(self, h_prev, x):
        return self._parts(h_prev, x)[0]

    def step_with_jacobian(self, h_prev, x):
        new, delta, change = self._parts(h_prev, x)
        jacobian = 1 + delta * self.transition + delta * (1 - delta) * self.gate * change
        return new, jacobian

    def _parts(self, h_prev, x):
        delta = torch.sigmoid(self.gate * h_prev)
        change = self.transition * h_prev + x.repeat_interleave(self.n, -1)
        return h_prev + delta * change, delta, change


def pararnn(shape, mode):
    """COFFEE by the Newton iterations of pararnn over all steps at once."""
    import pararnn

    _, _, dim, n = shape
    cell = CoffeeCell(dim, n)
    # As many iterations as it needs: three, its default, are too few.
    config = pararnn.NewtonConfig(jacobian="analytic", max_iters=20, residual_atol=None)

    def scan(inputs, transition, gate, readout, initial_state):
        cell.transition.data, cell.gate.data = transition.flatten(), gate.flatten()
        states = pararnn.newton_apply(cell, inputs, config, h0=initial_state.flatten(1))
        states = states.unflatten(-1, (dim, n))
        return (readout * states).sum(-1), states[:, -1]

    def training(grads, inputs, transition, gate, readout, initial_state):
        tensors = inputs, transition, gate, readout, initial_state
        leaves = [x.detach().requires_grad_() for x in (inputs, readout, initial_state)]
        inputs, readout, initial_state = leaves
        outputs = scan(inputs, transition, gate, readout, initial_state)
        leaves[1:1] = cell.transition, cell.gate
        found = torch.autograd.grad(outputs, leaves, tuple(grads))
        return *outputs, *(x.reshape(y.shape) for x, y in zip(found, tensors, strict=True))

    return training if mode == "training" else reference_torch.inference(scan)
