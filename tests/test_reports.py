"""What public reports tell of other recurrent layers; `tests/REPORTS.md` lists them all."""

import ast
import inspect
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from recurrent import CHOSEN, LAYERS, SHAPE, make, random_inputs, randomized, to_numpy
from scans import precision

from keras_coffee import CoffeeLayer, S6Layer

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "tests/REPORTS.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| report |", "| what |"))
]
BATCH, LENGTH, DIM = SHAPE
INPUTS = random_inputs(*SHAPE)


# The table.


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_row_names_tests_that_exist_or_says_why_there_is_none(row):
    assert len(row) == 3
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", row[2])
    assert named or re.match(r"none: \w", row[2]), row[2]
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text())
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert test in functions, f"{file} has no {test}"


def test_the_table_is_read():
    assert len(ROWS) > 50


# Masks.


def test_a_mask_does_not_break_ctc_once_it_is_dropped():
    # The loss of CTC is one number a sequence, and Keras cannot weight it by a mask of steps.
    tokens = keras.Input((LENGTH,), dtype="int32")
    embedded = keras.layers.Embedding(6, DIM, mask_zero=True)(tokens)
    logits = keras.layers.Dense(4)(make("coffee")(embedded))
    model = keras.Model(tokens, 1.0 * logits)
    model.compile("sgd", keras.losses.CTC())
    sequences = np.array([[1, 2, 3, 4, 5, 0, 0, 0, 0], [5, 4, 3, 2, 1, 1, 2, 3, 0]])
    assert np.isfinite(model.evaluate(sequences, np.array([[1, 2], [3, 1]]), verbose=0))


# States.


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_training_a_stateful_layer_in_mixed_precision_does_not_fail(policy):
    layer = make("coffee-all", stateful=True, dtype=policy)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, LENGTH, DIM)), layer])
    model.compile("sgd", "mse")
    model.fit(INPUTS, np.zeros(SHAPE), batch_size=BATCH, verbose=0)
    (state,) = layer.states
    assert keras.backend.standardize_dtype(state.dtype) == "float32"
    assert to_numpy(state).any()


@pytest.mark.parametrize("name", CHOSEN)
def test_a_symbolic_state_has_the_dtype_that_the_real_one_will_have(name):
    # Keras takes every output of a layer for one in the compute dtype.
    layer = make(name, return_state=True, dtype="mixed_bfloat16")
    symbolic = layer(keras.Input((LENGTH, DIM)))
    for promised, actual in zip(symbolic, layer(INPUTS), strict=True):
        assert promised.dtype == keras.backend.standardize_dtype(actual.dtype)


# Saving and training.


@pytest.mark.parametrize("layer_class", LAYERS)
def test_training_has_no_default_that_leaks_into_other_layers(layer_class):
    assert inspect.signature(layer_class.call).parameters["training"].default is None


def test_a_loaded_model_has_all_its_variables_before_its_first_call(tmp_path):
    model = keras.Sequential([keras.Input((None, DIM)), *map(make, CHOSEN)])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for loaded, saved in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(loaded), to_numpy(saved))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_batch_without_sequences_is_no_error(name):
    layer = make(name, return_state=True)
    outputs, state = layer(np.zeros((0, LENGTH, DIM), "float32"))
    assert tuple(outputs.shape) == (0, LENGTH, layer.output_size(DIM))
    assert tuple(state.shape) == (0, *layer.state_size[0])


# Precision.


def test_a_state_beyond_the_range_of_float16_does_not_overflow():
    fixed = {"gate_initializer": "zeros", "readout_initializer": "ones", "start": "paper"}
    layer = CoffeeLayer(1, dtype="float16", **fixed)
    layer.build((None, None, 1))
    layer.readout.assign(np.full((1, 1), 2.0**-8))
    # x(k) = x(k-1) + u/2 passes 65504 at the third step.
    inputs = np.full((1, LENGTH, 1), 2.0**15 + 2.0**14)
    outputs = to_numpy(ops.cast(layer(inputs), "float32"))[0, :, 0]
    np.testing.assert_array_equal(outputs, 96.0 * np.arange(1, LENGTH + 1))


def test_a_product_of_matrices_in_float64_is_not_computed_in_float32():
    with precision("float64"):
        layer = randomized(make("linearized-s6", dtype="float64", return_state=True))
        inputs = np.random.default_rng(0).normal(size=(1, 1, DIM))
        _, state = to_numpy(layer(inputs))
    w = {weight.name: to_numpy(weight) for weight in layer.weights}
    delta = 1 / (1 + np.exp(-inputs[0, 0] @ w["step_projection"]))
    exact = (delta * inputs[0, 0])[:, None] * w["input_matrix"]
    np.testing.assert_allclose(state[0], exact, rtol=1e-12)


def test_the_transition_of_s6_is_not_rounded_a_second_time_in_bfloat16():
    layer = S6Layer(4, dtype="bfloat16", return_state=True)
    layer.build((None, None, DIM))
    layer.log_transition.assign(np.full((DIM, 4), 0.4375))
    state = np.ones((1, DIM, 4), "float32")
    _, final = layer(np.zeros((1, 1, DIM), "float32"), initial_state=state)
    # Δ = softplus(0) = log 2, and λ = -e^μ.
    np.testing.assert_allclose(to_numpy(final), 2.0 ** -np.exp(0.4375), rtol=1e-6)
