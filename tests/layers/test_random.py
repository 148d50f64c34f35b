"""Any layer with any options, flags, masks, states and dtypes, against `layer_oracle`.

Fifty examples, and half of that where each is compiled; `--hypothesis-profile=nightly` draws 500,
of every shape. A failure prints what reproduces it.
"""

import dataclasses
from typing import Any

import hypothesis
import layer_oracle
import numpy as np
from hypothesis import strategies as st
from keras import ops
from nightly import IS_NIGHTLY
from recurrent import LAYERS, TwoStates, random_states
from rounding import assert_within
from scans import differentiate, precision, transitions, widened

from keras_coffee import CoffeeLayer
from keras_coffee.layers import LRU, CausalConv1D, MinGRU

# A bound wider than this part of the largest element, a few units of rounding, tells nothing.
MEANINGFUL = {"float64": 1e-2, "float32": 1e-2, "float16": 0.05, "bfloat16": 0.2}
POLICIES = ["float32", "float64", "mixed_bfloat16", "mixed_float16", "bfloat16"]
COFFEE = st.fixed_dictionaries(
    {
        "feedback": st.sampled_from(["sigmoid", "linear", None]),
        "output_filter": st.booleans(),
        "use_input_matrix": st.booleans(),
        "input_gate": st.sampled_from([None, "feature", "full"]),
        "use_gate_bias": st.booleans(),
    }
)
MIN_GRU = st.fixed_dictionaries(
    {"activation": st.sampled_from(["positive", None]), "use_bias": st.booleans()}
)
CAUSAL_CONV = st.fixed_dictionaries(
    {"activation": st.sampled_from(["silu", None]), "use_bias": st.booleans()}
)
OPTIONS = {
    CoffeeLayer: COFFEE,
    MinGRU: MIN_GRU,
    LRU: st.just({"n": 3}),
    CausalConv1D: CAUSAL_CONV,
}
# (B, T, D, n): few, since JAX and TensorFlow compile for each, or any.
A_SHAPE = st.sampled_from([(3, 7, 3, 2), (2, 5, 2, 3)])
AN_EDGE = st.sampled_from([(1, 1, 2, 1), (0, 4, 2, 2)])
ANY_SHAPE = st.tuples(st.integers(0, 4), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
FLAGS = (
    "return_sequences",
    "return_state",
    "go_backwards",
    "stateful",
    "zero_output_for_mask",
    "recompute",
)


@dataclasses.dataclass
class Example:
    layer_class: type
    options: dict[str, Any]
    shape: tuple[int, int, int, int]
    policy: str
    flags: dict[str, bool]
    mask: str | None
    padding: float
    state_is_given: bool
    input_scale: float
    seed: int


@st.composite
def examples(draw):
    layer_class = draw(st.sampled_from((*LAYERS, TwoStates)))
    return Example(
        layer_class,
        options=draw(OPTIONS.get(layer_class, st.just({}))),
        shape=draw(ANY_SHAPE if IS_NIGHTLY else A_SHAPE | AN_EDGE),
        policy=draw(st.sampled_from(POLICIES)),
        flags={flag: draw(st.booleans()) for flag in FLAGS},
        mask=draw(st.sampled_from([None, "random", "left", "right", "rows", "nothing"])),
        padding=draw(st.sampled_from([0.0, 1e30, np.inf, np.nan])),
        state_is_given=draw(st.booleans()),
        input_scale=draw(st.sampled_from([0.1, 1.0, 3.0])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@hypothesis.given(examples())
def test_values_and_gradients_of_any_layer(example):
    with precision(example.policy):
        check(example)


def check(example):
    layer, mask = layer_of(example), mask_of(example)
    arrays, carried = arrays_of(example, layer, mask)
    cotangents = cotangents_of(example, layer)

    def scan(inputs, **given):
        states = [given[name] for name in layer_oracle.state_names(layer) if name in given]
        results, updated = layer.stateless_call(
            [given[weight.name] for weight in layer.trainable_weights],
            carried if layer.stateful else [],
            inputs,
            initial_state=states or None,
            mask=None if example.mask is None else mask,
        )
        outputs, *final = results if layer.return_state else (results,)
        return ops.cast(outputs, layer.state_dtype), *final, *updated

    actual = differentiate(scan, arrays, cotangents)
    start = [state if layer.stateful else 0 * state for state in carried]
    start = dict(zip(layer_oracle.state_names(layer), start, strict=True))
    expected = expect(layer, start | arrays, cotangents, mask)
    names = [f"result {k}" for k in range(len(cotangents))]
    pairs = [*zip(names, actual[0], expected[0], strict=True)]
    pairs += [(f"gradient by {name}", actual[1][name], expected[1][name]) for name in arrays]
    meaningful = MEANINGFUL[layer.compute_dtype]
    undecided = [a.size * assert_within(a, e, name, meaningful) for name, a, e in pairs]
    # Rounding may decide what a few unlucky numbers add up to; if it often did, this would fail.
    hypothesis.assume(sum(undecided) <= 0.5 * sum(a.size for _, a, _ in pairs))


def expect(layer, arrays, cotangents, mask):
    """What the oracle says of the results that the flags ask for."""
    batch, length, dim = arrays["inputs"].shape
    by_outputs = np.zeros((batch, length, layer.output_size(dim)))
    by_outputs[:, slice(None) if layer.return_sequences else -1] = cotangents[0]
    wide = {name: widened(array) for name, array in arrays.items()}
    by_final = [np.zeros_like(wide[name]) for name in layer_oracle.state_names(layer)]
    if layer.return_state:
        by_final = [widened(cotangent) for cotangent in cotangents[1 : 1 + len(by_final)]]
    (outputs, *final), gradients = layer_oracle.run(layer, wide, (by_outputs, *by_final), mask)
    outputs = outputs if layer.return_sequences else outputs[:, -1]
    # What is carried on has no gradient, and is the final state whether that is returned or not.
    return [outputs, *final * (layer.return_state + layer.stateful)], gradients


def layer_of(example):
    batch, _, dim, n = example.shape
    flags = dict(example.flags)
    if example.layer_class is CausalConv1D:
        del flags["recompute"]  # which it refuses
    layer = example.layer_class(n, dtype=example.policy, **example.options, **flags)
    layer.build((batch if layer.stateful else None, None, dim))
    return layer


def mask_of(example):
    batch, length = example.shape[:2]
    generator = np.random.default_rng([example.seed, 1])
    counted = generator.integers(0, length + 1, size=(batch, 1))
    return {
        None: np.ones((batch, length), bool),
        "random": generator.random((batch, length)) < 0.6,
        "left": np.arange(length) >= length - counted,
        "right": np.arange(length) < counted,
        "rows": np.repeat(generator.random((batch, 1)) < 0.5, length, axis=1),
        "nothing": np.zeros((batch, length), bool),
    }[example.mask]


def arrays_of(example, layer, mask):
    """Inputs, weights and the initial states if given, by name; and the carried states."""
    batch, length, dim, n = example.shape
    generator = np.random.default_rng(example.seed)
    inputs = example.input_scale * generator.normal(size=(batch, length, dim))
    arrays = {"inputs": np.where(mask[..., None], inputs, example.padding)}
    for weight in layer.trainable_weights:
        values = generator.normal(size=weight.shape)
        arrays[weight.name] = layer_oracle.rounded_to(values, layer.variable_dtype)
    if "transition" in arrays:
        transition = transitions(generator, dim, n)
        arrays["transition"] = layer_oracle.rounded_to(transition, layer.variable_dtype)
    given, carried = (random_states(layer, batch, dim, [example.seed, k]) for k in (3, 4))
    if example.options.get("feedback") == "linear":
        # Without a sigmoid this is a logistic map, which diverges from wrong signs and large gates.
        arrays["gate"] = 0.0625 * abs(arrays["gate"])
        given, carried = ([abs(state) for state in states] for states in (given, carried))
    arrays = {name: array.astype(layer.state_dtype) for name, array in arrays.items()}
    if example.state_is_given:
        arrays |= dict(zip(layer_oracle.state_names(layer), given, strict=True))
    return arrays, carried


def cotangents_of(example, layer):
    """One for each result: the outputs, the final states if returned, and the carried states."""
    batch, length, dim, _ = example.shape
    shape = (batch, length) if layer.return_sequences else (batch,)
    generator = np.random.default_rng([example.seed, 2])
    by_outputs = generator.normal(size=(*shape, layer.output_size(dim)))
    # So that it stays what it is when outputs of low precision are cast up.
    by_outputs = layer_oracle.rounded_to(by_outputs, layer.compute_dtype)
    by_outputs = by_outputs.astype(layer.state_dtype)
    seeds = [[example.seed, 5], [example.seed, 6]][: layer.return_state + layer.stateful]
    return [by_outputs, *(x for seed in seeds for x in random_states(layer, batch, dim, seed))]
