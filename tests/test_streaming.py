"""A layer and a Sequential model fed piece by piece give what they give for the whole sequence."""

import keras
import numpy as np
import pytest
from recurrent import CASES, TwoStates, make, random_inputs, randomized, to_numpy

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer, Stream
from keras_coffee.layers import SoftminLogits, SymbolEmbedding

BATCH, LENGTH, DIM = 2, 9, 3
INPUTS = random_inputs(BATCH, LENGTH, DIM)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def model_of(*layers):
    model = keras.Sequential([keras.Input((None, DIM)), *layers])
    for layer in model.layers:
        if hasattr(layer, "weight_specs"):
            for k, weight in enumerate(layer.weights):
                values = random_inputs(*weight.shape, seed=k)
                weight.assign(-abs(values) / 2 if weight.name == "transition" else values / 2)
    return model


def several():
    return model_of(
        CoffeeLayer(4, output_filter=True),
        keras.layers.LayerNormalization(),
        keras.Sequential([S6Layer(4), keras.layers.Dropout(0.5)]),
        TwoStates(2),
        keras.layers.Dense(DIM, activation="tanh"),
        LinearizedS6Layer(4),
    )


@pytest.mark.parametrize("case", CASES)
def test_steps_of_a_layer_equal_the_full_pass(case):
    layer = randomized(make(case, return_state=True))
    outputs, *final = to_numpy(layer(INPUTS))
    state, steps = layer.get_initial_state(BATCH), []
    for t in range(LENGTH):
        outputs_t, state = layer.step(INPUTS[:, t], state)
        assert outputs_t.shape == (BATCH, layer.output_size(DIM))
        steps.append(to_numpy(outputs_t))
    np.testing.assert_allclose(np.stack(steps, 1), outputs, **CLOSE)
    # A tensor, unless there are several.
    states = state if isinstance(state, list) else [state]
    for actual, exact in zip(to_numpy(states), final, strict=True):
        np.testing.assert_allclose(actual, exact, **CLOSE)


def test_steps_leave_a_carried_state_alone_and_ignore_what_is_returned():
    layer = randomized(
        make("s6", stateful=True, return_sequences=False, return_state=True), batch=BATCH
    )
    layer(INPUTS)
    before = to_numpy(layer.states[0])
    outputs, _ = layer.advance(INPUTS, layer.get_initial_state(BATCH))
    assert outputs.shape == INPUTS.shape
    np.testing.assert_array_equal(to_numpy(layer.states[0]), before)


@pytest.mark.parametrize("blocks", [[9], [1] * 9, [4, 1, 4]], ids=str)
def test_a_model_fed_in_blocks_equals_the_full_pass(blocks):
    model = several()
    stream = Stream(model)
    state, outputs = stream.get_initial_state(BATCH), []
    for block in np.split(INPUTS, np.cumsum(blocks)[:-1], axis=1):
        outputs_of_block, state = stream(block, state)
        outputs.append(to_numpy(outputs_of_block))
    expected = model.predict(INPUTS, verbose=0)
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, **CLOSE)


@pytest.mark.smoke
def test_a_model_fed_step_by_step_equals_the_full_pass():
    model = several()
    stream = Stream(model)
    state, outputs = stream.get_initial_state(BATCH), []
    for t in range(LENGTH):
        outputs_t, state = stream.step(INPUTS[:, t], state)
        outputs.append(to_numpy(outputs_t))
    np.testing.assert_allclose(np.stack(outputs, 1), model.predict(INPUTS, verbose=0), **CLOSE)


def test_without_sequences_the_last_output_so_far_comes_out():
    model = model_of(CoffeeLayer(4), S6Layer(4, return_sequences=False), keras.layers.Dense(1))
    stream = Stream(model)
    outputs, state = stream(INPUTS[:, :8], stream.get_initial_state(BATCH))
    expected = model.predict(INPUTS[:, :8], verbose=0)
    np.testing.assert_allclose(to_numpy(outputs), expected, **CLOSE)
    outputs, _ = stream.step(INPUTS[:, 8], state)
    np.testing.assert_allclose(to_numpy(outputs), model.predict(INPUTS, verbose=0), **CLOSE)


def test_tokens_one_by_one_through_the_model_of_the_induction_head_task():
    embedding = SymbolEmbedding(5, 8)
    layers = [keras.Input((None,), dtype="int32"), embedding, CoffeeLayer(4)]
    model = keras.Sequential([*layers, SoftminLogits(embedding, last=1)])
    stream = Stream(model)
    tokens = np.random.default_rng(0).integers(5, size=(BATCH, LENGTH)).astype("int32")
    state = stream.get_initial_state(BATCH)
    for t in range(LENGTH):
        logits, state = stream.step(tokens[:, t], state)
    expected = model.predict(tokens, verbose=0)[:, -1]
    np.testing.assert_allclose(to_numpy(logits), expected, rtol=1e-4, atol=1e-4)


def test_masked_tokens_hold_the_states():
    layers = [keras.layers.Embedding(6, DIM, mask_zero=True), CoffeeLayer(4), S6Layer(4)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    tokens = np.array([[3, 0, 0, 5, 2], [1, 4, 0, 2, 0]], "int32")
    stream = Stream(model)
    _, state = stream(tokens[:, :2], stream.get_initial_state(BATCH))
    outputs, _ = stream(tokens[:, 2:], state)
    expected = model.predict(tokens, verbose=0)[:, 2:]
    # The first steps of the second row repeat outputs of the block before.
    np.testing.assert_allclose(to_numpy(outputs), expected, **CLOSE)


@pytest.mark.skipif(keras.config.backend() != "torch", reason="only eager gradients make a graph")
def test_no_gradient_is_carried_on():
    # The graph of a long stream would otherwise grow until memory ends.
    stream = Stream(several())
    state = stream.get_initial_state(BATCH)
    for _ in range(2):
        _, state = stream(INPUTS, state)
    depths = [_graph_depth(x) for x in state.values()]
    for _ in range(3):
        _, state = stream(INPUTS, state)
    assert [_graph_depth(x) for x in state.values()] == depths


def _graph_depth(tensor):
    count, open_nodes, seen = 0, [tensor.grad_fn], set()
    while open_nodes:
        node = open_nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        count += 1
        open_nodes += [following for following, _ in node.next_functions if following]
    return count


def test_inputs_are_cast_as_the_model_casts_them():
    model = keras.Sequential([keras.Input((None, DIM)), keras.layers.UnitNormalization()])
    model.add(CoffeeLayer(4))
    inputs = np.abs(20 * INPUTS).astype("uint8")
    stream = Stream(model)
    outputs, _ = stream(inputs, stream.get_initial_state(BATCH))
    np.testing.assert_allclose(to_numpy(outputs), model.predict(inputs, verbose=0), **CLOSE)


@pytest.mark.filterwarnings("ignore:Layer 'doubled.*will therefore destroy the mask")
def test_a_mask_ends_where_the_model_drops_it():
    layers = [keras.layers.Embedding(6, DIM, mask_zero=True), Doubled(), CoffeeLayer(4)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    tokens = np.array([[3, 0, 0, 5, 2], [1, 4, 0, 2, 0]], "int32")
    stream = Stream(model, pointwise=[Doubled])
    outputs, _ = stream(tokens, stream.get_initial_state(BATCH))
    np.testing.assert_allclose(to_numpy(outputs), model.predict(tokens, verbose=0), **CLOSE)


def test_states_may_be_kept_as_arrays():
    stream = Stream(several())
    _, state = stream(INPUTS[:, :4], stream.get_initial_state(BATCH))
    expected, _ = stream(INPUTS[:, 4:], state)
    arrays = {name: np.asarray(to_numpy(x)) for name, x in state.items()}
    actual, _ = stream(INPUTS[:, 4:], arrays)
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


# Errors.


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.Conv1D(DIM, 2, padding="same"),
        keras.layers.Conv1D(DIM, 2, padding="causal", strides=2),
        keras.layers.Bidirectional(CoffeeLayer(2)),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.LayerNormalization(axis=1),
        keras.layers.Softmax(axis=1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_may_need_other_steps_are_refused(layer):
    length = 5 if getattr(layer, "axis", -1) == 1 else None
    model = keras.Sequential([keras.Input((length, DIM)), CoffeeLayer(2), layer])
    with pytest.raises(ValueError, match=f"of type {type(layer).__name__} may need other steps"):
        Stream(model)


class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs


def test_a_layer_of_ones_own_is_taken_at_its_word():
    model = model_of(Doubled(), CoffeeLayer(2))
    with pytest.raises(ValueError, match=r"Stream\(model, pointwise=\[\.\.\.\]\)"):
        Stream(model)
    stream = Stream(model, pointwise=[Doubled])
    outputs, _ = stream(INPUTS, stream.get_initial_state(BATCH))
    np.testing.assert_allclose(to_numpy(outputs), model.predict(INPUTS, verbose=0), **CLOSE)


def test_a_stateful_layer_in_a_wrapper_is_refused():
    wrapper = keras.layers.TimeDistributed(CoffeeLayer(2, stateful=True))
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, 2, 4, DIM)), wrapper])
    with pytest.raises(ValueError, match="is stateful and would keep a state of its own"):
        Stream(model)


def test_a_layer_that_is_not_built_has_no_stream():
    with pytest.raises(ValueError, match="Call or build the layer first"):
        CoffeeLayer(2).step(INPUTS[:, 0], np.zeros((BATCH, DIM, 2), "float32"))


def test_a_layer_that_goes_backwards_is_refused():
    layer = randomized(make("s6", go_backwards=True))
    for follow in (layer.advance, lambda x, state: layer.step(x[:, 0], state)):
        with pytest.raises(ValueError, match="goes backwards.*can't follow a stream"):
            follow(INPUTS, layer.get_initial_state(BATCH))
    with pytest.raises(ValueError, match="goes backwards.*can't follow a stream"):
        Stream(model_of(S6Layer(2, go_backwards=True)))


def test_models_that_are_not_ready_are_errors():
    with pytest.raises(TypeError, match="needs a keras.Sequential or a .* received CoffeeLayer"):
        Stream(CoffeeLayer(2))
    with pytest.raises(ValueError, match="is not built. Begin it with keras.Input"):
        Stream(keras.Sequential([CoffeeLayer(2)]))


class WithoutShape(keras.layers.Layer):
    def call(self, inputs):
        return inputs

    def compute_output_spec(self, *args, **kwargs):
        raise NotImplementedError


def test_a_model_without_symbolic_inputs_is_an_error():
    model = keras.Sequential([WithoutShape()], name="model")
    model(INPUTS)
    assert model.built
    with pytest.raises(ValueError, match="'model' has no symbolic inputs.*on a keras.Input"):
        Stream(model)


@pytest.mark.parametrize(
    ("state", "received"),
    [({"a": 0, "b": 0}, r"\['a', 'b'\]"), (None, "a NoneType"), ([np.zeros((1, 3, 2))], "a list")],
    ids=["others", "none", "list"],
)
def test_a_state_with_other_names_is_an_error(state, received):
    message = (
        rf"is a dict of the tensors \['c'\], received {received}. Start with `get_initial_state`"
    )
    with pytest.raises(ValueError, match=message):
        Stream(model_of(CoffeeLayer(2, name="c")))(INPUTS, state)


@pytest.mark.parametrize("shape", [(), (BATCH, DIM, 3), (BATCH + 1, DIM, 2)], ids=str)
def test_a_state_of_another_shape_is_an_error(shape):
    message = (
        r"The state 'c' of .* must have the shape \(2, 3, 2\) here, received \(" + str(shape)[1:-1]
    )
    with pytest.raises(ValueError, match=message):
        Stream(model_of(CoffeeLayer(2, name="c")))(INPUTS, {"c": np.zeros(shape)})


def test_inputs_without_the_axis_of_the_batch_are_errors():
    words = keras.Sequential([keras.Input((None,), dtype="int32"), SymbolEmbedding(4, DIM)])
    stream = Stream(words)
    with pytest.raises(ValueError, match=r"takes `\(batch,\)` here, received the shape \(\)"):
        stream.step(3, {})
    with pytest.raises(ValueError, match=r"takes `\(batch, steps\)` here, .* shape \(5,\)"):
        stream(np.zeros(5, "int32"), {})
    stream = Stream(model_of(CoffeeLayer(2)))
    with pytest.raises(ValueError, match=r"takes `\(batch, 3\)` here, .* shape \(3,\)"):
        stream.step(INPUTS[0, 0], stream.get_initial_state(1))


def test_inputs_of_another_width_are_errors():
    stream = Stream(model_of(keras.layers.Rescaling(2.0)))
    with pytest.raises(ValueError, match=r"takes `\(batch, 3\)` here, .* shape \(2, 2\)"):
        stream.step(INPUTS[:, 0, :2], {})
    with pytest.raises(ValueError, match=r"takes `\(batch, steps, 3\)` here, .* shape \(2, 9, 2\)"):
        stream(INPUTS[..., :2], {})


@pytest.mark.parametrize(
    "layer",
    [
        CoffeeLayer(2),
        keras.layers.GRU(2, return_sequences=True),
        keras.layers.Conv1D(2, 2, padding="causal"),
    ],
)
def test_a_block_without_steps_is_an_error(layer):
    stream = Stream(model_of(layer))
    message = r"takes blocks of one step or more, received the shape \(2, 0, 3\)"
    with pytest.raises(ValueError, match=message):
        stream(INPUTS[:, :0], stream.get_initial_state(BATCH))


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, LENGTH, DIM)])
def test_a_step_of_another_rank_is_an_error(shape):
    layer = randomized(make("coffee"))
    with pytest.raises(ValueError, match=r"must have shape \(batch, time, 3\), time being 1 for a"):
        layer.step(np.zeros(shape, "float32"), layer.get_initial_state(BATCH))


def test_complex_inputs_are_refused():
    stream = Stream(model_of(CoffeeLayer(2)))
    with pytest.raises(TypeError, match="What .* takes must be real, received dtype complex64"):
        stream(1j * INPUTS, stream.get_initial_state(BATCH))
