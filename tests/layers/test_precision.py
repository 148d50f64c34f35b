"""Every dtype policy: what is rounded, what is not, and that models learn all the same."""

import keras
import layer_oracle
import numpy as np
import pytest
from keras import ops
from recurrent import CHOSEN, SHAPE, make, random_inputs, random_states, randomized, to_numpy
from rounding import assert_within
from scans import differentiate, precision, widened

from keras_coffee import CoffeeLayer
from keras_coffee.datasets import InductionHead
from keras_coffee.layers import SoftminLogits, SymbolEmbedding

BATCH, LENGTH, DIM = SHAPE
INPUTS = random_inputs(*SHAPE)
# Policy: dtypes of inputs and outputs, of weights, and of states.
POLICIES = {
    "mixed_float16": ("float16", "float32", "float32"),
    "mixed_bfloat16": ("bfloat16", "float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16", "float32"),
    "float64": ("float64", "float64", "float64"),
}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
PARTS = ("outputs", "final state")
LOW = ("mixed_float16", "mixed_bfloat16", "bfloat16")


@pytest.fixture(params=POLICIES)
def policy(request):
    with precision(request.param):
        yield request.param


@pytest.fixture(params=LOW)
def low_policy(request):
    return request.param


@pytest.fixture(params=CHOSEN)
def name(request):
    return request.param


def dtype_of(tensor):
    return keras.backend.standardize_dtype(tensor.dtype)


def test_dtypes_of_outputs_states_and_weights(name, policy):
    compute, variable, state = POLICIES[policy]
    layer = make(name, dtype=policy, return_state=True, stateful=True)
    symbolic = layer(keras.Input(batch_shape=SHAPE))
    computed = layer(INPUTS)
    if name == "lru":
        state = layer.complex_state_dtype
    assert [dtype_of(x) for x in symbolic] == [dtype_of(x) for x in computed] == [compute, state]
    assert {dtype_of(weight) for weight in layer.trainable_weights} == {variable}
    (carried,), (initial,) = layer.states, layer.get_initial_state(BATCH)
    assert dtype_of(carried) == dtype_of(initial) == state


def test_only_inputs_outputs_and_products_of_matrices_are_rounded(name, policy):
    # Against float64, with the bound of each element: in float64 too, that of float64.
    compute, variable, state = POLICIES[policy]
    layer = randomized(make(name, dtype=policy, return_state=True))
    (initial,) = random_states(layer, BATCH)
    arrays = {"inputs": INPUTS, "initial_state": initial}
    for weight in layer.weights:
        arrays[weight.name] = to_numpy(ops.cast(weight, state))
    wide = {key: widened(array) for key, array in arrays.items()}
    cotangents = (
        np.zeros((BATCH, LENGTH, layer.output_size(DIM))),
        np.zeros_like(wide["initial_state"]),
    )
    exact, _ = layer_oracle.run(layer, wide, cotangents, np.ones((BATCH, LENGTH), bool))
    outputs, final_state = layer(INPUTS, initial_state=initial)
    # Each step turns the states of LRU by e^θ, which is off by some units of itself.
    units = 256 if name == "lru" else 32
    for part, actual, bound in zip(PARTS, (outputs, final_state), exact, strict=True):
        if dtype_of(actual) == compute:
            actual = ops.cast(actual, state)
        undecided = assert_within(to_numpy(actual), bound, part, units * UNIT[compute])
        assert undecided < 0.5


LOOKS = {
    "trajectory": lambda layer, *given: layer.trajectory(*given)[0],
    "solve": lambda layer, *given: layer.solve(*given).states,
    "newton": lambda layer, *given: layer.solve(*given, solver="newton").states,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_inside_sees_what_the_layer_sees(look, low_policy):
    # The inputs, rounded to the compute dtype.
    layer = randomized(make("coffee-input-matrix", dtype=low_policy))
    arrays = {"inputs": INPUTS, "initial_state": random_inputs(BATCH, DIM, layer.n, seed=1)}
    arrays |= {weight.name: to_numpy(ops.cast(weight, "float32")) for weight in layer.weights}
    mask = np.arange(LENGTH) < [[LENGTH], [LENGTH - 2]]

    def final_state(inputs, initial_state, **weights):
        values = [(weight, weights[weight.name]) for weight in layer.weights]
        with keras.StatelessScope(values):
            return LOOKS[look](layer, inputs, initial_state, mask)[:, -1]

    by_final = random_inputs(BATCH, DIM, layer.n, seed=2)
    (actual,), gradients = differentiate(final_state, arrays, [by_final])
    wide = {name: widened(array) for name, array in arrays.items()}
    (_, exact), by = layer_oracle.run(layer, wide, (np.zeros(SHAPE), widened(by_final)), mask)
    # A solver stops within its tolerance, eight units, at every step.
    tolerance = 8 * LENGTH if look == "newton" else 0
    pairs = [("final state", actual, exact)]
    pairs += [(name, gradients[name], by[name]) for name in arrays if name != "readout"]
    for name, a, e in pairs:
        e.error = e.error + tolerance * abs(e.value).max()
        assert assert_within(a, e, name, 0.1) < 0.5


def rounded_to(state, dtype):
    """What a real or complex state is after a cast to a dtype of real numbers and back."""
    parts = (ops.real(state), ops.imag(state)) if "complex" in dtype_of(state) else (state,)
    real, *imaginary = (to_numpy(ops.cast(ops.cast(x, dtype), "float32")) for x in parts)
    return real + 1j * imaginary[0] if imaginary else real


def test_handed_over_states_are_not_rounded(name, low_policy):
    # Keras' own layers hand their states over in the compute dtype, and drift.
    layer = randomized(make(name, dtype=low_policy, return_state=True))
    _, final_state = to_numpy(layer(INPUTS))
    state = drifting = None
    for first in (0, 3, 6):
        chunk = INPUTS[:, first : first + 3]
        _, state = layer(chunk, initial_state=state)
        rounded = None if drifting is None else rounded_to(drifting, layer.compute_dtype)
        _, drifting = layer(chunk, initial_state=rounded)
    scale = abs(final_state).max()
    np.testing.assert_allclose(to_numpy(state) / scale, final_state / scale, rtol=0, atol=1e-6)
    # Only the state of a convolution, which is inputs, is rounded from the beginning.
    drift = abs(to_numpy(drifting) - final_state).max() / scale
    assert drift > 1e-5 if name != "causal-conv" else drift == 0


def test_carried_states_are_not_rounded(name, low_policy):
    layer = randomized(make(name, dtype=low_policy, return_state=True))
    _, final_state = to_numpy(layer(INPUTS))
    config = {**layer.get_config(), "stateful": True, "return_state": False}
    carrying = type(layer).from_config(config)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, None, DIM)), carrying])
    for weight, value in zip(carrying.trainable_weights, layer.weights, strict=True):
        weight.assign(value)
    for first in (0, 3, 6):
        model.predict(INPUTS[:, first : first + 3], verbose=0)
    scale = abs(final_state).max()
    actual = to_numpy(carrying.states[0])
    np.testing.assert_allclose(actual / scale, final_state / scale, rtol=0, atol=1e-6)


# The induction-head model.


def trained(policy, epochs, optimizer):
    """The README's model after training under a policy; its losses, and accuracy on new data."""
    keras.config.set_dtype_policy(policy)
    try:
        keras.utils.set_random_seed(0)
        task = InductionHead(length=8, batch_size=128, steps_per_epoch=200)
        symbols = SymbolEmbedding(vocabulary_size=8, dim=16, unit_symbol=0)
        model = keras.Sequential([symbols, CoffeeLayer(n=8), SoftminLogits(symbols, last=1)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
        history = model.fit(task, epochs=epochs, shuffle=False, verbose=0).history
        test = InductionHead(length=8, batch_size=1000, steps_per_epoch=10, split="test")
        accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
    finally:
        keras.config.set_dtype_policy("float32")
    return model, history["loss"], accuracy


def test_accuracy_in_bfloat16_is_within_one_point_of_float32():
    # Weights too are in bfloat16 here; by Keras' default, beta_2=0.999, which is 1 in bfloat16, its
    # Adam takes no step at all then.
    optimizers = (keras.optimizers.Adam(0.03, beta_2=0.99) for _ in range(2))
    full = trained("float32", 5, next(optimizers))[2]
    low = trained("bfloat16", 5, next(optimizers))[2]
    assert full > 0.98
    assert low > full - 0.01


def test_400_steps_of_mixed_float16_with_loss_scaling_learn_without_nan():
    model, losses, accuracy = trained("mixed_float16", 2, keras.optimizers.Adam(0.03))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    # No step was left out because of an overflow: each such one halves the scale.
    assert to_numpy(model.optimizer.dynamic_scale) == model.optimizer.initial_scale
    assert np.isfinite(losses).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    # It would be 1/7 by guessing.
    assert accuracy > 0.5
