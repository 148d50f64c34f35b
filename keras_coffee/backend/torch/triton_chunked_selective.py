"""The selective scan for PyTorch on a GPU, parallel in time: for few channels and many steps.

A program has one pair of sequence and feature, and works on a window of time after the other by
multiple shooting; `triton_affine.py` says how. Both the recurrence and its gradient are affine, so
that each needs one correction: lanes run their stretch twice. Signatures are those of
`triton_selective.py`.

Where input or output matrices over time are shared by the features, the gradient by them is a sum
over the features, and a program has a few of them; partial sums are a quarter of the states at
most. Tiles are [N, G, LANES]: states, features, lanes.
"""

import torch
import triton

from keras_coffee.backend.torch.triton_affine import (
    lanes_to_recompute,
    steps_of_lanes,
)
from keras_coffee.backend.torch.triton_chunked_selective_kernels import backward, forward
from keras_coffee.backend.torch.triton_math import device_of

# Steps that are loaded ahead. With more of them the registers do not suffice.
_GROUP = 2
_STEPS = 32
_FEATURES = 4


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
    """Outputs, the final state, and the states before every `keep`-th step (0: none)."""
    outputs, final_state = torch.empty_like(inputs), torch.empty_like(initial_state)
    length = inputs.shape[1]
    kept = transition.new_empty((triton.cdiv(length, keep) if keep else 0) * initial_state.numel())
    lanes, warps = _tiling(length, 1, transition.shape[-1])
    _launch(
        forward,
        (inputs, delta, transition, input_matrix, output_matrix),
        (initial_state, outputs, final_state, kept),
        keep,
        discretization,
        1,
        steps_of_lanes(length, lanes, _STEPS, _GROUP),
        lanes,
        warps,
    )
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
    """Gradients by inputs, delta, transition, both matrices and the initial state."""
    batch, length, dim = inputs.shape
    n = transition.shape[-1]
    matrices = (input_matrix, output_matrix)
    is_any_varying = any(m.ndim == 3 for m in matrices)
    features = min(_FEATURES, triton.next_power_of_2(max(1, dim))) if is_any_varying else 1
    by_inputs, by_delta = torch.empty_like(inputs), torch.empty_like(delta)
    by_initial = torch.empty_like(grad_final)
    # A sum for each sequence, or for each group of features.
    by_transition = transition.new_empty(batch, dim, n)
    by_matrices = [
        m.new_empty((triton.cdiv(dim, features), *m.shape) if m.ndim == 3 else (batch, dim, n))
        for m in matrices
    ]
    lanes, warps = _tiling(length, features, n)
    steps, scratch = steps_of_lanes(length, lanes, _STEPS, _GROUP), None
    if keep > 1:
        # Each lane computes the states from a kept one to the next again.
        steps = min(keep, length)
        lanes = lanes_to_recompute(length, lanes, steps)
        scratch = transition.new_empty(grad_final.numel() * lanes * steps)
    _launch(
        backward,
        (inputs, delta, transition, input_matrix, output_matrix),
        (grad_outputs, grad_final, kept, scratch)
        + (by_inputs, by_delta, by_transition, *by_matrices, by_initial),
        keep,
        discretization,
        features,
        steps,
        lanes,
        warps,
    )
    by_transition, *by_matrices = (by.sum(0) for by in (by_transition, *by_matrices))
    return by_inputs, by_delta, by_transition, *by_matrices, by_initial


def _tiling(length, features, n):
    """Lanes and warps: 512 numbers in a tile, as far as time and the states go."""
    pairs = features * triton.next_power_of_2(n)
    lanes = max(4, min(256, 512 // pairs))
    lanes = min(lanes, max(2, triton.next_power_of_2(triton.cdiv(length, _GROUP))))
    return lanes, max(1, min(8, lanes * pairs // 64))


def _launch(kernel, arguments, tensors, keep, discretization, features, steps, lanes, warps):
    inputs, _, transition, input_matrix, output_matrix = arguments
    batch, length, dim = inputs.shape
    if not batch * dim:
        return
    n = transition.shape[-1]
    with device_of(inputs):
        kernel[(batch * triton.cdiv(dim, features),)](
            *arguments,
            *tensors,
            length,
            dim,
            n,
            steps,
            keep,
            KEEP=min(keep, 2),
            FLAGS=(discretization == "zoh", input_matrix.ndim == 3, output_matrix.ndim == 3),
            N=triton.next_power_of_2(n),
            G=features,
            LANES=lanes,
            GROUP=_GROUP,
            num_warps=warps,
        )
