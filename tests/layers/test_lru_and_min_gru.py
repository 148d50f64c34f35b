"""LRU and MinGRU on hard inputs, in both precisions, and what is theirs alone."""

import itertools
import logging

import keras
import layer_oracle
import numpy as np
import pytest
from keras import ops
from nightly import IS_THOROUGH
from recurrent import random_inputs, random_states, to_numpy
from rounding import assert_agrees
from scans import differentiate, precision, widened

from keras_coffee.layers import LRU, MinGRU

BATCH, DIM = 2, 2
# |λ| from 0, by way of what decays at once, to what never does; and arg λ from almost real and
# positive to negative and around.
RADII = [0.0, 1e-6, 0.5, 1 - 1e-3, 1 - 1e-6, 1.0]
PHASES = [1e-6, 0.3, np.pi]
# Arguments of gates, constant over time; and factors of those that jump with the inputs.
GATES = [-100, -30, -10, 0, 30, 100]
JUMPS = [0.1, 10, 100]
SOLVERS, LENGTHS = ("sequential", "associative"), (1, 50, 4096)
DTYPES = "float32", "float64"
# JAX takes up to half a minute to compile the associative scan of a length.
BY_DAY = [
    ("sequential", 1, "float32"),
    ("sequential", 50, "float64"),
    ("sequential", 4096, "float32"),
    *(("associative", 50, dtype) for dtype in DTYPES),
]


def hard_lru():
    radii, phases = (x.ravel() for x in np.meshgrid(RADII, PHASES))
    # e^ν of 1,100 and 4e-18 make |λ| 0 and 1 in either precision.
    with np.errstate(divide="ignore"):
        decay = np.clip(np.log(-np.log(radii)), -40, 7)
    arrays = {"log_decay": decay, "log_phase": np.log(phases)}
    # As the layer starts, except for states that never decay, which would get no input at all.
    arrays["log_scale"] = 0.5 * np.log(np.maximum(-np.expm1(-2 * np.exp(decay)), 1e-4))
    return LRU, {"units": 3, "n": decay.size}, arrays


def hard_min_gru():
    units = len(GATES) + len(JUMPS)
    kernel = np.zeros((DIM, 2 * units))
    kernel[:, len(GATES) : units] = JUMPS
    kernel[:, units:] = random_inputs(DIM, units)
    bias = np.concatenate([GATES, 0 * np.array(JUMPS), random_inputs(units, seed=1)])
    return MinGRU, {"units": units}, {"kernel": kernel, "bias": bias}


@pytest.mark.parametrize(
    ("solver", "length", "dtype"),
    list(itertools.product(SOLVERS, LENGTHS, DTYPES)) if IS_THOROUGH else BY_DAY,
)
@pytest.mark.parametrize("hard", [hard_lru, hard_min_gru], ids=["lru", "min-gru"])
def test_values_and_gradients_on_hard_inputs(hard, dtype, solver, length):
    layer_class, arguments, chosen = hard()
    with precision(dtype):
        layer = layer_class(**arguments, dtype=dtype, solver=solver, return_state=True)
        layer.build((None, None, DIM))
        # An offset, which states that never decay add up, and so do gradients by weights.
        arrays = {"inputs": 1 + random_inputs(BATCH, length, DIM)}
        arrays["initial_state"] = random_states(layer, BATCH, DIM)[0]
        for k, weight in enumerate(layer.weights):
            values = chosen.get(weight.name, 0.3 * random_inputs(*weight.shape, seed=k))
            # What float32 holds exactly, so that the oracle sees the same data.
            arrays[weight.name] = np.float32(values).astype(dtype)
        arrays["inputs"] = arrays["inputs"].astype(dtype)
        by_outputs = 1 + random_inputs(BATCH, length, layer.output_size(DIM), seed=2)
        cotangents = [by_outputs.astype(dtype), random_states(layer, BATCH, DIM, seed=3)[0]]
        results, gradients = differentiate(run(layer), arrays, cotangents)
    wide = {name: widened(array) for name, array in arrays.items()}
    mask = np.ones((BATCH, length), bool)
    exact, by = layer_oracle.run(layer, wide, [widened(c) for c in cotangents], mask)
    for name, a, e in zip(["outputs", "final state"], results, exact, strict=True):
        assert_agrees(a, e, name)
    for name, gradient in gradients.items():
        assert_agrees(gradient, by[name], f"gradient by {name}")


def run(layer):
    def scan(inputs, initial_state, **weights):
        given = [weights[weight.name] for weight in layer.weights]
        results, _ = layer.stateless_call(given, [], inputs, initial_state=initial_state)
        return tuple(results)

    return scan


# How they start, and learn.


def test_lru_trains_on_sequences_of_784_pixels_without_nan():
    recurrence = LRU(16, n=32, r_min=0.9, r_max=0.999, return_sequences=False)
    model = keras.Sequential([keras.Input((784, 1)), recurrence, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss)
    pixels = np.random.default_rng(0).uniform(size=(8, 784, 1)).astype("float32")
    losses = [model.train_on_batch(pixels, np.arange(8)) for _ in range(3)]
    assert losses[2] < losses[0]
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize("radii", [(0.0, 1.0), (0.9, 0.999), (0.99, 0.9999)])
def test_noise_of_variance_1_starts_with_states_and_outputs_of_variance_1(radii):
    # Lemma 3.2 and section 3.4 of the paper; the skip, which is not in them, left out.
    r_min, r_max = radii
    ring = {"r_min": r_min, "r_max": r_max, "skip_initializer": "zeros"}
    layer = LRU(64, n=128, **ring, return_state=True)
    outputs, states = to_numpy(layer(random_inputs(16, 300, 32)))
    # After T steps a state that starts from zero lacks |λ|^2T of its variance.
    radius = np.exp(-np.exp(to_numpy(layer.log_decay)))
    lacking = (radius**600).mean()
    assert radius.min() > 0.99 * r_min
    assert abs((abs(states) ** 2).mean() - (1 - lacking)) < 0.1
    assert abs(outputs[:, -1].var() - (1 - lacking)) < 0.2


def test_the_scale_of_lru_starts_right_where_decays_are_next_to_1():
    # 1 - |λ|² of float32 numbers has one digit here.
    rates = np.array([1e-6, 1e-7, 1e-9])
    layer = LRU(2, n=3, log_decay_initializer=lambda shape, dtype: ops.log(rates.astype(dtype)))
    layer.build((None, None, 2))
    np.testing.assert_allclose(to_numpy(layer.log_scale), 0.5 * np.log(2 * rates), rtol=1e-5)


@pytest.mark.parametrize("start", ["fit", "predict", "call", "build"])
def test_the_scale_of_lru_starts_right_however_the_layer_is_built(start):
    # Without keras.Input Keras makes the weights first, and draws their values later.
    layer = LRU(4, n=6)
    model, inputs = keras.Sequential([layer]), random_inputs(BATCH, 3, DIM)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    {
        "fit": lambda: model.fit(inputs, np.ones((BATCH, 3, 4)), verbose=0),
        "predict": lambda: model.predict(inputs, verbose=0),
        "call": lambda: model(inputs),
        "build": lambda: model.build(inputs.shape),
    }[start]()
    squares = np.exp(-2 * np.exp(np.float64(to_numpy(layer.log_decay))))
    expected = 0.5 * np.log(1 - squares)
    np.testing.assert_allclose(to_numpy(layer.log_scale), expected, rtol=1e-5, atol=1e-6)


def test_a_scale_of_ones_own_replaces_that_of_the_ring():
    layer = LRU(2, n=3, log_scale_initializer="zeros")
    layer.build((None, None, 2))
    assert not to_numpy(layer.log_scale).any()


def test_two_layers_and_two_weights_start_apart():
    layers = [LRU(4, n=4), LRU(4, n=4)]
    for layer in layers:
        layer.build((None, None, 8))
    first, second = (layer.get_weights() for layer in layers)
    for a, b in zip(first, second, strict=True):
        assert not np.array_equal(a, b)


# Arguments.


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("positive", lambda x: np.where(x >= 0, x + 0.5, 1 / (1 + np.exp(-x)))),
        (None, lambda x: x),
        ("tanh", np.tanh),
        (keras.activations.relu, lambda x: np.maximum(x, 0)),
    ],
)
def test_activation_of_min_gru(activation, function):
    layer = MinGRU(3, activation=activation, use_bias=False)
    layer = MinGRU.from_config(layer.get_config())
    x = np.linspace(-3, 3, 7, dtype="float32")[:, None, None]
    layer.build(x.shape)
    # A gate of 1/2: the first state is half the candidate.
    layer.kernel.assign(np.float32([[0, 0, 0, 1, -1, 2]]))
    exact = function(x * np.float32([1, -1, 2])) / 2
    np.testing.assert_allclose(to_numpy(layer(x)), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "8", None])
def test_sizes_must_be_positive_integers(size):
    for name, make in {
        "units": lambda: MinGRU(units=size),
        "`units`": lambda: LRU(units=size, n=4),
        "`n`": lambda: LRU(units=4, n=size),
    }.items():
        with pytest.raises(ValueError, match=f"{name}.* must be a positive integer, received"):
            make()


def test_a_ring_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="received r_min=0.9 and r_max=0.5"):
        LRU(4, n=4, r_min=0.9, r_max=0.5)
    with pytest.raises(ValueError, match="received r_min=0.0 and r_max=1.5"):
        LRU(4, n=4, r_max=1.5)
    with pytest.raises(ValueError, match="`max_phase` must be a positive number, received 0"):
        LRU(4, n=4, max_phase=0)


def test_an_unknown_activation_is_an_error():
    with pytest.raises(ValueError, match="Could not interpret activation function.*positiv"):
        MinGRU(4, activation="positiv")


def test_a_state_that_is_real_is_taken_for_a_complex_one():
    layer = LRU(4, n=3, return_state=True)
    inputs, state = random_inputs(BATCH, 5, DIM), random_inputs(BATCH, 3, seed=1)
    given = (layer(inputs, initial_state=x) for x in (state, state + 0j))
    for real, as_complex in zip(*map(to_numpy, given), strict=True):
        np.testing.assert_array_equal(real, as_complex)


def test_a_complex_state_is_not_regularized():
    layer = LRU(4, 3, return_state=True, activity_regularizer="l2")
    with pytest.raises(
        ValueError, match="complex state, .* Leave out return_state or activity_reg"
    ):
        layer(np.ones((2, 5, 3), "float32"))
    LRU(4, 3, activity_regularizer="l2")(np.ones((2, 5, 3), "float32"))


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="only TensorFlow warned")
def test_training_warns_of_no_complex_numbers(caplog, monkeypatch):
    # That a cast drops the imaginary part.
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)
    model = keras.Sequential([keras.Input((5, 3)), LRU(4, 3)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 5, 3)), np.ones((2, 5, 4)), verbose=0)
    assert "imaginary" not in caplog.text
