"""States that are given, returned and carried."""

import re

import keras
import numpy as np
import pytest
from keras import ops
from recurrent import (
    CHOSEN,
    ROUNDING,
    WITH_TWO_STATES,
    expected,
    make,
    random_inputs,
    random_states,
    randomized,
    to_numpy,
    with_weights_of,
)
from scans import differentiate

from keras_coffee.layers import CausalConv1D

BATCH, LENGTH, DIM = 2, 9, 3
INPUTS = random_inputs(BATCH, LENGTH, DIM)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=WITH_TWO_STATES)
def layer(request):
    return randomized(make(request.param, return_state=True))


@pytest.fixture
def states(layer):
    return random_states(layer, BATCH)


def assert_same(actual, exact, **close):
    for a, e in zip(to_numpy(list(actual)), to_numpy(list(exact)), strict=True):
        np.testing.assert_allclose(a, e, **(close or {"rtol": 0, "atol": 0}))


def stateful(layer, **changes):
    """The same layer, carrying its state, in a model."""
    changes = {"stateful": True, "return_state": False, **changes}
    config = {**layer.get_config(), **changes}
    model = keras.Sequential(
        [keras.Input(batch_shape=(BATCH, None, DIM)), type(layer).from_config(config)]
    )
    zeros = [np.zeros_like(state) for state in random_states(layer, BATCH)]
    model.layers[0].set_weights([*layer.get_weights(), *zeros])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


# Given and returned.


def test_states_given_and_returned_in_float64(layer, states):
    actual = to_numpy(layer(INPUTS, initial_state=states))
    for a, e in zip(actual, expected(layer, INPUTS, states), strict=True):
        np.testing.assert_allclose(a / abs(e).max(), e / abs(e).max(), atol=ROUNDING)


@pytest.mark.parametrize("given", [lambda x: x[0] if len(x) == 1 else x, list, tuple])
@pytest.mark.parametrize("convert", [np.asarray, ops.convert_to_tensor])
def test_a_state_may_be_a_tensor_or_a_list_or_tuple_of_it(layer, states, given, convert):
    actual = layer(INPUTS, initial_state=given([convert(state) for state in states]))
    assert_same(actual, layer(INPUTS, initial_state=states))


def test_two_halves_make_the_whole(layer):
    outputs, *final = layer(INPUTS)
    first, *between = layer(INPUTS[:, :4])
    second, *last = layer(INPUTS[:, 4:], initial_state=between)
    np.testing.assert_allclose(
        np.concatenate(to_numpy([first, second]), 1), to_numpy(outputs), **CLOSE
    )
    assert_same(last, final, **CLOSE)


def test_backwards_is_forwards_on_turned_inputs(layer):
    backwards = with_weights_of(layer, go_backwards=True)
    assert_same(backwards(INPUTS), layer(INPUTS[:, ::-1]))


def test_the_surface_has_the_names_and_shapes_of_keras(layer, states):
    width, shapes = layer.output_size(DIM), [state.shape[1:] for state in states]
    assert layer.state_size == shapes
    assert layer.states is None
    initial = layer.get_initial_state(5)
    assert [(tuple(x.shape), to_numpy(x).any()) for x in initial] == [
        ((5, *shape), False) for shape in shapes
    ]
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in initial]
    assert dtypes == [state.dtype.name for state in states]

    def with_batch(batch, *outputs):
        return ((batch, *outputs), *((batch, *shape) for shape in shapes))

    assert layer.compute_output_shape((BATCH, None, DIM)) == with_batch(BATCH, None, width)
    symbolic = layer(keras.Input((None, DIM)))
    assert tuple(x.shape for x in symbolic) == with_batch(None, None, width)
    assert [x.dtype for x in symbolic] == ["float32", *dtypes]
    results = with_weights_of(layer, return_sequences=False)(INPUTS)
    assert isinstance(results, tuple)
    assert tuple(tuple(x.shape) for x in results) == with_batch(BATCH, width)
    # As in scripts that reset every layer of a model.
    layer.reset_states()


# Of a weight that only the outputs depend on.
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_an_encoder_gives_its_state_to_a_decoder(layer):
    source, target = keras.Input((None, DIM)), keras.Input((None, DIM))
    _, *states = layer(source)
    outputs, *_ = with_weights_of(layer)(target, initial_state=states)
    model = keras.Model([source, target], outputs)
    model.compile("sgd", "mse")
    actual = model.predict([INPUTS[:, :4], INPUTS[:, 4:]], verbose=0)
    np.testing.assert_allclose(actual, to_numpy(layer(INPUTS)[0])[:, 4:], **CLOSE)
    before = layer.get_weights()
    targets = np.zeros((BATCH, LENGTH - 4, layer.output_size(DIM)))
    model.train_on_batch([INPUTS[:, :4], INPUTS[:, 4:]], targets)
    readouts = (
        *("readout", "output_gate", "output_projection", "scale"),
        *("output_kernel", "output_bias", "skip"),
        *(("kernel", "bias") if isinstance(layer, CausalConv1D) else ()),
    )
    for weight, old, new in zip(layer.weights, before, layer.get_weights(), strict=True):
        # The encoder's outputs go nowhere; its state must teach it all the same.
        assert np.array_equal(old, new) == (weight.name in readouts)


# Gradients through states.


def differentiated(layer, inputs, states, cotangents, chunks=1, truncate=False):
    """Gradients over consecutive chunks; truncated, none goes from one to the one before."""
    weights = {weight.name: to_numpy(weight) for weight in layer.weights}
    names = [f"state {k}" for k in range(len(states))]

    def scan(inputs, **given):
        outputs, states = [], [given[name] for name in names]
        for chunk in np.split(np.arange(inputs.shape[1]), chunks):
            (own, *states), _ = layer.stateless_call(
                [given[name] for name in weights],
                [],
                inputs[:, chunk[0] : chunk[-1] + 1],
                initial_state=states,
            )
            outputs.append(own)
            if truncate and chunk[-1] + 1 < inputs.shape[1]:
                states = [ops.stop_gradient(state) for state in states]
        return ops.concatenate(outputs, axis=1), *states

    arrays = {"inputs": inputs, **dict(zip(names, states, strict=True)), **weights}
    return differentiate(scan, arrays, cotangents)[1]


@pytest.fixture
def cotangents(layer):
    by_outputs = random_inputs(BATCH, LENGTH, layer.output_size(DIM), seed=2)
    return [by_outputs, *random_states(layer, BATCH, seed=3)]


def test_a_chain_of_chunks_has_the_gradients_of_the_whole(layer, states, cotangents):
    whole = differentiated(layer, INPUTS, states, cotangents)
    chained = differentiated(layer, INPUTS, states, cotangents, chunks=3)
    for name, exact in whole.items():
        scale = abs(exact).max()
        np.testing.assert_allclose(chained[name] / scale, exact / scale, **CLOSE)


def test_truncated_backpropagation_is_that_of_the_truncated_loop(layer, states, cotangents):
    # Each chunk alone, started from the values that the chunk before it ended with.
    actual = differentiated(layer, INPUTS, states, cotangents, chunks=3, truncate=True)
    totals = dict.fromkeys((weight.name for weight in layer.weights), 0.0)
    current = states
    for first in (0, 3, 6):
        chunk = slice(first, first + 3)
        by_final = cotangents[1:] if chunk.stop == LENGTH else [0 * c for c in cotangents[1:]]
        by_chunk = [cotangents[0][:, chunk], *by_final]
        own = differentiated(layer, INPUTS[:, chunk], current, by_chunk)
        np.testing.assert_allclose(actual["inputs"][:, chunk], own["inputs"], rtol=1e-4, atol=1e-4)
        if first == 0:
            for name in (f"state {k}" for k in range(len(states))):
                np.testing.assert_allclose(actual[name], own[name], rtol=1e-4, atol=1e-4)
        totals = {name: total + own[name] for name, total in totals.items()}
        _, *current = to_numpy(layer(INPUTS[:, chunk], initial_state=current))
    for name, exact in totals.items():
        scale = abs(exact).max()
        np.testing.assert_allclose(actual[name] / scale, exact / scale, **CLOSE)


# Carried from batch to batch.


def chunks(array=INPUTS):
    return np.split(array, 3, axis=1)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_predict_and_evaluate_carry_the_state(layer, jit_compile):
    # On JAX the state of Keras' own layers stays zero in all of these.
    if jit_compile and keras.config.backend() == "torch":
        pytest.skip("torch.compile of Keras' own loop")
    model = stateful(layer)
    model.compile("sgd", "mse", jit_compile=jit_compile)
    outputs, *final = to_numpy(layer(INPUTS))
    for chunk, exact in zip(chunks(), chunks(outputs), strict=True):
        np.testing.assert_allclose(model.predict(chunk, verbose=0), exact, **CLOSE)
    carried = model.layers[0].states
    assert_same(carried, final, **CLOSE)
    model.layers[0].reset_state()
    assert not any(state.any() for state in to_numpy(carried))
    for chunk, exact in zip(chunks(), chunks(outputs), strict=True):
        np.testing.assert_allclose(model.evaluate(chunk, exact, verbose=0), 0, atol=1e-9)
    assert_same(carried, final, **CLOSE)


def test_training_carries_the_state(layer):
    # On torch Keras' own layers fail in backward here, having changed the state in place.
    model = stateful(layer)
    outputs, *final = to_numpy(layer(INPUTS))
    zeros = np.zeros_like(outputs)
    for chunk, target in zip(chunks(), chunks(zeros), strict=True):
        model.train_on_batch(chunk, target)
    carried = model.layers[0].states
    assert_same(carried, final, **CLOSE)
    model.layers[0].reset_states()

    def batches():
        yield from zip(chunks(), chunks(zeros), strict=True)

    model.fit(batches(), steps_per_epoch=3, shuffle=False, verbose=0)
    assert_same(carried, final, **CLOSE)


def test_a_step_learns_as_from_the_state_given(layer):
    # One step of SGD on the second chunk: carried state and given state lead to equal weights.
    carrying = stateful(layer)
    targets = random_inputs(BATCH, 3, layer.output_size(DIM), seed=5)
    carrying.predict(chunks()[0], verbose=0)
    carrying.compile(keras.optimizers.SGD(0.01), "mse")
    carrying.train_on_batch(chunks()[1], targets)
    _, *states = to_numpy(layer(chunks()[0]))
    inputs, given = keras.Input((None, DIM)), with_weights_of(layer)
    symbolic = [keras.Input(state.shape[1:], dtype=state.dtype.name) for state in states]
    model = keras.Model([inputs, *symbolic], given(inputs, initial_state=symbolic)[0])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.train_on_batch([chunks()[1], *states], targets)
    for carried, own, old in zip(
        carrying.trainable_weights, given.weights, layer.weights, strict=True
    ):
        np.testing.assert_allclose(to_numpy(carried), to_numpy(own), **CLOSE)
        assert not np.array_equal(to_numpy(own), to_numpy(old))


def test_the_carried_state_holds_at_masked_steps_and_gives_way_to_a_given_one(layer, states):
    carrying = stateful(layer, return_state=True).layers[0]
    carrying(INPUTS[:, :4])
    before = to_numpy(carrying.states)
    carrying(INPUTS[:, :4], mask=np.zeros((BATCH, 4), bool))
    assert_same(carrying.states, before)
    outputs, *_ = carrying(INPUTS, initial_state=states)
    assert_same([outputs, *carrying.states], layer(INPUTS, initial_state=states))


def test_the_carried_state_is_saved_with_the_model(layer, tmp_path):
    # That of Keras' own layers is lost.
    model = stateful(layer)
    model.predict(INPUTS, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert all(state.any() for state in to_numpy(model.layers[0].states))
    assert_same(again.layers[0].states, model.layers[0].states)
    np.testing.assert_allclose(*(m.predict(INPUTS, verbose=0) for m in (again, model)), **CLOSE)


@pytest.mark.parametrize("batch", [None, 5])
def test_weights_move_between_stateful_and_stateless(layer, tmp_path, batch):
    # Trained in batches, then following streams: another batch size, or no state at all.
    path = tmp_path / "model.weights.h5"
    carrying = stateful(layer)
    carrying.predict(INPUTS, verbose=0)
    carrying.optimizer = None
    carrying.save_weights(path)
    changes = {"stateful": batch is not None, "return_state": False}
    other = type(layer).from_config({**layer.get_config(), **changes})
    model = keras.Sequential([keras.Input(batch_shape=(batch, None, DIM)), other])
    model.load_weights(path)
    for actual, exact in zip(other.trainable_weights, layer.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(actual), to_numpy(exact))
    if batch:
        assert not any(state.any() for state in to_numpy(other.states))
    model.save_weights(path)
    carrying.load_weights(path)
    assert not any(state.any() for state in to_numpy(carrying.layers[0].states))


# Errors.


@pytest.mark.parametrize("name", CHOSEN)
def test_a_stateful_layer_needs_to_know_the_batch(name):
    with pytest.raises(ValueError, match=r"is stateful.*keras\.Input\(batch_shape=\(batch, time"):
        make(name, stateful=True)(keras.Input((None, DIM)))


@pytest.mark.parametrize("run", ["__call__", "predict_on_batch"])
def test_another_batch_size_is_refused(layer, run):
    model = stateful(layer)
    with pytest.raises(ValueError, match="keeps a state for a batch of 2 sequences.*batch of 3"):
        getattr(model, run)(random_inputs(3, LENGTH, DIM))


def test_a_smaller_last_batch_is_refused_in_training(layer):
    # In a graph of TensorFlow the batch is unknown until it runs, and the error is TensorFlow's.
    model = stateful(layer)
    inputs = random_inputs(3, LENGTH, DIM)
    targets = np.zeros((3, LENGTH, layer.output_size(DIM)))
    message = (
        r"must_have_the_batch_size_of_the_state|keeps a state for a batch of 2 sequences|"
        r"state has the shape \(2, .*, which does not fit B.*, where B = 1 sequences, T = 9 steps"
    )
    with pytest.raises(Exception, match=message) as error:
        model.fit(inputs, targets, batch_size=BATCH, shuffle=False, verbose=0)
    is_graph = keras.config.backend() == "tensorflow"
    assert error.type.__name__ == ("InvalidArgumentError" if is_graph else "ValueError")


def test_states_that_do_not_fit_are_errors(layer, states):
    shape = re.escape(str(states[0].shape))
    with pytest.raises(ValueError, match=rf"`initial_state` must have shape {shape}.*\(2,\)"):
        layer(INPUTS, initial_state=[np.zeros(2, "float32"), *states[1:]])
    shapes = ", ".join(
        re.escape(str(("batch", *size)).replace("'", "")) for size in layer.state_size
    )
    has = f"one state, {shapes}" if len(states) == 1 else f"2 states, {shapes}"
    with pytest.raises(ValueError, match=f"has {has}, received {len(states) + 1}"):
        layer(INPUTS, initial_state=[*states, states[0]])
    with pytest.raises(ValueError, match="Call or build the layer first"):
        type(layer).from_config(layer.get_config()).get_initial_state(2)
