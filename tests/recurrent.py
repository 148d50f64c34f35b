"""The recurrent layers under test: cases, data, and their equations in float64."""

import keras
import numpy as np
import oracles
from keras import ops
from nightly import IS_THOROUGH

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.layers import LRU, CausalConv1D, MinGRU, RecurrentLayer, StateSpec, WeightSpec
from keras_coffee.ops import linear_scan


@keras.saving.register_keras_serializable("tests")
class TwoStates(RecurrentLayer):
    """A layer of a user's own: two states of other shapes, one complex, and wider outputs.

    z(k) = 0.9 e^(iθ) z(k-1) + P u(k)
    s(k) = σ(d) s(k-1) + u(k)
    y(k) = [Re z(k), w s(k)]
    """

    WEIGHTS = {
        "angle": WeightSpec(("n",), "standard_normal"),
        "input_projection": WeightSpec(("D", "n"), "standard_normal"),
        "decay": WeightSpec(("D",), "standard_normal"),
    }

    def __init__(self, n, **kwargs):
        super().__init__(**kwargs)
        self.n = n

    def build(self, inputs_shape, initial_state_shape=None):
        self.scale = self.add_weight(name="scale", shape=inputs_shape[-1:], autocast=False)
        super().build(inputs_shape, initial_state_shape)

    def state_specs(self, dim):
        return [StateSpec((self.n,), self.complex_state_dtype), StateSpec((dim,))]

    def output_size(self, dim):
        return self.n + dim

    def scan(self, inputs, initial_state, mask):
        turning, leaky = initial_state or (None, None)
        decay, scale = (ops.cast(w, self.state_dtype) for w in (self.decay, self.scale))
        # `ops.view_as_complex` is of single precision on TensorFlow.
        turn = 0.9 * ops.exp(1j * ops.cast(self.angle, self.complex_state_dtype))
        drive = ops.cast(self.project(inputs, self.input_projection), self.complex_state_dtype)
        turning = self._linear(turn, drive, turning, mask)
        leaky = self._linear(ops.sigmoid(decay), inputs, leaky, mask)
        outputs = ops.concatenate([ops.real(turning), scale * leaky], axis=-1)
        return outputs, [turning[:, -1], leaky[:, -1]]

    def _linear(self, decay, drive, state, mask):
        if mask is not None:
            # `ops.where` would make complex128 complex64 on TensorFlow.
            counts = ops.cast(mask[..., None], drive.dtype)
            decay = counts * decay + (1.0 - counts)
        return linear_scan(decay, drive, initial_state=state, solver=self.solver)[0]

    def get_config(self):
        return {**super().get_config(), "n": self.n}


# Those with n states for each feature.
STATE_SPACE_LAYERS = (CoffeeLayer, S6Layer, LinearizedS6Layer)
LAYERS = (*STATE_SPACE_LAYERS, MinGRU, LRU, CausalConv1D)

COFFEE_OPTIONS = {
    "output_filter": True,
    "use_input_matrix": True,
    "input_gate": "full",
    "use_gate_bias": True,
}
S6_OPTIONS = {
    "use_step_bias": True,
    "step_rank": 2,
    "use_projection_bias": True,
    "use_skip": True,
}
# Layer, arguments, parameters at D = 3.
CASES = {
    "coffee": (CoffeeLayer, {"n": 4}, 36),
    "coffee-filter": (CoffeeLayer, {"n": 4, "output_filter": True}, 48),
    "coffee-input-matrix": (CoffeeLayer, {"n": 4, "use_input_matrix": True}, 48),
    "coffee-gate-feature": (CoffeeLayer, {"n": 4, "input_gate": "feature"}, 39),
    "coffee-gate-bias": (CoffeeLayer, {"n": 4, "feedback": None, "use_gate_bias": True}, 48),
    "coffee-all": (CoffeeLayer, {"n": 4, **COFFEE_OPTIONS}, 81),
    "coffee-linear": (CoffeeLayer, {"n": 4, "feedback": "linear"}, 36),
    "coffee-none": (CoffeeLayer, {"n": 4, "feedback": None}, 36),
    "s6": (S6Layer, {"n": 4}, 45),
    "s6-all": (S6Layer, {"n": 4, "discretization": "mamba", **S6_OPTIONS}, 62),
    "linearized-s6": (LinearizedS6Layer, {"n": 4}, 45),
    "min-gru": (MinGRU, {"units": 4}, 32),
    "min-gru-plain": (MinGRU, {"units": 4, "activation": None, "use_bias": False}, 24),
    "lru": (LRU, {"units": 4, "n": 5}, 97),
    "causal-conv": (CausalConv1D, {"kernel_size": 4, "activation": "silu"}, 15),
    "causal-conv-plain": (CausalConv1D, {"kernel_size": 2, "use_bias": False}, 6),
    "two-states": (TwoStates, {"n": 4}, 22),
}
# One case a layer, for what takes long.
CHOSEN = ("coffee-all", "s6-all", "linearized-s6", "min-gru", "lru", "causal-conv")
# For what takes longer, and is about Keras more than about an equation: layers that are linear in
# their state share masks, states and solvers, so where each is compiled some files take the one,
# some the other by day.
WITH_S6 = CHOSEN if IS_THOROUGH else ("coffee-all", "s6-all")
WITH_TWO_STATES = (*WITH_S6, "two-states") if IS_THOROUGH else (*WITH_S6, "lru", "two-states")
WITH_LINEARIZED_S6 = CHOSEN if IS_THOROUGH else ("coffee-all", "linearized-s6")
# One shape for most tests, so that TensorFlow compiles a scan once.
SHAPE = (2, 9, 3)

# A layer's only float32 rounding besides the scan's own is one matmul over D = 3.
ROUNDING = 1e-5


def chosen_with(by_day):
    """Pairs of a layer and something else: all of them, or those that are given."""
    others = {str(other): other for _, other in by_day}.values()
    return [(name, other) for name in CHOSEN for other in others] if IS_THOROUGH else by_day


def make(name, **arguments):
    """A layer of `CASES`."""
    layer_class, own, _ = CASES[name]
    return layer_class(**own, **arguments)


def random_inputs(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def random_states(layer, batch, dim=3, seed=1):
    """One array for each state of a layer, in its dtype."""
    generator = np.random.default_rng(seed)
    states = []
    for spec in layer.state_specs(dim):
        state = generator.normal(size=(batch, *spec.shape))
        if (spec.dtype or "").startswith("complex"):
            state = state + 1j * generator.normal(size=state.shape)
        states.append(state.astype(spec.dtype or layer.state_dtype))
    return states


def randomized(layer, dim=3, batch=None):
    """Builds a layer and moves its weights off their special starting values."""
    layer.build((batch, None, dim))
    generator = np.random.default_rng(1)
    for weight in layer.trainable_weights:
        values = generator.normal(size=weight.shape)
        weight.assign(-2 / (1 + np.exp(values)) if weight.name == "transition" else values)
    return layer


def with_weights_of(layer, **changes):
    """The same layer with some arguments changed."""
    config = layer.get_config()
    del config["name"]
    other = type(layer).from_config({**config, **changes})
    other.build(layer.get_build_config()["input_shape"])
    other.set_weights(layer.get_weights())
    return other


def to_numpy(tree):
    """Arrays for tensors, one or several."""
    if isinstance(tree, (list, tuple)):
        return [ops.convert_to_numpy(x) for x in tree]
    return ops.convert_to_numpy(tree)


def expected(layer, inputs, initial_state=None):
    """Outputs and the final states by the layer's equations in float64, from its weights."""
    w = {weight.name: np.float64(ops.convert_to_numpy(weight)) for weight in layer.weights}
    u = np.float64(inputs)
    states = initial_state or [0 * x for x in random_states(layer, len(u), u.shape[-1])]
    return _EQUATIONS[type(layer).__name__](layer, w, u, *states)


def _coffee(layer, w, u, state):
    arrays = {"inputs": u, "initial_state": np.float64(state)}
    if layer.input_gate is not None:
        by = w["gate_projection"]
        arrays["gate_inputs"] = u @ by if layer.input_gate == "full" else u * by
    return oracles.values(oracles.coffee, w | arrays, layer.feedback)


def _s6(layer, w, u, state):
    step = u @ w["step_projection"]
    step = step @ w["step_expansion"] if "step_expansion" in w else step
    arrays = {
        "inputs": u,
        "initial_state": np.float64(state),
        "delta": np.logaddexp(0, step + w.get("step_bias", 0.0)),
        "transition": -np.exp(w["log_transition"]),
        "input_matrix": u @ w["input_projection"] + w.get("input_bias", 0.0),
        "output_matrix": u @ w["output_projection"] + w.get("output_bias", 0.0),
        **({"skip": w["skip"]} if "skip" in w else {}),
    }
    return oracles.values(oracles.selective, arrays, layer.discretization)


def _linearized_s6(layer, w, u, state):
    arrays = {"inputs": u, "initial_state": np.float64(state), "output_matrix": w["readout"]}
    arrays["delta"] = oracles.sigmoid(u @ w["step_projection"])
    return oracles.values(oracles.selective, w | arrays, "euler")


def _two_states(layer, w, u, turning, leaky):
    outputs = []
    for t in range(u.shape[1]):
        turning = 0.9 * np.exp(1j * w["angle"]) * turning + u[:, t] @ w["input_projection"]
        leaky = leaky / (1 + np.exp(-w["decay"])) + u[:, t]
        outputs.append(np.concatenate([turning.real, w["scale"] * leaky], -1))
    return np.stack(outputs, 1), turning, leaky


def _min_gru(layer, w, u, state):
    outputs, bias = [], w.get("bias", 0.0)
    for t in range(u.shape[1]):
        gate, candidate = np.split(u[:, t] @ w["kernel"] + bias, 2, -1)
        if layer.get_config()["activation"] == "positive":
            candidate = np.where(candidate >= 0, candidate + 0.5, oracles.sigmoid(candidate))
        state = oracles.sigmoid(-gate) * state + oracles.sigmoid(gate) * candidate
        outputs.append(state)
    return np.stack(outputs, 1), state


def _lru(layer, w, u, state):
    parts = (w[name] for name in ("input_kernel", "output_kernel"))
    (b, b_imaginary), (c, c_imaginary) = (
        np.split(kernel, 2, axis) for kernel, axis in zip(parts, (1, 0), strict=True)
    )
    # y = Re(C x) has the sign of the imaginary part in its weights.
    b, c = b + 1j * b_imaginary, c - 1j * c_imaginary
    decay = np.exp(-np.exp(w["log_decay"]) + 1j * np.exp(w["log_phase"]))
    outputs = []
    for t in range(u.shape[1]):
        state = decay * state + np.exp(w["log_scale"]) * (u[:, t] @ b)
        outputs.append((state @ c).real + u[:, t] @ w["skip"])
    return np.stack(outputs, 1), state


def _causal_conv(layer, w, u, window):
    outputs = []
    for t in range(u.shape[1]):
        window = np.concatenate([window, u[:, t : t + 1]], 1)
        y = (w["kernel"] * window).sum(1) + w.get("bias", 0.0)
        is_silu = layer.get_config()["activation"] == "silu"
        outputs.append(y * oracles.sigmoid(y) if is_silu else y)
        window = window[:, 1:]
    return np.stack(outputs, 1), window


_EQUATIONS = {
    "CoffeeLayer": _coffee,
    "S6Layer": _s6,
    "LinearizedS6Layer": _linearized_s6,
    "MinGRU": _min_gru,
    "LRU": _lru,
    "CausalConv1D": _causal_conv,
    "TwoStates": _two_states,
}
