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
