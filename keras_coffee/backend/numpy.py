"""Scans for NumPy: plain loops, in the order of the equations. No gradients.

This file defines what the other backends compute; it also serves inference under Keras' own
numpy backend, and lists the functions that a backend must supply.
"""

import numpy as np


def implementation(recurrence, x):
    """What runs a recurrence on tensors like `x`: a function like the one below."""
    return _scan_cell


def _scan_cell(recurrence, *tensors, recompute):
    """Outputs `(B, T, ...)` and the final state of any recurrence, in one pass over time.

    `recurrence` is a `keras_coffee.solvers.recurrence.Recurrence`: a step, and the structure of the
    tensors. These are sequences `(B, T, ...)`, weights and initial state `(B, ...)`, in this order.
    Masks and resets, booleans `(B, T)`, are the last of the sequences, and the step applies them.
    `recompute` keeps about √T states for the gradient, and computes the others again.
    """
    sequences, weights, state = recurrence.split(tensors)
    steps = recurrence.steps(weights)
    outputs = []
    for t in range(sequences[0].shape[1]):
        slices = [x[:, t] for x in sequences]
        state = steps.step(state, slices)
        outputs.append(steps.read(state, slices))
    return np.stack(outputs, 1), state


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex.

    The decay has the axes of the inputs; those of the batch and of time may be 1.
    """
    decay = np.broadcast_to(decay, inputs.shape)
    state, states = initial_state, np.empty_like(inputs)
    times = range(inputs.shape[1])
    for t in reversed(times) if reverse else times:
        state = decay[:, t] * state + inputs[:, t]
        states[:, t] = state
    return states


def associative_scan(combine, elements, *, reverse=False):
    """All prefixes of an associative operation along axis 1, the time.

    Elements are lists of arrays `(B, T, ...)`. `combine(earlier, later)` takes slices of them of
    any length, and combines element by element. In reverse, all suffixes, `earlier` being the
    later ones.
    """
    length = elements[0].shape[1]
    times = reversed(range(length)) if reverse else range(length)
    results, last = [np.empty_like(x) for x in elements], None
    for t in times:
        current = [x[:, t : t + 1] for x in elements]
        last = current if last is None else combine(last, current)
        for result, x in zip(results, last, strict=True):
            result[:, t : t + 1] = x
    return results


def scan(body, carry, sequences, like):
    """A loop over the first axis of all sequences: the final carry, and all outputs stacked.

    `body(carry, slices) -> carry, outputs`, all of them lists, and `like` has tensors of the shape
    and dtype of the outputs. Gradients need not go through it.
    """
    results = []
    for k in range(len(sequences[0])):
        carry, outputs = body(carry, [x[k] for x in sequences])
        results.append(outputs)
    return carry, [np.stack(x) for x in zip(*results, strict=True)]


def compiled(function, constants, *tensors):
    """`function(*constants, *tensors)`, compiled once for equal constants where that is needed."""
    return function(*constants, *tensors)


def without_gradient(function):
    """`function()`, a list of tensors or of lists, as constants: nothing is kept to go back."""
    return function()


def implicit_states(adjoint, states, jacobian, drive, initial_state):
    """`states`, with the gradient of the recurrence that they solve.

    They solve x(k) = f(x(k-1), u(k)); `drive` has the values f(x(k-1), u(k)) as a function of
    everything but x(k-1), and `jacobian` those of ∂x(k)/∂x(k-1). `adjoint(jacobian, grads)`, with
    the conjugate of the Jacobian where gradients are conjugate, returns the gradients by the drive
    and by the initial state.
    """
    return states


def exponent(x):
    """The int32 e with |x| / 2^e from 1/2 to 1, or any if x is 0, denormal, infinite or NaN."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype("int32")


def power_of_two(exponent, dtype):
    """2^exponent, exactly, where that is a normal number of `dtype`."""
    return np.ldexp(np.ones((), dtype), exponent)


def may_be_differentiated():
    """Whether somebody may ask for a gradient of what is computed now."""
    return False


def can_iterate(x):
    """Whether a loop can look at its data, as it can't while a model is exported."""
    return True


def device_kind(x):
    """Where a computation with `x` runs: "cpu", "gpu" or "tpu"."""
    return "cpu"


def is_converted_to_onnx():
    """Whether the model is traced for a converter to ONNX."""
    return False


def complex_of(real, imaginary):
    """A complex array of the precision of its parts. Keras' own is always complex64."""
    result = np.empty(np.shape(real), np.result_type(real, "complex64"))
    # A product with 1j would make NaN of infinity.
    result.real, result.imag = real, imaginary
    return result


def where(mask, x, y):
    """`x` where the mask is True, else `y`. Keras' own rounds complex128 to complex64."""
    return np.where(mask, x, y)
