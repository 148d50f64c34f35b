"""Scans in a program that is exported: one operator that loops over any number of steps.

A loop of Python would be unrolled, for the length that the exporter happens to see, and the
operators of this package would have to be there when the program runs. No gradients.
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


def exported_scan(recurrence, weights, state, inputs):
    count = len(inputs)

    def step(state, *tensors):
        inputs, weights = [x[None] for x in tensors[:count]], tensors[count:]
        states = torch.stack([state, state])
        recurrence.fill(weights, inputs, states)
        return states[1].clone(), recurrence.read(weights, inputs, states[1:])[0].clone()

    final_state, outputs = _loop(step, state.permute(2, 0, 1), inputs, weights)
    return outputs.transpose(0, 1), final_state.permute(1, 2, 0)


def exported_linear_scan(decay, inputs, initial_state, reverse):
    def step(state, decay, inputs):
        state = torch.addcmul(inputs, decay, state)
        return state, state.clone()

    sequences = [x.flip(0) if reverse else x for x in (decay, inputs)]
    _, states = _loop(step, initial_state, sequences, [])
    return states.flip(0) if reverse else states


def _loop(step, state, sequences, constants):
    # The operator wants tensors that need no gradient, and a state whose strides never change,
    # not even where a size is 1: `contiguous` would leave those.
    tensors = [x.detach() for x in (state, *sequences, *constants)]
    state, *tensors = (x.clone(memory_format=torch.contiguous_format) for x in tensors)
    count = len(sequences)
    return torch.ops.higher_order.scan(step, [state], tensors[:count], tuple(tensors[count:]))
