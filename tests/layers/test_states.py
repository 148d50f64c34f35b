"""States that are given, returned and carried."""

import keras
import numpy as np
import pytest
from gradients import value_and_gradients
from keras import ops
from recurrent import (
    LAYERS,
    ROUNDING,
    WITH_S6,
    expected,
    make,
    random_inputs,
    randomized,
    to_numpy,
    with_weights_of,
)

BATCH, LENGTH, DIM, N = SHAPE = (2, 9, 3, 4)
INPUTS = random_inputs(BATCH, LENGTH, DIM)
STATE = random_inputs(BATCH, DIM, N, seed=1)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=WITH_S6)
def layer(request):
    return randomized(make(request.param, return_state=True))


def stateful(layer, **changes):
    """The same layer, carrying its state, in a model."""
    changes = {"stateful": True, "return_state": False, **changes}
    config = {**layer.get_config(), **changes}
    model = keras.Sequential(
        [keras.Input(batch_shape=(BATCH, None, DIM)), type(layer).from_config(config)]
    )
    model.layers[0].set_weights([*layer.get_weights(), np.zeros((BATCH, DIM, N))])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


# Given and returned.


def test_a_state_given_and_returned_in_float64(layer):
    outputs, final_state = to_numpy(layer(INPUTS, initial_state=STATE))
    exact_outputs, exact_final = expected(layer, INPUTS, STATE)
    scale = abs(exact_outputs).max(), abs(exact_final).max()
    np.testing.assert_allclose(outputs / scale[0], exact_outputs / scale[0], atol=ROUNDING)
    np.testing.assert_allclose(final_state / scale[1], exact_final / scale[1], atol=ROUNDING)


@pytest.mark.parametrize("given", [lambda x: x, lambda x: [x], lambda x: (x,)])
@pytest.mark.parametrize("convert", [np.asarray, ops.convert_to_tensor])
def test_a_state_may_be_a_tensor_or_a_list_or_tuple_of_it(layer, given, convert):
    expected_outputs = to_numpy(layer(INPUTS, initial_state=STATE))
    actual = to_numpy(layer(INPUTS, initial_state=given(convert(STATE))))
    np.testing.assert_array_equal(actual[0], expected_outputs[0])


def test_two_halves_make_the_whole(layer):
    outputs, final_state = to_numpy(layer(INPUTS))
    first, state = layer(INPUTS[:, :4])
    second, last = layer(INPUTS[:, 4:], initial_state=state)
    np.testing.assert_allclose(np.concatenate(to_numpy([first, second]), 1), outputs, **CLOSE)
    np.testing.assert_allclose(to_numpy(last), final_state, **CLOSE)


def test_backwards_is_forwards_on_turned_inputs(layer):
    backwards = with_weights_of(layer, go_backwards=True)
    pairs = zip(backwards(INPUTS), layer(INPUTS[:, ::-1]), strict=True)
    for actual, turned in pairs:
        np.testing.assert_array_equal(to_numpy(actual), to_numpy(turned))


def test_the_surface_has_the_names_and_shapes_of_keras(layer):
    assert layer.state_size == [(DIM, N)]
    assert layer.states is None
    (initial,) = layer.get_initial_state(5)
    assert initial.shape == (5, DIM, N)
    assert not to_numpy(initial).any()
    assert layer.compute_output_shape((BATCH, None, DIM)) == ((2, None, 3), (2, 3, 4))
    outputs, state = layer(keras.Input((None, DIM)))
    assert (outputs.shape, state.shape) == ((None, None, 3), (None, 3, 4))
    last = with_weights_of(layer, return_sequences=False)
    results = last(INPUTS)
    assert isinstance(results, tuple)
    assert [tuple(x.shape) for x in results] == [(2, 3), (2, 3, 4)]
    # As in scripts that reset every layer of a model.
    layer.reset_states()


def test_an_encoder_gives_its_state_to_a_decoder(layer):
    source, target = keras.Input((None, DIM)), keras.Input((None, DIM))
    _, state = layer(source)
    outputs, _ = with_weights_of(layer)(target, initial_state=[state])
    model = keras.Model([source, target], outputs)
    model.compile("sgd", "mse")
    actual = model.predict([INPUTS[:, :4], INPUTS[:, 4:]], verbose=0)
    np.testing.assert_allclose(actual, to_numpy(layer(INPUTS)[0])[:, 4:], **CLOSE)
    before = layer.get_weights()
    model.train_on_batch([INPUTS[:, :4], INPUTS[:, 4:]], INPUTS[:, 4:])
    readouts = ("readout", "output_gate", "output_projection")
    for weight, old, new in zip(layer.weights, before, layer.get_weights(), strict=True):
        # The encoder's outputs go nowhere; its state must teach it all the same.
        assert np.array_equal(old, new) == (weight.name in readouts)


# Gradients through states.


def loss_of(layer, by_outputs, by_final, chunks=1, truncate=False):
    """A loss over consecutive chunks; truncated, no gradient goes from one to the one before."""

    def loss(inputs, state, *weights):
        total = 0.0
        for chunk in np.split(np.arange(LENGTH), chunks):
            first, last = chunk[0], chunk[-1] + 1
            (outputs, state), _ = layer.stateless_call(
                weights, [], inputs[:, first:last], initial_state=state
            )
            total += ops.sum(ops.multiply(outputs, by_outputs[:, first:last]))
            if truncate and last < LENGTH:
                state = ops.stop_gradient(state)
        return total + ops.sum(ops.multiply(state, by_final))

    return loss


def test_a_chain_of_chunks_has_the_gradients_of_the_whole(layer):
    cotangents = random_inputs(BATCH, LENGTH, DIM, seed=2), random_inputs(BATCH, DIM, N, seed=3)
    arrays = INPUTS, STATE, *layer.get_weights()
    _, whole = value_and_gradients(loss_of(layer, *cotangents), *arrays)
    _, chained = value_and_gradients(loss_of(layer, *cotangents, chunks=3), *arrays)
    for actual, exact in zip(chained, whole, strict=True):
        scale = abs(exact).max()
        np.testing.assert_allclose(actual / scale, exact / scale, **CLOSE)


def test_truncated_backpropagation_is_that_of_the_truncated_loop(layer):
    # Each chunk alone, started from the values that the chunk before it ended with.
    by_outputs = random_inputs(BATCH, LENGTH, DIM, seed=2)
    by_final = random_inputs(BATCH, DIM, N, seed=3)
    weights = layer.get_weights()
    loss = loss_of(layer, by_outputs, by_final, chunks=3, truncate=True)
    _, (by_inputs, by_state, *by_weights) = value_and_gradients(loss, INPUTS, STATE, *weights)
    state, totals = STATE, [np.zeros_like(weight) for weight in weights]
    for first in (0, 3, 6):
        chunk = slice(first, first + 3)

        def own_loss(inputs, state, *weights, chunk=chunk):
            (outputs, state), _ = layer.stateless_call(weights, [], inputs, initial_state=state)
            last = ops.multiply(state, by_final) if chunk.stop == LENGTH else 0.0
            return ops.sum(ops.multiply(outputs, by_outputs[:, chunk])) + ops.sum(last)

        _, own = value_and_gradients(own_loss, INPUTS[:, chunk], state, *weights)
        np.testing.assert_allclose(by_inputs[:, chunk], own[0], rtol=1e-4, atol=1e-4)
        if first == 0:
            np.testing.assert_allclose(by_state, own[1], rtol=1e-4, atol=1e-4)
        totals = [total + new for total, new in zip(totals, own[2:], strict=True)]
        state = to_numpy(layer(INPUTS[:, chunk], initial_state=state)[1])
    for actual, exact in zip(by_weights, totals, strict=True):
        scale = abs(exact).max()
        np.testing.assert_allclose(actual / scale, exact / scale, **CLOSE)


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
    outputs, final_state = to_numpy(layer(INPUTS))
    for chunk, exact in zip(chunks(), chunks(outputs), strict=True):
        np.testing.assert_allclose(model.predict(chunk, verbose=0), exact, **CLOSE)
    (state,) = model.layers[0].states
    np.testing.assert_allclose(to_numpy(state), final_state, **CLOSE)
    model.layers[0].reset_state()
    assert not to_numpy(state).any()
    for chunk, exact in zip(chunks(), chunks(outputs), strict=True):
        np.testing.assert_allclose(model.evaluate(chunk, exact, verbose=0), 0, atol=1e-9)
    np.testing.assert_allclose(to_numpy(state), final_state, **CLOSE)


def test_training_carries_the_state(layer):
    # On torch Keras' own layers fail in backward here, having changed the state in place.
    model = stateful(layer)
    zeros = np.zeros_like(INPUTS)
    _, final_state = to_numpy(layer(INPUTS))
    for chunk, target in zip(chunks(), chunks(zeros), strict=True):
        model.train_on_batch(chunk, target)
    (state,) = model.layers[0].states
    np.testing.assert_allclose(to_numpy(state), final_state, **CLOSE)
    model.layers[0].reset_states()

    def batches():
        yield from zip(chunks(), chunks(zeros), strict=True)

    model.fit(batches(), steps_per_epoch=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(to_numpy(state), final_state, **CLOSE)


def test_a_step_learns_as_from_the_state_given(layer):
    # One step of SGD on the second chunk: carried state and given state lead to equal weights.
    carrying = stateful(layer)
    carrying.predict(chunks()[0], verbose=0)
    carrying.compile(keras.optimizers.SGD(0.01), "mse")
    carrying.train_on_batch(chunks()[1], chunks()[2])
    inputs, state = keras.Input((None, DIM)), keras.Input((DIM, N))
    given = with_weights_of(layer)
    model = keras.Model([inputs, state], given(inputs, initial_state=state)[0])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.train_on_batch([chunks()[1], to_numpy(layer(chunks()[0])[1])], chunks()[2])
    for carried, own, old in zip(
        carrying.trainable_weights, given.weights, layer.weights, strict=True
    ):
        np.testing.assert_allclose(to_numpy(carried), to_numpy(own), **CLOSE)
        assert not np.array_equal(to_numpy(own), to_numpy(old))


def test_the_carried_state_holds_at_masked_steps_and_gives_way_to_a_given_one(layer):
    carrying = stateful(layer, return_state=True).layers[0]
    carrying(INPUTS[:, :4])
    (state,) = carrying.states
    before = to_numpy(state)
    carrying(INPUTS[:, :4], mask=np.zeros((BATCH, 4), bool))
    np.testing.assert_array_equal(to_numpy(state), before)
    outputs, final_state = carrying(INPUTS, initial_state=STATE)
    exact, exact_final = layer(INPUTS, initial_state=STATE)
    np.testing.assert_array_equal(to_numpy(outputs), to_numpy(exact))
    np.testing.assert_array_equal(to_numpy(state), to_numpy(exact_final))


def test_the_carried_state_is_saved_with_the_model(layer, tmp_path):
    # That of Keras' own layers is lost.
    model = stateful(layer)
    model.predict(INPUTS, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_array_equal(*to_numpy([again.layers[0].states[0], model.layers[0].states[0]]))
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
        assert not to_numpy(other.states[0]).any()
    model.save_weights(path)
    carrying.load_weights(path)
    assert not to_numpy(carrying.layers[0].states[0]).any()


# Errors.


@pytest.mark.parametrize("layer_class", LAYERS)
def test_a_stateful_layer_needs_to_know_the_batch(layer_class):
    with pytest.raises(ValueError, match=r"is stateful.*keras\.Input\(batch_shape=\(batch, time"):
        layer_class(2, stateful=True)(keras.Input((None, DIM)))


@pytest.mark.parametrize("run", ["__call__", "predict_on_batch"])
def test_another_batch_size_is_refused(layer, run):
    model = stateful(layer)
    with pytest.raises(ValueError, match="keeps a state for a batch of 2 sequences.*batch of 3"):
        getattr(model, run)(random_inputs(3, LENGTH, DIM))


def test_a_smaller_last_batch_is_refused_in_training(layer):
    # In a graph of TensorFlow the batch is unknown until it runs, and the error is TensorFlow's.
    model = stateful(layer)
    inputs = random_inputs(3, LENGTH, DIM)
    message = "must_have_the_batch_size_of_the_state|keeps a state for a batch of 2 sequences"
    with pytest.raises(Exception, match=message) as error:
        model.fit(inputs, inputs, batch_size=BATCH, shuffle=False, verbose=0)
    is_graph = keras.config.backend() == "tensorflow"
    assert error.type.__name__ == ("InvalidArgumentError" if is_graph else "ValueError")


def test_states_that_do_not_fit_are_errors(layer):
    with pytest.raises(ValueError, match=r"`initial_state` must have shape \(2, 3, 4\).*\(2, 3\)"):
        layer(INPUTS, initial_state=np.zeros((2, 3), "float32"))
    with pytest.raises(ValueError, match="has one state.*received 2"):
        layer(INPUTS, initial_state=[STATE, STATE])
    with pytest.raises(ValueError, match="Call or build the layer first"):
        type(layer)(2).get_initial_state(2)
