"""The recurrent layers under test: cases, data, and their equations in float64."""

import numpy as np
import oracles
from keras import ops
from nightly import IS_THOROUGH

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer

LAYERS = (CoffeeLayer, S6Layer, LinearizedS6Layer)

# Layer, arguments, parameters at D = 3 and n = 4.
CASES = {
    "coffee": (CoffeeLayer, {}, 36),
    "coffee-filter": (CoffeeLayer, {"output_filter": True}, 48),
    "coffee-input-matrix": (CoffeeLayer, {"use_input_matrix": True}, 48),
    "coffee-all": (CoffeeLayer, {"output_filter": True, "use_input_matrix": True}, 60),
    "coffee-linear": (CoffeeLayer, {"feedback": "linear"}, 36),
    "coffee-none": (CoffeeLayer, {"feedback": None}, 36),
    "s6": (S6Layer, {}, 45),
    "linearized-s6": (LinearizedS6Layer, {}, 45),
}
# One case a layer, for what takes long.
CHOSEN = ("coffee-all", "s6", "linearized-s6")
# For what takes longer, and is about Keras more than about an equation: the selective layers share
# scan, masks and states, so where each is compiled some files take the one, some the other by day.
WITH_S6 = CHOSEN if IS_THOROUGH else ("coffee-all", "s6")
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
    """A layer of `CASES` with n = 4."""
    layer_class, own, _ = CASES[name]
    return layer_class(4, **own, **arguments)


def random_inputs(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


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
    """Outputs and the final state by the layer's equations in float64, from its weights."""
    w = {weight.name: np.float64(ops.convert_to_numpy(weight)) for weight in layer.weights}
    u = np.float64(inputs)
    state = np.zeros((len(u), u.shape[-1], layer.n)) if initial_state is None else initial_state
    arrays = {"inputs": u, "initial_state": np.float64(state)}
    if isinstance(layer, CoffeeLayer):
        return oracles.values(oracles.coffee, w | arrays, layer.feedback)
    arguments = u @ w["step_projection"]
    if isinstance(layer, S6Layer):
        arrays |= {
            "delta": np.logaddexp(0, arguments),
            "transition": -np.exp(w["log_transition"]),
            "input_matrix": u @ w["input_projection"],
            "output_matrix": u @ w["output_projection"],
        }
        return oracles.values(oracles.selective, arrays, "zoh")
    arrays |= {"delta": 1 / (1 + np.exp(-arguments)), "output_matrix": w["readout"]}
    return oracles.values(oracles.selective, w | arrays, "euler")
