"""The recurrent layers with masks, in float64, with gradients: each row without its masked steps.

Nothing here masks as the package does. A row's masked steps are taken out, the recurrence of
`oracles` runs over what is left, and its outputs are put back where they are shown. Projections of
the inputs are part of it, and so is the rounding of each result, in low precision too.
"""

import keras
import ml_dtypes
import numpy as np
import oracles
from rounding import ELEMENTARY, Rounded, elementary, stack

# Units of rounding and half the spacing of the smallest numbers, in units of float32.
LOW_PRECISION = {"bfloat16": (2.0**16, 0.0), "float16": (2.0**13, 0.5)}


def state_names(layer):
    """What arrays and gradients call the initial states of a layer."""
    count = len(layer.state_specs(1))
    return ["initial_state"] if count == 1 else [f"initial_state_{i}" for i in range(count)]


def run(layer, arrays, cotangents, mask):
    """What `layer` returns for `arrays`, outputs and final states, and the gradients by name.

    Arrays are inputs, initial states and weights, in float64, already rounded to the dtypes that
    they come in. Cotangents are those of all T outputs and of the final states.
    """
    names = state_names(layer)
    order = slice(None, None, -1 if layer.go_backwards else 1)
    inputs, mask = rounded_to(arrays["inputs"], layer.compute_dtype)[:, order], mask[:, order]
    weights = {k: a for k, a in arrays.items() if k not in ("inputs", *names)}
    outputs = _zeros(cotangents[0])
    final = [_zeros(arrays[name]) for name in names]
    gradients = {k: _zeros(a) for k, a in arrays.items()}
    by_row = {name: [] for name in weights}
    for b in range(len(inputs)):
        steps = np.flatnonzero(mask[b])
        shown = shown_steps(mask[b], layer.zero_output_for_mask)
        by_outputs, by_final = cotangents[0][b], [given[b : b + 1] for given in cotangents[1:]]
        states = {name: arrays[name][b : b + 1] for name in names}
        if not len(steps):
            for k, name in enumerate(names):
                _put(final[k], b, Rounded(states[name][0]))
                _put(gradients[name], b, Rounded(by_final[k][0]))
            continue
        folded = [Rounded(by_outputs[shown == k]).sum(0) for k in range(len(steps))]
        (row_outputs, *row_final), row = equation(
            layer, weights, inputs[b : b + 1, steps], states, (stack(folded, 0)[None], *by_final)
        )
        _put(outputs, (b, shown >= 0), row_outputs[0, shown[shown >= 0]])
        for k, name in enumerate(names):
            _put(final[k], b, row_final[k][0])
            _put(gradients[name], b, row[name][0])
        _put(gradients["inputs"], (b, np.arange(mask.shape[1])[order][steps]), row["inputs"][0])
        for name in weights:
            by_row[name].append(row[name])
    gradients = {name: Rounded(*pair) for name, pair in gradients.items()}
    for name, rows in by_row.items():
        if rows:
            total = stack(rows, 0).sum(0)
            # A product of matrices may be summed over the batch in the dtype of its factors.
            is_low = name.endswith("_projection") or layer.variable_dtype in LOW_PRECISION
            gradients[name] = lowered(total, layer.compute_dtype) if is_low else total
    gradients["inputs"] = lowered(gradients["inputs"], layer.compute_dtype)
    outputs = lowered(Rounded(*outputs), layer.compute_dtype)
    return (outputs, *(Rounded(*pair) for pair in final)), gradients


def shown_steps(mask, zero_output_for_mask):
    """For each output, which of the steps that count it shows: -1 for none, where it is zero."""
    shown = np.cumsum(mask) - 1
    return np.where(mask, shown, -1) if zero_output_for_mask else shown


def _zeros(array):
    """Values and errors, to be filled."""
    return np.zeros(array.shape, np.result_type(array, "float64")), np.zeros(array.shape)


def _put(pair, where, x):
    pair[0][where], pair[1][where] = x.value, x.error


# The layers' equations, for one batch without masks.


def equation(layer, weights, inputs, states, cotangents):
    w = {name: Rounded(weight) for name, weight in weights.items()}
    inputs, states = Rounded(inputs), {name: Rounded(state) for name, state in states.items()}
    if type(layer).__name__ == "TwoStates":
        return _two_states(layer, w, inputs, states, cotangents)
    if type(layer).__name__ == "CoffeeLayer":
        arrays = w | {"inputs": inputs} | states
        return oracles.coffee(arrays, cotangents, layer.feedback)
    return _selective(layer, w, inputs, states["initial_state"], cotangents)


def _selective(layer, w, inputs, state, cotangents):
    dtype, is_s6 = layer.compute_dtype, type(layer).__name__ == "S6Layer"
    projected = {"delta": "step_projection"}
    if is_s6:
        projected |= {"input_matrix": "input_projection", "output_matrix": "output_projection"}
    low = {k: Rounded(rounded_to(w[k].value, dtype)) for k in projected.values()}
    products = {k: lowered(_matmul(inputs, low[name]), dtype) for k, name in projected.items()}
    step = softplus if is_s6 else oracles.sigmoid
    arrays = {"inputs": inputs, "initial_state": state, **products}
    arrays["delta"] = step(products["delta"])
    if is_s6:
        arrays["transition"] = -1.0 * oracles.exp(w["log_transition"])
    else:
        constant = {"input_matrix": w["input_matrix"], "output_matrix": w["readout"]}
        arrays |= {"transition": w["transition"], **constant}
    results, by = oracles.selective(arrays, cotangents, "zoh" if is_s6 else "euler")

    gradients = {"initial_state": by["initial_state"]}
    if is_s6:
        gradients["log_transition"] = by["transition"] * arrays["transition"]
    else:
        gradients |= {"transition": by["transition"], "input_matrix": by["input_matrix"]}
        gradients["readout"] = by["output_matrix"]
    slope = softplus_slope if is_s6 else oracles.sigmoid_slope
    by_products = by | {"delta": by["delta"] * slope(products["delta"])}
    by_inputs = by["inputs"]
    for k, name in projected.items():
        gradient = lowered(by_products[k], dtype)
        by_weight = (inputs[..., None] * gradient[..., None, :]).sum((0, 1))
        gradients[name] = lowered(by_weight, dtype)
        by_inputs = by_inputs + lowered((gradient[..., None, :] * low[name]).sum(-1), dtype)
    return results, gradients | {"inputs": by_inputs}


def _two_states(layer, w, inputs, states, cotangents):
    dtype, n = layer.compute_dtype, w["angle"].shape[0]
    turn = 0.9 * np.exp(1j * w["angle"].value)
    turn = Rounded(turn, ELEMENTARY * abs(turn))
    decay = oracles.sigmoid(w["decay"])
    low = Rounded(rounded_to(w["input_projection"].value, dtype))
    drive = lowered(_matmul(inputs, low), dtype)
    by_turning, by_leaky = cotangents[0][..., :n], cotangents[0][..., n:] * w["scale"]
    turning, by_turn = _linear(turn, drive, states["initial_state_0"], by_turning, cotangents[1])
    leaky, by = _linear(decay, inputs, states["initial_state_1"], by_leaky, cotangents[2])
    parts = turning.real, leaky * w["scale"]
    outputs = Rounded(*(np.concatenate([getattr(p, k) for p in parts], -1) for k in _BOTH))
    by_drive = lowered(by_turn["inputs"], dtype)
    by_projection = (inputs[..., None] * by_drive[..., None, :]).sum((0, 1))
    by_inputs = by["inputs"] + lowered((by_drive[..., None, :] * low).sum(-1), dtype)
    return (outputs, turning[:, -1], leaky[:, -1]), {
        "inputs": by_inputs,
        "initial_state_0": by_turn["initial_state"],
        "initial_state_1": by["initial_state"],
        "angle": (by_turn["decay"].conj() * (1j * turn)).real,
        "input_projection": lowered(by_projection, dtype),
        "decay": by["decay"] * oracles.sigmoid_slope(w["decay"]),
        "scale": (cotangents[0][..., n:] * leaky).sum((0, 1)),
    }


_BOTH = ("value", "error")


def _linear(decay, drive, state, by_states, by_final):
    """States, and gradients, of a linear recurrence whose last state has one more cotangent."""
    by_states = by_states + Rounded(np.zeros(drive.shape))
    last = np.arange(drive.shape[1])[:, None] == drive.shape[1] - 1
    by_states = by_states + Rounded(last * by_final[:, None])
    arrays = {"decay": decay[None, None], "inputs": drive, "initial_state": state}
    (states,), gradients = oracles.linear(arrays, (by_states,))
    return states, gradients | {"decay": gradients["decay"][0, 0]}


def _matmul(x, weight):
    return (x[..., None] * weight).sum(-2)


def softplus(x):
    return elementary(lambda z: np.logaddexp(0, z), oracles._sigmoid, x)


def softplus_slope(x):
    # Some compute it as exp(x - softplus(x)), whose exponent is off by units of x.
    lost = abs(x.value) * oracles._sigmoid(x.value)
    return elementary(oracles._sigmoid, oracles._sigmoid_slope, x, absolute=lost)


# Low precision.


def rounded_to(array, dtype):
    """The values that an array has in another dtype, in float64."""
    low = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(low).astype("float64")


def lowered(x, dtype):
    """`x` after a cast to a dtype; only low precision is less precise than what bounds count in."""
    unit, least = LOW_PRECISION.get(keras.backend.standardize_dtype(dtype), (0.0, 0.0))
    return Rounded(x.value, x.error + unit * abs(x.value) + least)
