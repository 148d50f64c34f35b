"""Scans for NumPy: plain loops, in the order of the equations. No gradients.

This file defines what the other backends compute; it also serves inference under Keras' own
numpy backend, and lists the functions that a backend must supply.
"""

import numpy as np


def coffee_scan(
    inputs,
    transition,
    gate,
    readout,
    input_matrix,
    output_gate,
    initial_state,
    mask=None,
    *,
    feedback,
    recompute=False,
):
    """COFFEE over inputs `(B, T, D)`: outputs `(B, T, D)` and the final state `(B, D, n)`.

    The mask, `(B, T)` or None, multiplies Δ: 0 holds the state. The outputs of such a step are read
    from the state that is held.
    """
    state, outputs = initial_state, np.empty_like(inputs)
    for t in range(inputs.shape[1]):
        source = inputs[:, t, :, None]
        delta = gate * (source if feedback is None else state)
        if feedback != "linear":
            delta = _sigmoid(delta)
        if mask is not None:
            delta = mask[:, t, None, None] * delta
        drive = source if input_matrix is None else input_matrix * source
        state = (1 + transition * delta) * state + delta * drive
        outputs[:, t] = (readout * state).sum(-1)
        if output_gate is not None:
            outputs[:, t] *= _sigmoid((output_gate * state).sum(-1))
    return outputs, state


def selective_scan(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    *,
    discretization,
    recompute=False,
):
    """Selective state-space model over inputs `(B, T, D)`: outputs and the final state.

    An input or output matrix of rank 3 is `(B, T, n)`, one of rank 2 is `(D, n)`.
    """
    state, outputs = initial_state, np.empty_like(inputs)
    for t in range(inputs.shape[1]):
        input_t, output_t = (
            m[:, t, None, :] if m.ndim == 3 else m for m in (input_matrix, output_matrix)
        )
        step = delta[:, t, :, None]
        if discretization == "zoh":
            exponent = transition * step
            decay, gain = np.exp(exponent), step * _expm1_ratio(exponent)
        else:
            decay, gain = 1 + transition * step, step
        state = decay * state + gain * input_t * inputs[:, t, :, None]
        outputs[:, t] = (output_t * state).sum(-1)
    return outputs, state


def linear_scan(decay, inputs, initial_state, *, reverse):
    """All states `(B, T, ...)` of h_t = a_t h_{t-1} + b_t, real or complex."""
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


def _sigmoid(x):
    # exp of a negative number only, so that nothing overflows.
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _expm1_ratio(x):
    """(e^x - 1) / x, 1 at x = 0."""
    safe = np.where(x == 0, 1, x)
    return np.where(x == 0, 1, np.expm1(safe) / safe)
