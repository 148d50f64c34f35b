"""The recurrences and their gradients as plain loops in float64, from the equations alone.

Nothing here comes from the package. The functions work on arrays and on `rounding.Rounded`
numbers alike. Gradients are written out by hand, and tested against complex steps. Arrays come by
name in a dictionary. The gradient of a real loss L by a complex z = a + ib is dL/da + i dL/db.
"""

import numpy as np
from rounding import Rounded, advance, elementary, stack

# COFFEE.


def coffee_gate(arrays, feedback, state, source):
    """Δ, and its derivative by the gate's argument, from states `(..., D, n)`, u `(..., D, 1)`."""
    argument = arrays["gate"] * (source if feedback is None else state)
    if feedback == "linear":
        return argument, 1.0
    return sigmoid(argument), sigmoid_slope(argument)


def coffee_change(arrays, state, source):
    """λ x + b u, which is the derivative of the new state by Δ."""
    drive = arrays["input_matrix"] * source if "input_matrix" in arrays else source
    return arrays["transition"] * state + drive


def coffee_step(arrays, feedback, state, source):
    delta, _ = coffee_gate(arrays, feedback, state, source)
    return state + delta * coffee_change(arrays, state, source)


def coffee_jacobian(arrays, feedback, state, source):
    delta, slope = coffee_gate(arrays, feedback, state, source)
    direct = 1.0 + arrays["transition"] * delta
    if feedback is None:
        return direct
    return direct + arrays["gate"] * slope * coffee_change(arrays, state, source)


def coffee_scan(arrays, feedback="sigmoid"):
    """Outputs `(B, T, D)` and states `(B, T + 1, D, n)`, the initial one first."""
    states, plain = [arrays["initial_state"]], without_errors(arrays)
    for t in range(arrays["inputs"].shape[1]):
        source = plain["inputs"][:, t, :, None]

        def step(state, source=source):
            return coffee_step(arrays, feedback, state, source)

        def jacobian(state, source=source):
            return coffee_jacobian(plain, feedback, state, source)

        states.append(advance(step, jacobian, states[-1]))
    states = stack(states, 1)
    return read(arrays, states[:, 1:]), states


def coffee_gradients(arrays, states, grad_outputs, grad_final, feedback="sigmoid"):
    """Gradients of sum(outputs * grad_outputs) + sum(final state * grad_final), by name."""
    before, source = states[:, :-1], arrays["inputs"][..., None]
    adjoint, gradients = read_gradients(arrays, states[:, 1:], grad_outputs)
    jacobian = coffee_jacobian(arrays, feedback, before, source)
    adjoint, gradients["initial_state"] = carry_back(adjoint, jacobian, grad_final)
    delta, slope = coffee_gate(arrays, feedback, before, source)
    grad_change = adjoint * delta
    grad_argument = adjoint * slope * coffee_change(arrays, before, source)
    gradients["transition"] = (grad_change * before).sum((0, 1))
    gradients["gate"] = (grad_argument * (source if feedback is None else before)).sum((0, 1))
    grad_source = grad_change
    if "input_matrix" in arrays:
        gradients["input_matrix"] = (grad_change * source).sum((0, 1))
        grad_source = grad_change * arrays["input_matrix"]
    if feedback is None:
        grad_source = grad_source + grad_argument * arrays["gate"]
    return gradients | {"inputs": grad_source.sum(-1)}


def read(arrays, states):
    """Outputs C x, filtered by σ(w_γ x) if there is an output gate."""
    outputs = (arrays["readout"] * states).sum(-1)
    if "output_gate" in arrays:
        outputs = outputs * sigmoid((arrays["output_gate"] * states).sum(-1))
    return outputs


def read_gradients(arrays, states, grad_outputs):
    """Gradients of `read` by the states, and by its weights."""
    grad_sum, gradients, by_gate = grad_outputs[..., None], {}, 0.0
    if "output_gate" in arrays:
        argument = (arrays["output_gate"] * states).sum(-1)[..., None]
        total = (arrays["readout"] * states).sum(-1)[..., None]
        grad_gate = grad_sum * total * sigmoid_slope(argument)
        grad_sum = grad_sum * sigmoid(argument)
        gradients["output_gate"] = (grad_gate * states).sum((0, 1))
        by_gate = grad_gate * arrays["output_gate"]
    gradients["readout"] = (grad_sum * states).sum((0, 1))
    return grad_sum * arrays["readout"] + by_gate, gradients


# Selective state-space models.


def selective_discretization(arrays, discretization):
    """Decay and gain `(B, T, D, n)`, and the derivatives of e^z or 1 + z and of the gain's ratio."""
    step = arrays["delta"][..., None]
    exponent = step * arrays["transition"]
    if discretization == "euler":
        return 1.0 + exponent, step, 1.0, 0.0
    ratio, slope = expm1_ratio(exponent)
    return exp(exponent), step * ratio, exp(exponent), step * slope


def selective_scan(arrays, discretization="zoh"):
    """Outputs `(B, T, D)` and states `(B, T + 1, D, n)`, the initial one first."""
    decay, gain, _, _ = selective_discretization(arrays, discretization)
    drive = gain * over_features(arrays["input_matrix"]) * arrays["inputs"][..., None]
    states = recur(decay, drive, arrays["initial_state"])
    return (over_features(arrays["output_matrix"]) * states[:, 1:]).sum(-1), states


def selective_gradients(arrays, states, grad_outputs, grad_final, discretization="zoh"):
    """Gradients of sum(outputs * grad_outputs) + sum(final state * grad_final), by name."""
    decay, gain, decay_slope, gain_slope = selective_discretization(arrays, discretization)
    matrix, source = over_features(arrays["input_matrix"]), arrays["inputs"][..., None]
    grad_read, gradients = grad_outputs[..., None], {}
    adjoint = grad_read * over_features(arrays["output_matrix"])
    adjoint, gradients["initial_state"] = carry_back(adjoint, decay, grad_final)
    grad_gain = adjoint * matrix * source
    grad_exponent = adjoint * states[:, :-1] * decay_slope + grad_gain * gain_slope
    # Of the gain Δ φ(λΔ) by Δ, at fixed exponent: φ.
    ratio = 1.0 if discretization == "euler" else expm1_ratio(exponent_of(arrays))[0]
    by_delta = grad_exponent * arrays["transition"] + grad_gain * ratio
    return gradients | {
        "inputs": (adjoint * gain * matrix).sum(-1),
        "delta": by_delta.sum(-1),
        "transition": (grad_exponent * arrays["delta"][..., None]).sum((0, 1)),
        "input_matrix": total_like(adjoint * gain * source, arrays["input_matrix"]),
        "output_matrix": total_like(grad_read * states[:, 1:], arrays["output_matrix"]),
    }


def exponent_of(arrays):
    return arrays["delta"][..., None] * arrays["transition"]


def over_features(matrix):
    """A matrix `(B, T, n)`, shared by the features, or `(D, n)`, constant over time."""
    return matrix[:, :, None, :] if len(matrix.shape) == 3 else matrix


def total_like(gradient, matrix):
    return gradient.sum(2) if len(matrix.shape) == 3 else gradient.sum((0, 1))


# Linear recurrences.


def linear_scan(arrays, reverse=False):
    """States `(B, T, ...)`, and the same with the initial one before the first."""
    states = recur(
        *(in_time(arrays[k], reverse) for k in ("decay", "inputs")), arrays["initial_state"]
    )
    return in_time(states[:, 1:], reverse), states


def linear_gradients(arrays, states, grad_outputs, reverse=False):
    """Gradients of the real part of sum(conj(grad_outputs) * states), by name."""
    decay, adjoint = (in_time(x, reverse) for x in (arrays["decay"], grad_outputs))
    adjoint, grad_initial = carry_back(adjoint, decay, 0.0)
    by_decay = adjoint * states[:, :-1].conj()
    return {
        "decay": in_time(by_decay, reverse),
        "inputs": in_time(adjoint, reverse),
        "initial_state": grad_initial,
    }


def in_time(x, reverse):
    return x[:, ::-1] if reverse else x


def recur(decay, drive, state):
    """States before and after every step of x(k) = a(k) x(k-1) + b(k)."""
    states = [state]
    for t in range(drive.shape[1]):
        states.append(decay[:, t] * states[-1] + drive[:, t])
    return stack(states, 1)


def carry_back(adjoint, jacobian, grad_final):
    """Adds to each step's adjoint what later steps contribute; also that of the initial state."""
    carried, adjoints = grad_final, []
    for t in reversed(range(adjoint.shape[1])):
        adjoints.append(adjoint[:, t] + carried)
        carried = jacobian[:, t].conj() * adjoints[-1]
    return stack(adjoints[::-1], 1), carried


# Functions with their derivatives, for real and, in steps, complex arguments.


def sigmoid(x):
    return elementary(_sigmoid, _sigmoid_slope, x)


def sigmoid_slope(x):
    # Computed as σ (1 - σ), which loses what σ has rounded off.
    lost = _sigmoid(x.value) if isinstance(x, Rounded) else 0.0
    return elementary(_sigmoid_slope, _sigmoid_curvature, x, absolute=lost)


def _sigmoid_slope(x):
    return _sigmoid(x) * _sigmoid(-x)


def _sigmoid_curvature(x):
    return _sigmoid_slope(x) * (1 - 2 * _sigmoid(x))


def _sigmoid(x):
    negative = np.real(x) < 0
    e = np.exp(np.where(negative, x, -x))
    return np.where(negative, e, 1) / (1 + e)


def exp(x):
    return elementary(np.exp, np.exp, x)


def expm1_ratio(x):
    """φ(x) = (e^x - 1)/x and its derivative, right through x = 0."""
    value = elementary(_ratio, _ratio_slope, x)
    # Computed from a difference of e^x and φ where x is not small.
    spread = 0.0
    if isinstance(x, Rounded):
        spread = (np.exp(x.value) + _ratio(x.value)) / np.maximum(abs(x.value), 0.1)
    return value, elementary(_ratio_slope, _ratio_curvature, x, absolute=spread)


def _ratio(x):
    safe = np.where(x == 0, 1, x)
    return np.where(x == 0, 1, np.expm1(safe) / safe)


def _moment(k, x):
    """∫ s^k e^(sx) ds over [0, 1], the k-th derivative of φ: no difference, hence no cancellation."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    s = (nodes + 1) / 2
    return (weights / 2 * s**k * np.exp(np.multiply.outer(x, s))).sum(-1)


def _ratio_slope(x):
    far = np.where(abs(x) < 1, 1, x)
    return np.where(abs(x) < 1, _moment(1, x), (1 + np.exp(far) * (far - 1)) / far**2)


def _ratio_curvature(x):
    far = np.where(abs(x) < 1, 1, x)
    direct = (np.exp(far) * (far**2 - 2 * far + 2) - 2) / far**3
    return np.where(abs(x) < 1, _moment(2, x), direct)


def without_errors(arrays):
    return {k: x.value if isinstance(x, Rounded) else x for k, x in arrays.items()}
