"""The scans as operators of PyTorch.

Autograd and `torch.compile` know them, and the dispatcher picks the kernel by device. If nothing
else needs operators, `Scan` calls kernels directly. Tensors are contiguous, and come in
the order of kernels: sequences, weights, state, None where one is absent.
"""

import abc
import functools
from typing import Any, ClassVar

import torch
from torch.autograd import forward_ad

from keras_coffee.backend.cpu import blocks
from keras_coffee.backend.cpu.kernels import RECURRENCES
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
        "Tensor transition, Tensor? fixed_input_matrix, Tensor? fixed_output_matrix, Tensor? skip",
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
    outputs, final_state, _ = SCANS[recurrence.kernel](*arguments, **recurrence.options, keep=keep)
    return outputs, [final_state]


def _is_differentiated(tensors):
    # Asked out here, because inside an operator gradients always look switched off.
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _steps_between_kept_states(tensors, recompute):
    if not _is_differentiated(tensors):
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
    # An operator without a rule for them drops tangents silently. No public function says as
    # quickly whether anybody asks for one.
    if forward_ad._current_level >= 0:
        _refuse_tangents(*tensors)


@torch.compiler.disable  # which would drop the tangents of a function
def _refuse_tangents(*tensors):
    _RefuseTangents.apply(*tensors)


class _RefuseTangents(torch.autograd.Function):
    """Raises if a tensor has a tangent, at any level of nested transformations."""

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


_KERNELS = {"cpu": cpu_kernels, "cuda": gpu_kernels}


class Scan(abc.ABC):
    """A scan with its gradient. It uses operators only if a compiler must see them.

    PyTorch's dispatcher costs more than the kernels of a small model: half of the Python of a
    training step, and two thirds of that of a call without gradients.

    Attributes:
        forward: The operator of the forward pass.
        backward: The operator of the backward pass.
    """

    def __init__(self, name, forward, backward):
        """`forward` and `backward` are what the operators take and return."""
        self.name = name
        self.forward = self._operator("forward", forward, self.fake_forward)
        self.backward = self._operator("backward", backward, self.fake_backward)
        torch.library.register_autograd(self.forward, self.gradients, setup_context=self.save)

    def _operator(self, direction, schema, fake):
        # torch.library.custom_op costs a third more a call.
        name = f"keras_coffee::{self.name}_{direction}"
        torch.library.define(name, schema)
        for device, kernels in _KERNELS.items():
            torch.library.impl(name, device, functools.partial(self.run, direction, kernels))
        torch.library.register_fake(name, fake)
        return getattr(torch.ops.keras_coffee, f"{self.name}_{direction}").default

    def __call__(self, *tensors, **options):
        kernels = _kernels_of(tensors)
        if kernels is None:
            return self.forward(*tensors, **options)
        if _is_differentiated(tensors):
            return KerasCoffeeScan.apply(self, kernels, options, *tensors)
        return self.run("forward", kernels, *tensors, **options)

    def retreat(self, *tensors, **options):
        """What the backward operator returns. A transformation may have started since."""
        kernels = _kernels_of(tensors)
        if kernels is None:
            return self.backward(*tensors, **options)
        return self.run("backward", kernels, *tensors, **options)

    @abc.abstractmethod
    def run(self, direction, kernels, *tensors, **options):
        """Calls kernels of one device."""

    @abc.abstractmethod
    def fake_forward(self, *tensors, **options):
        """Tensors like those that the forward pass returns."""

    @abc.abstractmethod
    def fake_backward(self, *tensors, **options):
        """Tensors like those that the backward pass returns."""

    @abc.abstractmethod
    def save(self, ctx, inputs, keyword_only_inputs, output):
        """Saves what gradients need."""

    @abc.abstractmethod
    def gradients(self, ctx, *grads):
        """Gradients by all tensors."""


_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}


def _kernels_of(tensors):
    """The kernels that may be called without the dispatcher: None if it is to be asked.

    Compilers, transformations, modes, profilers and subclasses of tensors want to see operators.
    The dispatcher also knows tensors without memory of their own, like the zeros that `torch.sgn`
    sends back and batches of gradients, and says what is wrong with tensors of several devices.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return None
    # As in `make_fx(pre_dispatch=True)`.
    if torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch):
        return None
    if torch.autograd._profiler_enabled() or not _PLAIN.issuperset(map(type, tensors)):
        return None
    present = [x for x in tensors if x is not None]
    if not all(torch._C._has_storage(x) and x.data_ptr() for x in present):
        return None
    device, *others = {x.device for x in present}
    return None if others else _KERNELS.get(device.type)


def _in_memory(x):
    """In memory as kernels read it: PyTorch conjugates and negates lazily."""
    return x.contiguous().resolve_conj().resolve_neg()


class KerasCoffeeScan(torch.autograd.Function):
    """A `Scan` without the dispatcher. PyTorch shows this name to users, in errors and graphs."""

    @staticmethod
    def forward(ctx, scan, kernels, options, *tensors):
        results = scan.run("forward", kernels, *tensors, **options)
        ctx.scan = scan
        scan.save(ctx, tensors, options, results)
        return results

    @staticmethod
    def backward(ctx, *grads):
        return None, None, None, *ctx.scan.gradients(ctx, *grads)


class _RecurrenceScan(Scan):
    """Outputs, final state and what is kept, of a recurrence that has kernels."""

    def __init__(self, name):
        sequences, weights, options = _SCHEMAS[name]
        arguments, options = f"{sequences}, {weights}", f"*, {options}, int keep"
        definition = RECURRENCES[name]
        self.has_gradient = [definition.has_gradient(x) for x in definition.names]
        super().__init__(
            name,
            f"({arguments}, Tensor state, {options}) -> (Tensor, Tensor, Tensor)",
            # Gradients by all present tensors except masks and resets, and by the state.
            f"(Tensor grad_outputs, Tensor grad_final, Tensor kept, {arguments}, {options}) "
            "-> Tensor[]",
        )

    def run(self, direction, kernels, *tensors, **options):
        present = (None if x is None else _in_memory(x) for x in tensors)
        return kernels.scan(direction, self.name, *present, **options)

    def fake_forward(self, *tensors, keep, **options):
        inputs, state = tensors[0], tensors[-1]
        chunks = -(-inputs.shape[1] // keep) if keep else 0
        kept = state.new_empty(chunks * state.numel())
        return torch.empty_like(inputs), torch.empty_like(state), kept

    def fake_backward(self, grad_outputs, grad_final, kept, *tensors, **options):
        pairs = zip(tensors, self._have_gradient(tensors), strict=True)
        return [torch.empty_like(x) for x in (*(x for x, has in pairs if has), grad_final)]

    def _have_gradient(self, tensors):
        pairs = zip(tensors, self.has_gradient, strict=True)
        return [x is not None and has for x, has in pairs]

    def save(self, ctx, inputs, keyword_only_inputs, output):
        *tensors, state = inputs
        ctx.save_for_backward(output[2], *tensors)
        ctx.mark_non_differentiable(output[2])
        # Or a gradient as large as what is kept would be made, of zeros.
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.options = state.shape, keyword_only_inputs

    def gradients(self, ctx, grad_outputs, grad_final, _):
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
        *grads, grad_state = self.retreat(*grads, kept, *tensors, **ctx.options)
        found = iter(grads)
        return *(next(found) if has else None for has in self._have_gradient(tensors)), grad_state


SCANS = {name: _RecurrenceScan(name) for name in _SCHEMAS}


# The linear recurrence, whose outputs are its states.


def _new_like(x):
    """Contiguous, as kernels return it, even where `x` is a transposed view."""
    return x.new_empty(x.shape)


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


class _LinearScan(Scan):
    """All states `(B, T, ...)`. Kernels compute them where they exist, and a loop elsewhere."""

    loops: ClassVar[dict[str, Any]] = {"forward": linear_loop, "backward": _linear_loop_back}

    def __init__(self):
        super().__init__(
            "linear",
            "(Tensor decay, Tensor inputs, Tensor state, *, bool reverse) -> Tensor",
            "(Tensor grad_states, Tensor states, Tensor decay, Tensor state, *, bool reverse) "
            "-> (Tensor, Tensor, Tensor)",
        )
        for direction, loop in self.loops.items():
            name = f"keras_coffee::linear_{direction}"
            torch.library.impl(name, "CompositeExplicitAutograd", loop)

    def run(self, direction, kernels, *tensors, reverse):
        function = self.loops[direction]
        if kernels.is_available():
            function = getattr(kernels, f"linear_{direction}")
        return function(*map(_in_memory, tensors), reverse=reverse)

    def fake_forward(self, decay, inputs, state, *, reverse):
        return _new_like(inputs)

    def fake_backward(self, grad_states, states, decay, state, *, reverse):
        return tuple(map(_new_like, (decay, grad_states, state)))

    def save(self, ctx, inputs, keyword_only_inputs, output):
        decay, _, state = inputs
        ctx.save_for_backward(output, decay, state)
        ctx.options = keyword_only_inputs

    def gradients(self, ctx, grad_states):
        refuse_second_derivatives()
        return self.retreat(grad_states, *ctx.saved_tensors, **ctx.options)


linear_scan = _LinearScan()
