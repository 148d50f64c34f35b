"""The scans as operators of PyTorch.

Autograd and `torch.compile` know them, and the dispatcher picks the kernel by device.

Tensors are contiguous. `keep` is how many steps lie between two states that are kept for the
gradient, 0 if there will be none. The weights of COFFEE come stacked, `(W, D, n)`: λ, w and C,
then b and w_γ where there are any.
"""

import torch

from keras_coffee.backend.torch import cpu_kernels, gpu_kernels


def _operator(name, schema, cpu, gpu, fake):
    operator = torch.library.custom_op(
        f"keras_coffee::{name}", cpu, mutates_args=(), device_types="cpu", schema=schema
    )
    operator.register_kernel("cuda", gpu)
    operator.register_fake(fake)
    return operator


def _fake_coffee_forward(inputs, mask, weights, initial_state, *, keep, **options):
    return _fake_results(inputs, initial_state, keep)


def _fake_coffee_backward(
    grad_outputs, grad_final, kept, inputs, mask, weights, *, keep, **options
):
    return tuple(map(torch.empty_like, (inputs, weights, grad_final)))


def _fake_selective_forward(
    inputs, delta, transition, input_matrix, output_matrix, initial_state, *, keep, **options
):
    return _fake_results(inputs, initial_state, keep)


def _fake_selective_backward(grad_outputs, grad_final, kept, *tensors, **options):
    return tuple(map(torch.empty_like, (*tensors, grad_final)))


def _fake_results(inputs, initial_state, keep):
    chunks = -(-inputs.shape[1] // keep) if keep else 0
    kept = initial_state.new_empty(chunks * initial_state.numel())
    return torch.empty_like(inputs), torch.empty_like(initial_state), kept


def _coffee_forward(
    inputs, mask, weights, initial_state, *, has_input_matrix, has_output_gate, **options
):
    weights = _unstacked(weights, has_input_matrix, has_output_gate)
    return gpu_kernels.forward("coffee", [inputs, mask], weights, initial_state, **options)


def _coffee_backward(
    grad_outputs,
    grad_final,
    kept,
    inputs,
    mask,
    weights,
    *,
    has_input_matrix,
    has_output_gate,
    **options,
):
    weights = _unstacked(weights, has_input_matrix, has_output_gate)
    grads = grad_outputs, grad_final, kept, [inputs, mask], weights
    (by_inputs, _), by_weights, by_state = gpu_kernels.backward("coffee", *grads, **options)
    return by_inputs, torch.stack([w for w in by_weights if w is not None]), by_state


def _unstacked(weights, has_input_matrix, has_output_gate):
    weights = list(weights.unbind())
    return [
        *weights[:3],
        weights[3] if has_input_matrix else None,
        weights[-1] if has_output_gate else None,
    ]


def _selective_forward(
    inputs, delta, transition, input_matrix, output_matrix, initial_state, **options
):
    sequences, weights = _split(inputs, delta, transition, input_matrix, output_matrix)
    return gpu_kernels.forward("selective", sequences, weights, initial_state, **options)


def _selective_backward(grad_outputs, grad_final, kept, *tensors, **options):
    grads = grad_outputs, grad_final, kept, *_split(*tensors)
    sequences, weights, by_state = gpu_kernels.backward("selective", *grads, **options)
    matrices = [weights[k] if sequences[k + 1] is None else sequences[k + 1] for k in (1, 2)]
    return *sequences[:2], weights[0], *matrices, by_state


def _split(inputs, delta, transition, *matrices):
    """Sequences and weights: a matrix is one or the other."""
    sequences = [m if m.ndim == 3 else None for m in matrices]
    weights = [m if m.ndim == 2 else None for m in matrices]
    return [inputs, delta, *sequences], [transition, *weights]


_COFFEE_OPTIONS = "str? feedback, bool has_input_matrix, bool has_output_gate, int keep"
coffee_forward = _operator(
    "coffee_forward",
    "(Tensor inputs, Tensor? mask, Tensor weights, Tensor initial_state, *, "
    f"{_COFFEE_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    cpu_kernels.coffee_forward,
    _coffee_forward,
    _fake_coffee_forward,
)
coffee_backward = _operator(
    "coffee_backward",
    "(Tensor grad_outputs, Tensor grad_final, Tensor kept, Tensor inputs, Tensor? mask, "
    f"Tensor weights, *, {_COFFEE_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    cpu_kernels.coffee_backward,
    _coffee_backward,
    _fake_coffee_backward,
)
selective_forward = _operator(
    "selective_forward",
    "(Tensor inputs, Tensor delta, Tensor transition, Tensor input_matrix, Tensor output_matrix, "
    "Tensor initial_state, *, str discretization, int keep) -> (Tensor, Tensor, Tensor)",
    cpu_kernels.selective_forward,
    _selective_forward,
    _fake_selective_forward,
)
selective_backward = _operator(
    "selective_backward",
    "(Tensor grad_outputs, Tensor grad_final, Tensor kept, Tensor inputs, Tensor delta, "
    "Tensor transition, Tensor input_matrix, Tensor output_matrix, *, str discretization, "
    "int keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu_kernels.selective_backward,
    _selective_backward,
    _fake_selective_backward,
)


# Gradients. The initial state is the last of the tensors, and its gradient the last of the results.


def refuse_second_derivatives():
    # Gradients are recorded in a backward pass only to differentiate them again. PyTorch's own
    # `once_differentiable` lets that pass where another path leads to the same tensor.
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "The scans of keras_coffee have no second derivatives on PyTorch. Leave out "
            "create_graph=True."
        )


def _keep_for_backward(ctx, inputs, keyword_only_inputs, output):
    *tensors, initial_state = inputs
    outputs, final_state, kept = output
    ctx.save_for_backward(kept, *tensors)
    ctx.mark_non_differentiable(kept)
    # Or a gradient as large as what is kept would be made, of zeros.
    ctx.set_materialize_grads(False)
    ctx.shape, ctx.options = initial_state.shape, keyword_only_inputs


def _coffee_gradients(ctx, grad_outputs, grad_final, _):
    grads = _gradients(ctx, coffee_backward, grad_outputs, grad_final)
    return grads[0], None, *grads[1:]


def _selective_gradients(ctx, grad_outputs, grad_final, _):
    return _gradients(ctx, selective_backward, grad_outputs, grad_final)


def _gradients(ctx, backward, grad_outputs, grad_final):
    refuse_second_derivatives()
    if not ctx.options["keep"]:
        raise ValueError("Called with keep=0, which keeps no states for a gradient.")
    # Read once: hooks unpack each tensor at every reading, and those of checkpoints only once.
    kept, inputs, *others = ctx.saved_tensors
    if grad_outputs is None:
        grad_outputs = torch.zeros_like(inputs)
    if grad_final is None:
        grad_final = kept.new_zeros(ctx.shape)
    grads = grad_outputs.contiguous(), grad_final.contiguous()
    return backward(*grads, kept, inputs, *others, **ctx.options)


coffee_forward.register_autograd(_coffee_gradients, setup_context=_keep_for_backward)
selective_forward.register_autograd(_selective_gradients, setup_context=_keep_for_backward)
