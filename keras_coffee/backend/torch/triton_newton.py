"""COFFEE for PyTorch on a GPU, parallel in time: for few channels and many steps.

A program has one pair of sequence and feature, and works on a window of time after the other by
multiple shooting; `triton_affine.py` says how. The gradient is one reversed affine recurrence, of
which the same scheme needs one correction. Signatures are those of `triton_coffee.py`.

No kernel looks at states of other pairs, so what happens in one can't touch another.
"""

import torch
import triton

from keras_coffee.backend.torch.triton_affine import (
    lanes_to_recompute,
    steps_of_lanes,
)
from keras_coffee.backend.torch.triton_math import device_of
from keras_coffee.backend.torch.triton_newton_kernels import backward, forward

# Steps that are loaded ahead. With more of them the registers do not suffice.
_GROUP = 2

# Steps of a lane in a window. Longer stretches forget more of their start and need fewer
# corrections, until states that don't forget go astray. Runs of the lanes, on average, with 32
# lanes, n = 8, inputs of 1, λ uniform in [-2, 0] and gates of standard deviation 0.5, 1, 2 and 4:
# 6, 8, 10 and 11 with 1 step; 5, 6, 12 and 16 with 16; 3, 4, 17 and 27 with 128.
_STEPS = 16


def coffee_forward(
    inputs, mask, weights, initial_state, *, feedback, has_input_matrix, has_output_gate, keep
):
    """Outputs, the final state, and the states before every `keep`-th step (0: none)."""
    outputs, final_state = torch.empty_like(inputs), torch.empty_like(initial_state)
    length = inputs.shape[1]
    kept = weights.new_empty((triton.cdiv(length, keep) if keep else 0) * initial_state.numel())
    lanes, warps = _tiling(length, weights.shape[-1])
    _launch(
        forward,
        (inputs, mask, weights, initial_state, outputs, final_state, kept),
        weights,
        inputs.shape,
        steps_of_lanes(length, lanes, _STEPS, _GROUP),
        keep,
        (feedback, has_input_matrix, has_output_gate),
        lanes,
        warps,
        TOLERANCE=8 * torch.finfo(weights.dtype).eps,
    )
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
    batch, length, dim = inputs.shape
    count, _, n = weights.shape
    grad_inputs, grad_initial = torch.empty_like(inputs), torch.empty_like(grad_final)
    sums = weights.new_empty(batch, count, dim, n)
    lanes, warps = _tiling(length, n)
    steps, scratch = steps_of_lanes(length, lanes, _STEPS, _GROUP), None
    if keep > 1:
        # Each lane computes the states from a kept one to the next again.
        steps = min(keep, length)
        lanes = lanes_to_recompute(length, lanes, steps)
        scratch = weights.new_empty(grad_final.numel() * lanes * steps)
    _launch(
        backward,
        (grad_outputs, grad_final, kept, scratch, inputs, mask, weights)
        + (grad_inputs, sums, grad_initial),
        weights,
        inputs.shape,
        steps,
        keep,
        (feedback, has_input_matrix, has_output_gate),
        lanes,
        warps,
    )
    return grad_inputs, sums.sum(0), grad_initial


def _tiling(length, n):
    """Lanes and warps: 128 to 256 numbers in a tile, as far as time and the states go."""
    states = triton.next_power_of_2(n)
    lanes = max(32, min(128, 256 // states))
    lanes = min(lanes, max(2, triton.next_power_of_2(triton.cdiv(length, _GROUP))))
    return lanes, max(1, min(8, lanes * states // 64))


def _launch(kernel, tensors, weights, shape, steps, keep, flags, lanes, warps, **constants):
    batch, length, dim = shape
    if not batch * dim:
        return
    n = weights.shape[-1]
    feedback, has_input_matrix, has_output_gate = flags
    with device_of(weights):
        kernel[(batch * dim,)](
            *tensors,
            length,
            dim,
            n,
            steps,
            keep,
            KEEP=min(keep, 2),
            FEEDBACK=feedback or "none",
            HAS_INPUT_MATRIX=has_input_matrix,
            HAS_OUTPUT_GATE=has_output_gate,
            N=triton.next_power_of_2(n),
            LANES=lanes,
            GROUP=_GROUP,
            num_warps=warps,
            **constants,
        )
