"""COFFEE and the selective scan with their gradients in float64: loops over time in NumPy.

What the kernels are checked against. Arguments are those of the kernels, forward and backward in
one call; nothing here comes from the package. The gradients are written out by hand, and held
against those of `tests/oracles.py` by a test.
"""

import numpy as np


def coffee(
    inputs,
    mask,
    weights,
    initial_state,
    grad_outputs,
    grad_final,
    *,
    feedback,
    has_input_matrix,
    has_output_gate,
):
    """Outputs, final state, and the gradients by inputs, weights and initial state."""
    inputs, weights, grad_outputs = _wide(inputs, weights, grad_outputs)
    length, by_weights = inputs.shape[1], np.zeros_like(weights)
    transition, gate, readout = weights[:3]
    input_matrix = weights[3] if has_input_matrix else 1.0
    held = np.ones(inputs.shape[:2]) if mask is None else mask.astype("float64")

    def step(state, t):
        source = inputs[:, t, :, None]
        argument = gate * (source if feedback is None else state)
        delta, slope = (argument, 1.0) if feedback == "linear" else _sigmoid(argument)
        return source, delta, slope, transition * state + input_matrix * source

    states = [initial_state.astype("float64")]
    for t in range(length):
        _, delta, _, change = step(states[-1], t)
        states.append(states[-1] + held[:, t, None, None] * delta * change)

    after = np.stack(states[1:], 1)
    outputs, by_sum = (readout * after).sum(-1), grad_outputs
    direct = 0.0
    if has_output_gate:
        opening, slope = _sigmoid((weights[-1] * after).sum(-1))
        by_gate = (grad_outputs * outputs * slope)[..., None]
        by_weights[-1] = (by_gate * after).sum((0, 1))
        direct, by_sum, outputs = by_gate * weights[-1], by_sum * opening, outputs * opening
    by_weights[2] = (by_sum[..., None] * after).sum((0, 1))
    direct = direct + by_sum[..., None] * readout

    by_inputs, adjoint = np.empty_like(inputs), grad_final.astype("float64")
    for t in reversed(range(length)):
        adjoint = adjoint + direct[:, t]
        source, delta, slope, change = step(states[t], t)
        by_change = adjoint * held[:, t, None, None] * delta
        by_argument = adjoint * held[:, t, None, None] * change * slope
        by_weights[0] += (by_change * states[t]).sum(0)
        by_weights[1] += (by_argument * (source if feedback is None else states[t])).sum(0)
        if has_input_matrix:
            by_weights[3] += (by_change * source).sum(0)
        by_source = by_change * input_matrix
        adjoint = adjoint + by_change * transition
        if feedback is None:
            by_source = by_source + by_argument * gate
        else:
            adjoint = adjoint + by_argument * gate
        by_inputs[:, t] = by_source.sum(-1)
    return outputs, states[-1], by_inputs, by_weights, adjoint


def selective(
    inputs,
    delta,
    transition,
    input_matrix,
    output_matrix,
    initial_state,
    grad_outputs,
    grad_final,
    *,
    discretization,
):
    """Outputs, final state, and the gradients by all arguments up to the initial state."""
    inputs, delta, transition, grad_outputs = _wide(inputs, delta, transition, grad_outputs)
    matrices = _wide(input_matrix, output_matrix)
    length = inputs.shape[1]
    by_inputs, by_delta, by_transition = map(np.zeros_like, (inputs, delta, transition))
    by_matrices = [np.zeros_like(matrix) for matrix in matrices]

    def step(t):
        source, width = inputs[:, t, :, None], delta[:, t, :, None]
        decay, gain = 1 + transition * width, width
        if discretization == "zoh":
            decay, gain = np.exp(transition * width), np.expm1(transition * width) / transition
        return source, width, decay, gain, *(_at(matrix, t) for matrix in matrices)

    states, outputs = [initial_state.astype("float64")], np.empty_like(inputs)
    for t in range(length):
        source, _, decay, gain, entry, readout = step(t)
        states.append(decay * states[-1] + gain * entry * source)
        outputs[:, t] = (readout * states[-1]).sum(-1)

    adjoint = grad_final.astype("float64")
    for t in reversed(range(length)):
        source, width, decay, gain, entry, readout = step(t)
        grad = grad_outputs[:, t, :, None]
        _add(by_matrices[1], t, grad * states[t + 1])
        adjoint = adjoint + grad * readout
        _add(by_matrices[0], t, adjoint * gain * source)
        by_decay, by_gain = adjoint * states[t], adjoint * entry * source
        if discretization == "zoh":
            slope = (width * decay - gain) / transition
            by_transition += (by_decay * width * decay + by_gain * slope).sum(0)
            by_delta[:, t] = ((by_decay * transition + by_gain) * decay).sum(-1)
        else:
            by_transition += (by_decay * width).sum(0)
            by_delta[:, t] = (by_decay * transition + by_gain).sum(-1)
        by_inputs[:, t] = (adjoint * gain * entry).sum(-1)
        adjoint = adjoint * decay
    return outputs, states[-1], by_inputs, by_delta, by_transition, *by_matrices, adjoint


def _wide(*arrays):
    return [array.astype("float64") for array in arrays]


def _sigmoid(x):
    """And its derivative."""
    value = 0.5 * (1 + np.tanh(x / 2))
    return value, value * (1 - value)


def _at(matrix, t):
    return matrix[:, t, None] if matrix.ndim == 3 else matrix


def _add(total, t, term):
    """Adds a term (B, D, n) to a gradient that is (B, T, n) or (D, n)."""
    if total.ndim == 3:
        total[:, t] = term.sum(1)
    else:
        total += term.sum(0)
