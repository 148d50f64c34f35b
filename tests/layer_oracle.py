"""The recurrent layers with masks, in float64, with gradients: each row without its masked steps.

Nothing here masks as the package does. A row's masked steps are taken out, the recurrence of
`oracles` runs over what is left, and its outputs are put back where they are shown. Projections of
the inputs are part of it, and so is the rounding of each result, in low precision too.
"""

import keras
import ml_dtypes
import numpy as np
import oracles
from rounding import Rounded, elementary, stack

# Units of rounding and half the spacing of the smallest numbers, in units of float32.
LOW_PRECISION = {"bfloat16": (2.0**16, 0.0), "float16": (2.0**13, 0.5)}


def run(layer, arrays, cotangents, mask):
    """What `layer` returns for `arrays`, outputs and the final state, and the gradients by name.

    Arrays are inputs, initial state and weights, in float64, already rounded to the dtypes that
    they come in. Cotangents are those of all T outputs and of the final state.
    """
    order = slice(None, None, -1 if layer.go_backwards else 1)
    inputs, mask = rounded_to(arrays["inputs"], layer.compute_dtype)[:, order], mask[:, order]
    weights = {k: a for k, a in arrays.items() if k not in ("inputs", "initial_state")}
    outputs = np.zeros(inputs.shape), np.zeros(inputs.shape)
    final = np.zeros(arrays["initial_state"].shape), np.zeros(arrays["initial_state"].shape)
    gradients = {k: [np.zeros(a.shape), np.zeros(a.shape)] for k, a in arrays.items()}
    by_row = {name: [] for name in weights}
    for b in range(len(inputs)):
        steps = np.flatnonzero(mask[b])
        shown = shown_steps(mask[b], layer.zero_output_for_mask)
        given = cotangents[0][b], cotangents[1][b : b + 1]
        state = arrays["initial_state"][b : b + 1]
        if not len(steps):
            _put(final, b, Rounded(state[0]))
            _put(gradients["initial_state"], b, Rounded(given[1][0]))
            continue
        folded = [Rounded(given[0][shown == k]).sum(0) for k in range(len(steps))]
        (row_outputs, row_final), row = equation(
            layer, weights, inputs[b : b + 1, steps], state, (stack(folded, 0)[None], given[1])
        )
        _put(outputs, (b, shown >= 0), row_outputs[0, shown[shown >= 0]])
        _put(final, b, row_final[0])
        _put(gradients["initial_state"], b, row["initial_state"][0])
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
    return (lowered(Rounded(*outputs), layer.compute_dtype), Rounded(*final)), gradients


def shown_steps(mask, zero_output_for_mask):
    """For each output, which of the steps that count it shows: -1 for none, where it is zero."""
    shown = np.cumsum(mask) - 1
    return np.where(mask, shown, -1) if zero_output_for_mask else shown


def _put(pair, where, x):
    pair[0][where], pair[1][where] = x.value, x.error


# The layers' equations, for one batch without masks.


def equation(layer, weights, inputs, state, cotangents):
    w = {name: Rounded(weight) for name, weight in weights.items()}
    inputs, state = Rounded(inputs), Rounded(state)
    if type(layer).__name__ == "CoffeeLayer":
        arrays = w | {"inputs": inputs, "initial_state": state}
        return oracles.coffee(arrays, cotangents, layer.feedback)
    return _selective(layer, w, inputs, state, cotangents)


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
