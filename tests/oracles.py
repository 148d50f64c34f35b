"""The recurrences and their gradients as plain loops in float64, from the equations alone.

Nothing here comes from the package. The functions work on arrays and on `rounding.Rounded`
numbers alike. Gradients are written out by hand, and tested against complex steps.

Arrays come by name in a dictionary. Each oracle takes them and one cotangent for each result,
and returns the results and the gradients, by name, of the loss Σ results * cotangents. The
gradient of a real loss L by a complex z = a + ib is dL/da + i dL/db.
"""

import numpy as np
from rounding import ELEMENTARY, Rounded, advance, as_rounded, elementary, exact, stack


def values(oracle, arrays, *options):
    """The results alone, without the gradients."""
    shapes = arrays["inputs"].shape, arrays["initial_state"].shape
    return oracle(arrays, [np.zeros(shape) for shape in shapes], *options)[0]


# COFFEE.


# Arrays may have `input_matrix`, `output_gate`, `gate_bias`, and `gate_inputs`, `(B, T, D)`.


def coffee(arrays, cotangents, feedback="sigmoid"):
    """Outputs `(B, T, D)` and the final state `(B, D, n)`."""
    states = coffee_states(arrays, feedback)
    gradients = coffee_gradients(arrays, states, *cotangents, feedback=feedback)
    return (read(arrays, states[:, 1:]), states[:, -1]), gradients


def coffee_states(arrays, feedback="sigmoid"):
    """States `(B, T + 1, D, n)`, the initial one first."""
    plain = {name: exact(array) for name, array in arrays.items()}
    states = [arrays["initial_state"]]
    for t in range(arrays["inputs"].shape[1]):
        source = plain["inputs"][:, t, :, None]

        def step(state, source=source, t=t):
            return coffee_step(_at_step(arrays, t), state, source, feedback)

        def jacobian(state, source=source, t=t):
            return coffee_jacobian(_at_step(plain, t), state, source, feedback)

        states.append(advance(step, jacobian, states[-1]))
    return stack(states, 1)


def _at_step(arrays, t):
    """What the gate sees of a sequence, for one step of it."""
    has_one = "gate_inputs" in arrays
    return arrays | {"gate_inputs": arrays["gate_inputs"][:, t]} if has_one else arrays


def coffee_step(arrays, state, source, feedback="sigmoid"):
    """The state after `state`, both `(..., D, n)`, with inputs `(..., D, 1)`.

    What the gate sees besides, `arrays["gate_inputs"]`, is `(..., D)`.
    """
    delta, _ = _gate(arrays, state, source, feedback)
    return state + delta * _change(arrays, state, source)


def coffee_jacobian(arrays, state, source, feedback="sigmoid"):
    """The derivative of the new state by the old."""
    delta, slope = _gate(arrays, state, source, feedback)
    direct = 1.0 + arrays["transition"] * delta
    if feedback is None:
        return direct
    return direct + arrays["gate"] * slope * _change(arrays, state, source)


def coffee_gradients(arrays, states, grad_outputs, grad_final, feedback="sigmoid"):
    """The gradients, given the states: the loop backwards."""
    before, source = states[:, :-1], arrays["inputs"][..., None]
    adjoint, gradients = _read_gradients(arrays, states[:, 1:], grad_outputs)
    jacobian = coffee_jacobian(arrays, before, source, feedback)
    adjoint, gradients["initial_state"] = _carry_back(adjoint, jacobian, grad_final)
    delta, slope = _gate(arrays, before, source, feedback)
    grad_change = adjoint * delta
    grad_argument = adjoint * slope * _change(arrays, before, source)
    gradients["transition"] = (grad_change * before).sum((0, 1))
    gradients["gate"] = (grad_argument * (source if feedback is None else before)).sum((0, 1))
    gradients["gate_bias"] = grad_argument.sum((0, 1))
    gradients["gate_inputs"] = grad_argument.sum(-1)
    grad_source = grad_change
    if "input_matrix" in arrays:
        gradients["input_matrix"] = (grad_change * source).sum((0, 1))
        grad_source = grad_change * arrays["input_matrix"]
    if feedback is None:
        grad_source = grad_source + grad_argument * arrays["gate"]
    return gradients | {"inputs": grad_source.sum(-1)}


def _gate(arrays, state, source, feedback):
    """Δ, and its derivative by the argument of the gate."""
    argument = arrays["gate"] * (source if feedback is None else state)
    if "gate_inputs" in arrays:
        argument = argument + arrays["gate_inputs"][..., None]
    if "gate_bias" in arrays:
        argument = argument + arrays["gate_bias"]
    if feedback == "linear":
        return argument, 1.0
    return sigmoid(argument), sigmoid_slope(argument)


def _change(arrays, state, source):
    """λ x + b u: the derivative of the new state by Δ."""
    drive = arrays["input_matrix"] * source if "input_matrix" in arrays else source
    return arrays["transition"] * state + drive


def read(arrays, states):
    """Outputs C x, or σ(w x) C x with an output gate."""
    outputs = (arrays["readout"] * states).sum(-1)
    if "output_gate" in arrays:
        outputs = outputs * sigmoid((arrays["output_gate"] * states).sum(-1))
    return outputs


def _read_gradients(arrays, states, grad_outputs):
    grad_sum, gradients, by_gate = grad_outputs[..., None], {}, 0.0
    if "output_gate" in arrays:
        argument = (arrays["output_gate"] * states).sum(-1)[..., None]
        total = (arrays["readout"] * states).sum(-1)[..., None]
        grad_argument = grad_sum * total * sigmoid_slope(argument)
        gradients["output_gate"] = (grad_argument * states).sum((0, 1))
        by_gate = grad_argument * arrays["output_gate"]
        grad_sum = grad_sum * sigmoid(argument)
    gradients["readout"] = (grad_sum * states).sum((0, 1))
    return grad_sum * arrays["readout"] + by_gate, gradients


# Selective state-space models.


def selective(arrays, cotangents, discretization="zoh", delta_softplus=False):
    """Outputs `(B, T, D)` and the final state `(B, D, n)`. Skip and bias of Δ are optional."""
    (grad_outputs, grad_final), gradients = cotangents, {}
    source, given = arrays["inputs"][..., None], arrays["delta"]
    if "delta_bias" in arrays:
        given = given + arrays["delta_bias"]
    step = (softplus(given) if delta_softplus else given)[..., None]
    input_matrix, output_matrix = (
        matrix[:, :, None] if len(matrix.shape) == 3 else matrix
        for matrix in (arrays["input_matrix"], arrays["output_matrix"])
    )
    decay, decay_slope, ratio, ratio_slope = _discretize(
        step * arrays["transition"], discretization
    )
    gain = step * ratio
    states = _recur(decay, gain * input_matrix * source, arrays["initial_state"])
    outputs = (output_matrix * states[:, 1:]).sum(-1)
    if "skip" in arrays:
        outputs = outputs + arrays["skip"] * arrays["inputs"]

    adjoint = grad_outputs[..., None] * output_matrix
    adjoint, gradients["initial_state"] = _carry_back(adjoint, decay, grad_final)
    grad_gain = adjoint * input_matrix * source
    grad_exponent = adjoint * states[:, :-1] * decay_slope + grad_gain * step * ratio_slope
    gradients |= {
        "inputs": (adjoint * gain * input_matrix).sum(-1),
        "delta": (grad_exponent * arrays["transition"] + grad_gain * ratio).sum(-1),
        "transition": (grad_exponent * step).sum((0, 1)),
        "input_matrix": _sum_to(
            adjoint * gain * source, input_matrix.shape, arrays["input_matrix"].shape
        ),
        "output_matrix": _sum_to(
            grad_outputs[..., None] * states[:, 1:],
            output_matrix.shape,
            arrays["output_matrix"].shape,
        ),
    }
    if delta_softplus:
        gradients["delta"] = gradients["delta"] * softplus_slope(given)
    if "delta_bias" in arrays:
        gradients["delta_bias"] = gradients["delta"].sum((0, 1))
    if "skip" in arrays:
        gradients["skip"] = (grad_outputs * arrays["inputs"]).sum((0, 1))
        gradients["inputs"] = gradients["inputs"] + grad_outputs * arrays["skip"]
    return (outputs, states[:, -1]), gradients


def _discretize(exponent, discretization):
    """e^z and (e^z - 1)/z of zero-order hold, or 1 + z and 1 of Euler; each with its derivative.

    Mamba has e^z and 1.
    """
    one = np.ones(exponent.shape)
    if discretization == "euler":
        return 1.0 + exponent, one, one, 0 * one
    if discretization == "mamba":
        return exp(exponent), exp(exponent), one, 0 * one
    return exp(exponent), exp(exponent), expm1_ratio(exponent), expm1_ratio_slope(exponent)


# Linear recurrences.


def linear(arrays, cotangents, reverse=False):
    """States `(B, T, ...)`, as `Rounded` numbers."""
    arrays = {name: as_rounded(array) for name, array in arrays.items()}
    order = slice(None, None, -1 if reverse else 1)
    shape = arrays["inputs"].shape
    decay = arrays["decay"]
    decay = Rounded(*(np.broadcast_to(x, shape) for x in (decay.value, decay.error)))[:, order]
    states = _recur(decay, arrays["inputs"][:, order], arrays["initial_state"])
    adjoint, grad_initial = _carry_back(as_rounded(cotangents[0])[:, order], decay, 0.0)
    grad_decay = (adjoint * states[:, :-1].conj())[:, order]
    gradients = {
        "decay": _sum_to(grad_decay, arrays["decay"].shape, arrays["decay"].shape),
        "inputs": adjoint[:, order],
        "initial_state": grad_initial,
    }
    for name, array in arrays.items():
        if not np.iscomplexobj(array.value):
            gradients[name] = gradients[name].real
    return (states[:, 1:][:, order],), gradients


def _recur(decay, drive, state):
    """The states x(k) = a(k) x(k-1) + b(k), the initial one first."""
    states = [state]
    for t in range(drive.shape[1]):
        states.append(decay[:, t] * states[-1] + drive[:, t])
    return stack(states, 1)


def _carry_back(adjoint, jacobian, grad_final):
    """Adds to each step's adjoint what later steps contribute. Also that of the initial state."""
    carried, adjoints = grad_final, []
    for t in reversed(range(adjoint.shape[1])):
        adjoints.append(adjoint[:, t] + carried)
        carried = jacobian[:, t].conj() * adjoints[-1]
    return stack(adjoints[::-1], 1), carried


def _sum_to(gradient, aligned, shape):
    """The gradient by an array of `shape` that took part in broadcasting as shape `aligned`."""
    aligned = (1,) * (len(gradient.shape) - len(aligned)) + tuple(aligned)
    pairs = enumerate(zip(aligned, gradient.shape, strict=True))
    return gradient.sum(tuple(i for i, (a, g) in pairs if a != g)).reshape(shape)


# Functions and their derivatives, for real arguments and complex steps.


def sigmoid(x):
    return elementary(_sigmoid, _sigmoid_slope, x)


def sigmoid_slope(x):
    # Computed as σ (1 - σ), which loses what σ has rounded off.
    return elementary(_sigmoid_slope, _sigmoid_curvature, x, absolute=_sigmoid(exact(x)))


def _sigmoid(x):
    negative = np.real(x) < 0
    e = np.exp(np.where(negative, x, -x))
    return np.where(negative, e, 1) / (1 + e)


def _sigmoid_slope(x):
    return _sigmoid(x) * _sigmoid(-x)


def _sigmoid_curvature(x):
    return _sigmoid_slope(x) * (_sigmoid(-x) - _sigmoid(x))


def softplus(x):
    return elementary(_softplus, _sigmoid, x)


def softplus_slope(x):
    # Some compute it as exp(x - softplus(x)), whose exponent is off by units of x.
    lost = abs(exact(x)) * _sigmoid(exact(x))
    return elementary(_sigmoid, _sigmoid_slope, x, absolute=lost)


def _softplus(x):
    positive = np.where(np.real(x) < 0, 0, x)
    return positive + np.log1p(np.exp(np.where(np.real(x) < 0, x, -x)))


def exp(x):
    return elementary(np.exp, np.exp, x)


def expm1_ratio(x):
    """φ(x) = (e^x - 1)/x, right through x = 0."""
    return elementary(_ratio, _ratio_slope, x)


def expm1_ratio_slope(x):
    # Computed as the difference of e^x and φ over x, unless x is small. PyTorch and JAX take e^x
    # from expm1(x) + 1, which is off by a unit of one, however small e^x is.
    z = exact(x)
    lost = (np.exp(z) + _ratio(z) + 1 / ELEMENTARY) / np.maximum(abs(z), 0.1)
    return elementary(_ratio_slope, _ratio_curvature, x, absolute=lost)


def _ratio(x):
    safe = np.where(x == 0, 1, x)
    return np.where(x == 0, 1, np.expm1(safe) / safe)


def _ratio_slope(x):
    near, far = np.where(abs(x) < 1, x, 0), np.where(abs(x) < 1, 1, x)
    return np.where(abs(x) < 1, _moment(1, near), (1 + np.exp(far) * (far - 1)) / far**2)


def _ratio_curvature(x):
    near, far = np.where(abs(x) < 1, x, 0), np.where(abs(x) < 1, 1, x)
    distant = (np.exp(far) * (far**2 - 2 * far + 2) - 2) / far**3
    return np.where(abs(x) < 1, _moment(2, near), distant)


def _moment(k, x):
    """The k-th derivative of φ as ∫ s^k e^(sx) ds over [0, 1], which has no cancellation."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    s = (nodes + 1) / 2
    return (weights / 2 * s**k * np.exp(np.multiply.outer(x, s))).sum(-1)
