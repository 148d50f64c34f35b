"""What solvers are built from, for PyTorch. `numpy.py` says what each function does."""

import torch

from keras_coffee.backend.torch.operators import (
    refuse_forward_derivatives,
    refuse_second_derivatives,
)

# Up to here it is quicker to combine all elements at each distance 1, 2, 4, … than every second
# element at each level of a tree: fewer operations, though each on more elements.
_SHORT = 64


def associative_scan(combine, elements, *, reverse=False):
    if reverse:
        flipped = associative_scan(combine, [x.flip(1) for x in elements])
        return [x.flip(1) for x in flipped]
    length = elements[0].shape[1]
    return _by_doubling(combine, elements) if length <= _SHORT else _by_tree(combine, elements)


def _by_doubling(combine, elements):
    distance = 1
    while distance < elements[0].shape[1]:
        earlier = [x[:, :-distance] for x in elements]
        later = [x[:, distance:] for x in elements]
        pairs = zip(elements, combine(earlier, later), strict=True)
        elements = [torch.cat([x[:, :distance], new], 1) for x, new in pairs]
        distance *= 2
    return elements


def _by_tree(combine, elements):
    length = elements[0].shape[1]
    firsts = [x[:, : length - 1 : 2] for x in elements]
    odd = associative_scan(combine, combine(firsts, [x[:, 1::2] for x in elements]))
    even = combine(
        [x[:, : (length - 1) // 2] for x in odd],
        [x[:, 2::2] for x in elements],
    )
    results = []
    for x, odd_x, even_x in zip(elements, odd, even, strict=True):
        result = torch.empty_like(x)
        result[:, 0], result[:, 1::2], result[:, 2::2] = x[:, 0], odd_x, even_x
        results.append(result)
    return results


def scan(body, carry, sequences, like):
    length = len(sequences[0])
    results = [x.new_empty(length, *x.shape) for x in like]
    for k, slices in enumerate(zip(*(x.unbind() for x in sequences), strict=True)):
        carry, outputs = body(carry, slices)
        for result, output in zip(results, outputs, strict=True):
            result[k] = output
    return carry, results


def compiled(function, constants, *tensors):
    return function(*constants, *tensors)


def without_gradient(function):
    with torch.no_grad():
        return function()


def implicit_states(adjoint, states, jacobian, drive, initial_state):
    refuse_forward_derivatives(drive, initial_state)
    return _ImplicitStates.apply(adjoint, states, jacobian, drive, initial_state)


class _ImplicitStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, adjoint, states, jacobian, drive, initial_state):
        ctx.adjoint = adjoint
        ctx.save_for_backward(jacobian)
        return states.view_as(states)

    @staticmethod
    def backward(ctx, grad_states):
        refuse_second_derivatives()
        (jacobian,) = ctx.saved_tensors
        return None, None, None, *ctx.adjoint(jacobian.conj(), grad_states)


def exponent(x):
    return torch.where(x.isfinite(), torch.frexp(x).exponent, 0)


def power_of_two(exponent, dtype):
    # PyTorch's own ldexp computes the power in float32.
    bits, bias, shift = (torch.int64, 1023, 52) if dtype == "float64" else (torch.int32, 127, 23)
    return ((exponent.to(bits) + bias) << shift).view(getattr(torch, dtype))


def may_be_differentiated():
    return torch.is_grad_enabled()


def can_iterate(x):
    return not (x.is_meta or torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export())


def device_kind(x):
    return "gpu" if x.device.type == "cuda" else x.device.type


def complex_of(real, imaginary):
    return torch.complex(real, imaginary)


def where(mask, x, y):
    return torch.where(mask, x, y)
