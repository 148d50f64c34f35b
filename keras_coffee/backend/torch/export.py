"""Scans in a program that is exported: one operator that loops over any number of steps.

A Python loop would be unrolled for the length that the exporter sees, and this package's operators
would be needed when the program runs. No gradients.
"""

import torch


def is_converted_to_onnx():
    """Whether the model is traced for a converter to ONNX."""
    return torch.onnx.is_in_onnx_export()


def refuse_to_fix_the_length():
    if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            "The older ONNX exporter of PyTorch, which Keras takes where a size of the input is "
            "unknown, would fix the length of the sequences and not say so. Use "
            'torch.onnx.export(model, (inputs,), "model.onnx", dynamo=True, dynamic_shapes=...), '
            "or give model.export an input_signature with every size known and install "
            "onnxscript. See docs/export.md of keras_coffee."
        )


def scan_cell(recurrence, *tensors, recompute):
    """Outputs `(B, T, ...)` and the final state of any recurrence; `numpy.py` says of what."""
    sequences, weights, state = recurrence.split(tensors)
    sequences = [x.transpose(0, 1) for x in sequences]
    state_count, count = len(state), len(sequences)

    def step(*tensors):
        state, rest = list(tensors[:state_count]), tensors[state_count:]
        slices, weights = list(rest[:count]), list(rest[count:])
        steps = recurrence.steps(weights)
        new = steps.step(state, slices)
        return *(_copy(n) for n in new), _copy(steps.read(new, slices))

    *final_state, outputs = _loop(step, state, sequences, weights)
    return outputs.transpose(0, 1), final_state


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t."""

    def step(state, decay, inputs):
        state = torch.addcmul(inputs, decay, state)
        return state, state.clone()

    sequences = [x.transpose(0, 1) for x in (decay.expand_as(inputs), inputs)]
    sequences = [x.flip(0) if reverse else x for x in sequences]
    _, states = _loop(step, [initial_state], sequences, [])
    return (states.flip(0) if reverse else states).transpose(0, 1)


def _copy(x):
    return x.clone(memory_format=torch.contiguous_format)


def _loop(step, state, sequences, constants):
    # The operator wants tensors that need no gradient, and a state whose strides never change,
    # not even where a size is 1: `contiguous` would leave those.
    state, sequences, constants = (
        [_copy(x.detach()) for x in tensors] for tensors in (state, sequences, constants)
    )
    return torch.ops.higher_order.scan(step, state, sequences, tuple(constants))
