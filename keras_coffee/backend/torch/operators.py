"""The scans as operators of PyTorch.

Autograd and `torch.compile` know them, and the dispatcher picks the kernel by device. Tensors are
contiguous, and come in the order of kernels: sequences, weights, state, None where one is absent.
"""

import functools

import torch
from torch.autograd import forward_ad

from keras_coffee.backend.cpu import blocks
from keras_coffee.backend.torch import cpu_kernels, gpu_kernels

# Of each recurrence that has kernels: sequences, weights and options. Adding one adds a row.
_SCHEMAS = {
    "coffee": (
        "Tensor inputs, Tensor? gate_inputs, Tensor? mask, Tensor? reset",
        "Tensor transition, Tensor gate, Tensor readout, "
        "Tensor? input_matrix, Tensor? output_gate, Tensor? gate_bias",
        "str? feedback",
    ),
    "selective": (
        "Tensor inputs, Tensor delta, Tensor? input_matrix, Tensor? output_matrix, Tensor? reset",
        "Tensor transition, Tensor? fixed_input_matrix, Tensor? fixed_output_matrix, "
        "Tensor? skip, Tensor? delta_bias",
        "str discretization, bool delta_softplus",
    ),
}


def scan_cell(recurrence, *tensors, recompute):
    """Outputs `(B, T, ...)` and the final state of a recurrence that has kernels."""
    refuse_forward_derivatives(*tensors)
    sequences, weights, state = recurrence.split(tensors)
    # Kernels take marks in the dtype of everything else.
    sequences = [x.to(state[0].dtype) if x.dtype == torch.bool else x for x in sequences]
    arguments = [*recurrence.arguments(sequences, weights), *state]
    arguments = [None if x is None else x.contiguous() for x in arguments]
    keep = _steps_between_kept_states(arguments, recompute)
    outputs, final_state, _ = FORWARD[recurrence.kernel](
        *arguments, **recurrence.options, keep=keep
    )
    return outputs, [final_state]


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


def refuse_second_derivatives():
    # Gradients are recorded in a backward pass only to differentiate them again. PyTorch's own
    # `once_differentiable` lets that pass where another path leads to the same tensor.
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "The scans of keras_coffee have no second derivatives on PyTorch. Leave out "
            "create_graph=True."
        )


def refuse_forward_derivatives(*tensors):
    # An operator without a rule for them drops tangents silently. Nothing public tells as quickly
    # that nobody asks for any.
    if forward_ad._current_level >= 0:
        _refuse_tangents(*tensors)


@torch.compiler.disable  # which would drop the tangents of a function
def _refuse_tangents(*tensors):
    _RefuseTangents.apply(*tensors)


class _RefuseTangents(torch.autograd.Function):
    """Raises if a tensor has a tangent, at whatever level of nested transformations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors):
        return tensors[-1].new_zeros(())

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(
            "The scans of keras_coffee have no forward-mode derivatives on PyTorch. Use "
            "reverse-mode ones, as backward() and torch.autograd.grad compute them."
        )


def _operator(direction, name, schema, fake):
    """An operator that the kernels of its device compute."""
    kernels = {
        "cpu": functools.partial(cpu_kernels.scan, direction, name),
        "cuda": functools.partial(gpu_kernels.scan, direction, name),
    }
    return _defined(f"{name}_{direction}", schema, kernels, fake)


def _defined(name, schema, kernels, fake):
    """An operator with a kernel per device. `torch.library.custom_op` costs a third more a call."""
    name = f"keras_coffee::{name}"
    torch.library.define(name, schema)
    for device, kernel in kernels.items():
        torch.library.impl(name, device, kernel)
    torch.library.register_fake(name, fake)
    return getattr(torch.ops.keras_coffee, name.split("::")[1]).default


def _forward_operator(name):
    """Outputs, final state and the states that are kept."""
    sequences, weights, options = _SCHEMAS[name]

    def fake(*tensors, keep, **options):
        inputs, state = tensors[0], tensors[-1]
        chunks = -(-inputs.shape[1] // keep) if keep else 0
        kept = state.new_empty(chunks * state.numel())
        return torch.empty_like(inputs), torch.empty_like(state), kept

    def keep_for_backward(ctx, inputs, keyword_only_inputs, output):
        *tensors, state = inputs
        ctx.save_for_backward(output[2], *tensors)
        ctx.mark_non_differentiable(output[2])
        # Or a gradient as large as what is kept would be made, of zeros.
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.options = state.shape, keyword_only_inputs

    def gradients(ctx, grad_outputs, grad_final, _):
        refuse_second_derivatives()
        if not ctx.options["keep"]:
            raise ValueError("Called with keep=0, which keeps no states for a gradient.")
        # Read once: hooks unpack each tensor at every reading, and those of checkpoints only once.
        kept, *tensors = ctx.saved_tensors
        if grad_outputs is None:
            grad_outputs = torch.zeros_like(tensors[0])
        if grad_final is None:
            grad_final = kept.new_zeros(ctx.shape)
        grads = grad_outputs.contiguous(), grad_final.contiguous()
        *grads, grad_state = BACKWARD[name](*grads, kept, *tensors, **ctx.options)
        found = iter(grads)
        return *(next(found) if has else None for has in _have_gradient(name, tensors)), grad_state

    schema = f"({sequences}, {weights}, Tensor state, *, {options}, int keep)"
    operator = _operator("forward", name, f"{schema} -> (Tensor, Tensor, Tensor)", fake)
    torch.library.register_autograd(operator, gradients, setup_context=keep_for_backward)
    return operator


def _backward_operator(name):
    """Gradients by all present tensors except masks and resets, and by the state."""
    sequences, weights, options = _SCHEMAS[name]

    def fake(grad_outputs, grad_final, kept, *tensors, **options):
        pairs = zip(tensors, _have_gradient(name, tensors), strict=True)
        return [torch.empty_like(x) for x in (*(x for x, has in pairs if has), grad_final)]

    grads = "Tensor grad_outputs, Tensor grad_final, Tensor kept"
    schema = f"({grads}, {sequences}, {weights}, *, {options}, int keep) -> Tensor[]"
    return _operator("backward", name, schema, fake)


def _have_gradient(name, tensors):
    """Of each sequence and weight, whether it is there and no mask or reset."""
    sequences, weights, _ = _SCHEMAS[name]
    names = f"{sequences}, {weights}".split(", ")
    pairs = zip(tensors, names, strict=True)
    return [x is not None and not k.endswith(("mask", "reset")) for x, k in pairs]


FORWARD = {name: _forward_operator(name) for name in _SCHEMAS}
BACKWARD = {name: _backward_operator(name) for name in _SCHEMAS}


# The linear recurrence, whose outputs are its states.


def _in_memory(x):
    """In memory as kernels read it: PyTorch conjugates and negates lazily."""
    return x.contiguous().resolve_conj().resolve_neg()


def _new_like(x):
    """Contiguous, as kernels return it, even where `x` is a transposed view."""
    return x.new_empty(x.shape)


def _linear_operator(name, schema, loop, fake):
    """An operator that kernels compute where they exist, and a loop elsewhere."""

    def run(kernels, *tensors, reverse):
        function = getattr(kernels, name) if kernels.is_available() else loop
        return function(*map(_in_memory, tensors), reverse=reverse)

    kernels = {
        "cpu": functools.partial(run, cpu_kernels),
        "cuda": functools.partial(run, gpu_kernels),
        "CompositeExplicitAutograd": loop,
    }
    return _defined(name, schema, kernels, fake)


def linear_loop(decay, inputs, initial_state, *, reverse):
    steps = range(inputs.shape[1])
    states, state = _new_like(inputs), initial_state
    decay = decay.expand_as(inputs)
    for t in reversed(steps) if reverse else steps:
        state = torch.addcmul(inputs[:, t], decay[:, t], state)
        states[:, t] = state
    return states


def _linear_loop_back(grad_states, states, decay, initial_state, *, reverse):
    # The adjoint of a linear scan is a linear scan the other way, with decays one step later.
    conjugate = decay.expand_as(states).conj()
    start, zero = initial_state[:, None], torch.zeros_like(conjugate[:, :1])
    if reverse:
        following = torch.cat([zero, conjugate[:, :-1]], 1)
        previous, first = torch.cat([states[:, 1:], start], 1), -1
    else:
        following = torch.cat([conjugate[:, 1:], zero], 1)
        previous, first = torch.cat([start, states[:, :-1]], 1), 0
    zeros = torch.zeros_like(initial_state)
    grads = linear_loop(following, grad_states, zeros, reverse=not reverse)
    grad_decay = (grads * previous.conj()).sum_to_size(decay.shape)
    # In this order: a product is laid out as its first factor, and this one is contiguous.
    return grad_decay, grads, grads[:, first] * conjugate[:, first]


linear_forward = _linear_operator(
    "linear_forward",
    "(Tensor decay, Tensor inputs, Tensor state, *, bool reverse) -> Tensor",
    linear_loop,
    lambda decay, inputs, state, *, reverse: _new_like(inputs),
)
linear_backward = _linear_operator(
    "linear_backward",
    "(Tensor grad_states, Tensor states, Tensor decay, Tensor state, *, bool reverse) "
    "-> (Tensor, Tensor, Tensor)",
    _linear_loop_back,
    lambda grad_states, states, decay, state, *, reverse: tuple(
        map(_new_like, (decay, grad_states, state))
    ),
)


def _keep_linear(ctx, inputs, keyword_only_inputs, output):
    decay, _, state = inputs
    ctx.save_for_backward(output, decay, state)
    ctx.options = keyword_only_inputs


def _linear_gradients(ctx, grad_states):
    refuse_second_derivatives()
    return linear_backward(grad_states, *ctx.saved_tensors, **ctx.options)


torch.library.register_autograd(linear_forward, _linear_gradients, setup_context=_keep_linear)
