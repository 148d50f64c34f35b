"""The recurrent layers with masks, in float64, with gradients: each row without its masked steps.

Nothing here masks as the package does. A row's masked steps are taken out, the recurrence of
`oracles` runs over what is left, and its outputs are put back where they are shown. Projections of
the inputs are part of it, and so is the rounding of each result, in low precision too.
"""

import keras
import ml_dtypes
import numpy as np
import oracles
from rounding import ELEMENTARY, Rounded, as_rounded, stack

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
            is_product = name.endswith(("_projection", "kernel", "skip")) and len(total.shape) > 1
            is_low = is_product or layer.variable_dtype in LOW_PRECISION
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
    return _EQUATIONS[type(layer).__name__](layer, w, inputs, states, cotangents)


def _coffee(layer, w, inputs, states, cotangents):
    dtype, arrays = layer.compute_dtype, w | states | {"inputs": inputs}
    if layer.input_gate is None:
        return oracles.coffee(arrays, cotangents, layer.feedback)
    is_full, weight = layer.input_gate == "full", w["gate_projection"]
    arrays["gate_inputs"] = _product(inputs, weight, dtype) if is_full else inputs * weight
    results, by = oracles.coffee(arrays, cotangents, layer.feedback)
    by_gate = by["gate_inputs"]
    if is_full:
        by_weight, by_inputs = (
            _by_weight(inputs, by_gate, dtype),
            _by_factor(by_gate, weight, dtype),
        )
    else:
        by_weight, by_inputs = (by_gate * inputs).sum((0, 1)), by_gate * weight
    return results, by | {"gate_projection": by_weight, "inputs": by["inputs"] + by_inputs}


def _linearized_s6(layer, w, inputs, states, cotangents):
    dtype, projection = layer.compute_dtype, w["step_projection"]
    argument = _product(inputs, projection, dtype)
    arrays = {"inputs": inputs, "delta": oracles.sigmoid(argument), **states}
    arrays |= {"transition": w["transition"], "input_matrix": w["input_matrix"]}
    arrays["output_matrix"] = w["readout"]
    results, by = oracles.selective(arrays, cotangents, "euler")
    by_argument = by["delta"] * oracles.sigmoid_slope(argument)
    return results, {
        "initial_state": by["initial_state"],
        "transition": by["transition"],
        "input_matrix": by["input_matrix"],
        "readout": by["output_matrix"],
        "step_projection": _by_weight(inputs, by_argument, dtype),
        "inputs": by["inputs"] + _by_factor(by_argument, projection, dtype),
    }


def _s6(layer, w, inputs, states, cotangents):
    dtype = layer.compute_dtype
    projected = {
        "delta": "step_projection",
        "input_matrix": "input_projection",
        "output_matrix": "output_projection",
    }
    products = {k: _product(inputs, w[name], dtype) for k, name in projected.items()}
    arrays = {"inputs": inputs, **states, **products}
    arrays["transition"] = -1.0 * oracles.exp(w["log_transition"])
    if "step_expansion" in w:
        arrays["delta"] = _product(products["delta"], w["step_expansion"], dtype)
    for k, name in {"input_matrix": "input_bias", "output_matrix": "output_bias"}.items():
        arrays[k] = products[k] + w[name] if name in w else products[k]
    arrays |= {k: w[name] for k, name in _S6_VECTORS.items() if name in w}
    results, by = oracles.selective(arrays, cotangents, layer.discretization, delta_softplus=True)

    gradients = {"initial_state": by["initial_state"]}
    gradients["log_transition"] = by["transition"] * arrays["transition"]
    gradients |= {name: by[k] for k, name in _S6_VECTORS.items() if name in w}
    for k, name in {"input_matrix": "input_bias", "output_matrix": "output_bias"}.items():
        gradients |= {name: by[k].sum((0, 1))} if name in w else {}
    if "step_expansion" in w:
        gradients["step_expansion"] = _by_weight(products["delta"], by["delta"], dtype)
        by["delta"] = _by_factor(by["delta"], w["step_expansion"], dtype)
    by_inputs = by["inputs"]
    for k, name in projected.items():
        gradients[name] = _by_weight(inputs, by[k], dtype)
        by_inputs = by_inputs + _by_factor(by[k], w[name], dtype)
    return results, gradients | {"inputs": by_inputs}


# What `selective` calls the vectors of an S6Layer.
_S6_VECTORS = {"delta_bias": "step_bias", "skip": "skip"}


def _two_states(layer, w, inputs, states, cotangents):
    dtype, n = layer.compute_dtype, w["angle"].shape[0]
    turn = 0.9 * np.exp(1j * w["angle"].value)
    turn = Rounded(turn, ELEMENTARY * abs(turn))
    decay = oracles.sigmoid(w["decay"])
    drive = _product(inputs, w["input_projection"], dtype)
    by_turning, by_leaky = cotangents[0][..., :n], cotangents[0][..., n:] * w["scale"]
    turning, by_turn = _linear(turn, drive, states["initial_state_0"], by_turning, cotangents[1])
    leaky, by = _linear(decay, inputs, states["initial_state_1"], by_leaky, cotangents[2])
    outputs = _side_by_side(turning.real, leaky * w["scale"])
    by_inputs = by["inputs"] + _by_factor(by_turn["inputs"], w["input_projection"], dtype)
    return (outputs, turning[:, -1], leaky[:, -1]), {
        "inputs": by_inputs,
        "initial_state_0": by_turn["initial_state"],
        "initial_state_1": by["initial_state"],
        "angle": (by_turn["decay"].conj() * (1j * turn)).real,
        "input_projection": _by_weight(inputs, by_turn["inputs"], dtype),
        "decay": by["decay"] * oracles.sigmoid_slope(w["decay"]),
        "scale": (cotangents[0][..., n:] * leaky).sum((0, 1)),
    }


def _min_gru(layer, w, inputs, states, cotangents):
    dtype, units = layer.compute_dtype, layer.units
    driven = _product(inputs, w["kernel"], dtype)
    driven = driven + w["bias"] if layer.use_bias else driven
    gate, argument = driven[..., :units], driven[..., units:]
    is_positive = layer.get_config()["activation"] == "positive"
    candidate, slope = _positive(argument) if is_positive else (argument, 1.0)
    new, old = oracles.sigmoid(gate), oracles.sigmoid(-1.0 * gate)
    outputs, by = _linear(old, new * candidate, states["initial_state"], *cotangents)
    # The slopes of 1 - z and of z, each computed by itself.
    by_old = -1.0 * by["decay"] * oracles.sigmoid_slope(-1.0 * gate)
    by_gate = by["inputs"] * candidate * oracles.sigmoid_slope(gate) + by_old
    by_driven = _side_by_side(by_gate, by["inputs"] * new * slope)
    return (outputs, outputs[:, -1]), {
        "inputs": _by_factor(by_driven, w["kernel"], dtype),
        "initial_state": by["initial_state"],
        "kernel": _by_weight(inputs, by_driven, dtype),
        **({"bias": by_driven.sum((0, 1))} if layer.use_bias else {}),
    }


def _positive(x):
    """minGRU's g and its slope, which jumps at 0: no rounding changes the sign of a product."""
    value, slope, is_above = oracles.sigmoid(x), oracles.sigmoid_slope(x), x.value >= 0
    above = x + 0.5
    return (
        Rounded(*(np.where(is_above, getattr(above, k), getattr(value, k)) for k in _BOTH)),
        Rounded(np.where(is_above, 1, slope.value), np.where(is_above, 0, slope.error)),
    )


def _lru(layer, w, inputs, states, cotangents):
    dtype, n = layer.compute_dtype, layer.n
    rate, phase, scale = (oracles.exp(w[f"log_{name}"]) for name in ("decay", "phase", "scale"))
    turn = np.exp(-rate.value + 1j * phase.value)
    turn = Rounded(turn, abs(turn) * (rate.error + phase.error + ELEMENTARY))
    driven = _product(inputs, w["input_kernel"], dtype)
    drive = _complex(scale * driven[..., :n], scale * driven[..., n:])
    kernel = _stacked(w["output_kernel"], w["skip"])
    by_read = _by_factor(cotangents[0], kernel, dtype)
    by_states = _complex(by_read[..., :n], by_read[..., n : 2 * n])
    turning, by = _linear(turn, drive, states["initial_state"], by_states, cotangents[1])
    read = lowered(_parts(turning), dtype)
    outputs = _product(_side_by_side(read, inputs), kernel, dtype)
    by_driven = _parts(by["inputs"]) * _side_by_side(scale, scale)
    by_turn = by["decay"].conj() * turn
    by_inputs = _by_factor(by_driven, w["input_kernel"], dtype)
    return (outputs, turning[:, -1]), {
        "inputs": by_inputs + by_read[..., 2 * n :],
        "initial_state": by["initial_state"],
        "log_decay": (-1.0 * rate * by_turn).real,
        "log_phase": (1j * phase * by_turn).real,
        "log_scale": (by["inputs"].conj() * drive).real.sum((0, 1)),
        "input_kernel": _by_weight(inputs, by_driven, dtype),
        "output_kernel": _by_weight(read, cotangents[0], dtype),
        "skip": _by_weight(inputs, cotangents[0], dtype),
    }


def _causal_conv(layer, w, inputs, states, cotangents):
    kernel, state = _low(w["kernel"], layer.compute_dtype), states["initial_state"]
    size, length = layer.kernel_size, inputs.shape[1]
    known = [state[:, k] for k in range(size - 1)] + [inputs[:, t] for t in range(length)]
    windows = [stack(known[k : k + length], 1) for k in range(size)]
    argument = sum((window * kernel[k] for k, window in enumerate(windows)), Rounded(0.0))
    argument = argument + w["bias"] if layer.use_bias else argument
    outputs, slope = argument, 1.0
    if layer.get_config()["activation"] == "silu":
        outputs = argument * oracles.sigmoid(argument)
        slope = oracles.sigmoid(argument) + argument * oracles.sigmoid_slope(argument)
    by_argument = as_rounded(cotangents[0] * slope)
    by_known = [cotangents[1][:, k - length] for k in range(length, len(known))]
    by_known = [Rounded(np.zeros(state[:, 0].shape))] * length + by_known if size > 1 else []
    by_known = by_known or [Rounded(np.zeros(inputs[:, 0].shape))] * length
    for k in range(size):
        for t in range(length):
            by_known[t + k] = by_known[t + k] + by_argument[:, t] * kernel[k]
    by_kernel = [(window * by_argument).sum((0, 1)) for window in windows]
    return (outputs, stack(known[length:], 1) if size > 1 else state), {
        "inputs": stack(by_known[size - 1 :], 1),
        "initial_state": stack(by_known[: size - 1], 1) if size > 1 else state,
        "kernel": stack(by_kernel, 0),
        **({"bias": by_argument.sum((0, 1))} if layer.use_bias else {}),
    }


def _linear(decay, drive, state, by_states, by_final):
    """States, and gradients, of a linear recurrence whose last state has one more cotangent."""
    by_states = by_states + Rounded(np.zeros(drive.shape))
    last = np.arange(drive.shape[1]) == drive.shape[1] - 1
    last = last.reshape(-1, *(1 for _ in drive.shape[2:]))
    by_states = by_states + Rounded(last * by_final[:, None])
    is_constant = len(decay.shape) == 1
    arrays = {"inputs": drive, "initial_state": state}
    arrays["decay"] = decay[None, None] if is_constant else decay
    (states,), gradients = oracles.linear(arrays, (by_states,))
    by_decay = gradients["decay"][0, 0] if is_constant else gradients["decay"]
    return states, gradients | {"decay": by_decay}


_BOTH = ("value", "error")


def _side_by_side(*parts):
    return Rounded(*(np.concatenate([getattr(p, k) for p in parts], -1) for k in _BOTH))


def _stacked(*weights):
    return Rounded(*(np.concatenate([getattr(w, k) for w in weights]) for k in _BOTH))


def _complex(real, imaginary):
    return Rounded(real.value + 1j * imaginary.value, np.hypot(real.error, imaginary.error))


def _parts(x):
    """Real and imaginary part side by side."""
    return _side_by_side(x.real, Rounded(x.value.imag, x.error))


# Products with a weight. Factors, products and their gradients are in the compute dtype.


def _product(x, weight, dtype):
    return lowered((x[..., None] * _low(weight, dtype)).sum(-2), dtype)


def _by_factor(by_product, weight, dtype):
    by_product = lowered(as_rounded(by_product), dtype)
    return lowered((by_product[..., None, :] * _low(weight, dtype)).sum(-1), dtype)


def _by_weight(x, by_product, dtype):
    by_product = lowered(as_rounded(by_product), dtype)
    return lowered((x[..., None] * by_product[..., None, :]).sum((0, 1)), dtype)


def _low(weight, dtype):
    return Rounded(rounded_to(weight.value, dtype))


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


_EQUATIONS = {
    "CoffeeLayer": _coffee,
    "S6Layer": _s6,
    "LinearizedS6Layer": _linearized_s6,
    "TwoStates": _two_states,
    "MinGRU": _min_gru,
    "LRU": _lru,
    "CausalConv1D": _causal_conv,
}
