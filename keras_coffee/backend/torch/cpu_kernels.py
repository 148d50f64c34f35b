"""The kernels of `backend/cpu` on tensors. All tensors are contiguous and of one dtype."""

import torch

from keras_coffee.backend.cpu import compiler, macros
from keras_coffee.backend.cpu.blocks import Blocks


@torch.compiler.assume_constant_result
def is_available():
    """Whether there is a compiler for them."""
    return compiler.is_available("coffee.c", **macros.coffee(32))


def coffee_forward(
    inputs, mask, weights, initial_state, *, feedback, has_input_matrix, has_output_gate, keep
):
    """Outputs `(B, T, D)`, the final state and what `coffee_backward` needs."""
    options = {
        "feedback": feedback,
        "has_mask": mask is not None,
        "has_input_matrix": has_input_matrix,
        "has_output_gate": has_output_gate,
    }
    blocks = _blocks(inputs, weights, keep)
    outputs, final_state = torch.empty_like(inputs), torch.empty_like(initial_state)
    kept = inputs.new_empty(blocks.kept)
    library = compiler.library("coffee.c", **macros.coffee(_bits(inputs.dtype), **options))
    arrays = (inputs, mask, weights, initial_state, outputs, final_state, kept)
    _run(blocks, library.coffee_forward, arrays)
    return outputs, final_state, kept


def coffee_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    mask,
    weights,
    *,
    feedback,
    has_input_matrix,
    has_output_gate,
    keep,
):
    """Gradients by the inputs, the weights and the initial state."""
    options = {
        "feedback": feedback,
        "has_mask": mask is not None,
        "has_input_matrix": has_input_matrix,
        "has_output_gate": has_output_gate,
    }
    blocks = _blocks(inputs, weights, keep)
    grad_inputs, grad_initial = torch.empty_like(inputs), torch.empty_like(grad_final)
    grad_weights = inputs.new_empty(blocks.rows, *weights.shape)
    library = compiler.library("coffee.c", **macros.coffee(_bits(inputs.dtype), **options))
    arrays = (grad_outputs, grad_final, kept, inputs, mask, weights)
    _run(blocks, library.coffee_backward, (*arrays, grad_inputs, grad_weights, grad_initial))
    return grad_inputs, grad_weights.sum(0), grad_initial


def selective_forward(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    keep,
):
    """Outputs `(B, T, D)`, the final state and what `selective_backward` needs."""
    blocks = _blocks(inputs, transition, keep)
    outputs, final_state = torch.empty_like(inputs), torch.empty_like(initial_state)
    kept = inputs.new_empty(blocks.kept)
    library = _selective_library(inputs, input_matrix, output_matrix, discretization)
    arrays = (inputs, delta, transition, input_matrix, output_matrix, initial_state)
    _run(blocks, library.selective_forward, (*arrays, outputs, final_state, kept))
    return outputs, final_state, kept


def selective_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    *,
    discretization,
    keep,
):
    """Gradients by inputs, Δ, transition, both matrices and the initial state."""
    blocks = _blocks(inputs, transition, keep)
    grad_inputs, grad_delta, grad_initial = map(torch.empty_like, (inputs, delta, grad_final))
    # Blocks beside each other have parts of a sum over features; below each other, over sequences.
    parts = {3: blocks.columns, 2: blocks.rows}
    sums = [
        inputs.new_empty(parts[x.dim()], *x.shape)
        for x in (transition, input_matrix, output_matrix)
    ]
    library = _selective_library(inputs, input_matrix, output_matrix, discretization)
    arrays = (grad_outputs, grad_final, kept, inputs, delta, transition)
    arrays += (input_matrix, output_matrix, grad_inputs, grad_delta, *sums, grad_initial)
    _run(blocks, library.selective_backward, arrays)
    return grad_inputs, grad_delta, *(x.sum(0) for x in sums), grad_initial


def _selective_library(inputs, input_matrix, output_matrix, discretization):
    options = macros.selective(
        _bits(inputs.dtype),
        discretization=discretization,
        input_varies=input_matrix.dim() == 3,
        output_varies=output_matrix.dim() == 3,
    )
    return compiler.library("selective.c", **options)


def _bits(dtype):
    return {torch.float32: 32, torch.float64: 64}[dtype]


def _blocks(inputs, weights, keep):
    batch, length, dim = inputs.shape
    return Blocks(batch, length, dim, weights.shape[-1], keep)


def _run(blocks, function, tensors):
    pointers = [None if x is None else x.data_ptr() for x in tensors]
    blocks.run(function, pointers, torch.get_num_threads())
