"""A Functional model fed piece by piece gives what it gives for the whole sequence."""

import keras
import numpy as np
import pytest
from gradients import compiled
from keras import layers, ops
from recurrent import TwoStates, random_inputs, to_numpy

from keras_coffee import CoffeeLayer, S6Layer, Stream
from keras_coffee.layers import LRU, CausalConv1D, MinGRU, SoftminLogits, SymbolEmbedding

BATCH, LENGTH, DIM = 2, 7, 3
X = random_inputs(BATCH, LENGTH, DIM)
Z = random_inputs(BATCH, LENGTH, DIM, seed=1)
# Rows that start, go on and end with masked steps; whole pieces of `BLOCKS` among them.
TOKENS = np.array([[0, 1, 0, 2, 3, 0, 0], [1, 0, 0, 4, 0, 5, 1]], "int32")
BLOCKS = [1, 1, 3, 2]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def features():
    return keras.Input((None, DIM), name="features")


def randomized(model):
    """Moves weights off their special starting values."""
    generator = np.random.default_rng(0)
    for weight in model.weights:
        values = generator.normal(size=weight.shape) / 2
        if "variance" in weight.name:
            values = 1 + abs(values)
        weight.assign(-abs(values) if weight.name == "transition" else values)
    return model


def residual():
    x = inputs = features()
    for k in range(2):
        x = x + CoffeeLayer(4, name=f"coffee_{k}")(layers.RMSNormalization()(x))
    return keras.Model(inputs, layers.Dense(2)(x)), X


def several_inputs_and_outputs():
    prices, volumes = (keras.Input((None, DIM), name=name) for name in ("prices", "volumes"))
    mixed = layers.Concatenate()([S6Layer(2, name="s6")(prices), volumes])
    outputs = {"mixed": mixed, "same": volumes, "list": [MinGRU(2, name="gru")(mixed)]}
    return keras.Model({"prices": prices, "volumes": volumes}, outputs), {
        "prices": X,
        "volumes": Z,
    }


def shared():
    inputs = [features(), keras.Input((None, DIM))]
    coffee = CoffeeLayer(4, name="coffee")
    first, second = map(coffee, inputs)
    return keras.Model(inputs, coffee(first) * second), [X, Z]


def nested():
    """Models in models, with equal names in them, one of them called twice."""
    inputs = features()
    own = [CoffeeLayer(4, name="coffee"), layers.Dense(DIM, name="dense")]
    encoder = keras.Sequential([keras.Input((None, DIM)), *own], name="encoder")
    parts = [encoder(inputs), layers.Dense(DIM, name="dense")(inputs)]
    inner = keras.Model(inputs, parts, name="inner")
    first, second = inner(inputs)
    third, _ = inner(second)
    return keras.Model(inputs, MinGRU(2, name="coffee")(first + encoder(third))), X


def keras_layers():
    """Keras' own recurrent layers, one of them with a state that it carries itself."""
    x = inputs = keras.Input(batch_shape=(BATCH, None, DIM))
    x = layers.GRU(4, return_sequences=True, stateful=True, name="gru")(x)
    x = layers.LSTM(4, return_sequences=True, name="lstm")(x)
    x = layers.SimpleRNN(4, return_sequences=True, name="simple")(x)
    cells = [layers.GRUCell(3), layers.LSTMCell(2)]
    return keras.Model(inputs, layers.RNN(cells, return_sequences=True, name="stacked")(x)), X


def convolutions():
    inputs = features()
    arguments = {"groups": 3, "padding": "causal", "activation": "softmax", "name": "conv"}
    x = layers.Conv1D(6, 3, dilation_rate=2, **arguments)(inputs)
    x = CoffeeLayer(2, name="coffee")(x) + layers.Conv1D(6, 1)(inputs)
    return keras.Model(inputs, x), X


def pointwise():
    inputs = features()
    x = layers.BatchNormalization()(inputs)
    left, right = ops.split(layers.Dense(8)(x), 2, axis=-1)
    x = ops.where(left > 0, left, ops.softmax(right, axis=2)) * ops.sigmoid(right)
    x = x[..., 1:] + ops.expand_dims(x[:, :, 0], -1) - 2.0 / (1.0 + ops.exp(x[..., :3]))
    x = layers.TimeDistributed(layers.Reshape((DIM, 1)))(x)
    x = ops.squeeze(layers.Dense(1)(layers.UnitNormalization(axis=2)(x)), -1)
    return keras.Model(inputs, TwoStates(2, name="two")(layers.Dropout(0.5)(x))), X


MODELS = {
    residual: {"coffee_0": (DIM, 4), "coffee_1": (DIM, 4)},
    several_inputs_and_outputs: {"s6": (DIM, 2), "gru": (2,)},
    shared: {"coffee": (DIM, 4), "coffee.call_2": (DIM, 4), "coffee.call_3": (DIM, 4)},
    nested: {
        "inner.encoder.coffee": (DIM, 4),
        "inner.call_2.encoder.coffee": (DIM, 4),
        "encoder.coffee": (DIM, 4),
        "coffee": (2,),
    },
    keras_layers: {
        "gru": (4,),
        "lstm.0": (4,),
        "lstm.1": (4,),
        "simple": (4,),
        "stacked.0": (3,),
        "stacked.1": (2,),
        "stacked.2": (2,),
    },
    convolutions: {"conv": (4, DIM), "coffee": (6, 2)},
    pointwise: {"two.0": (2,), "two.1": (DIM,)},
}


def mapped(function, *structures):
    return keras.tree.map_structure(function, *structures)


def feed(stream, inputs, blocks):
    """Outputs of all pieces side by side, a piece of one step by `step`; and the last state."""
    state, outputs, done = stream.get_initial_state(BATCH), [], 0
    for size in blocks:
        piece = mapped(lambda x, k=done, size=size: x[:, k : k + size], inputs)
        if size == 1:
            results, state = stream.step(mapped(lambda x: x[:, 0], piece), state)
            results = mapped(lambda x: ops.expand_dims(x, 1), results)
        else:
            results, state = stream(piece, state)
        outputs.append(mapped(ops.convert_to_numpy, results))
        done += size
    return mapped(lambda *pieces: np.concatenate(pieces, 1), *outputs), state


def assert_streams(model, inputs, blocks, **arguments):
    expected = mapped(ops.convert_to_numpy, compiled(randomized(model))(inputs))
    outputs, state = feed(Stream(model, **arguments), inputs, blocks)
    mapped(lambda x, y: np.testing.assert_allclose(x, y, **CLOSE), outputs, expected)
    return state


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_pieces_equal_the_full_pass(build):
    state = assert_streams(*build(), BLOCKS)
    assert {name: tuple(x.shape[1:]) for name, x in state.items()} == MODELS[build]


def embedded():
    tokens = keras.Input((None,), dtype="int32")
    return tokens, layers.Embedding(6, DIM, mask_zero=True)(tokens)


def masked(layer):
    tokens, x = embedded()
    return keras.Model(tokens, layer(x)), TOKENS


def masked_in_a_nested_model():
    tokens, x = embedded()
    own = [CoffeeLayer(2, name="coffee"), layers.Dense(DIM)]
    x = keras.Sequential([keras.Input((None, DIM)), *own], name="inner")(x)
    return keras.Model(tokens, MinGRU(2, name="gru")(x)), TOKENS


def masked_and_merged():
    tokens, x = embedded()
    x = layers.Concatenate()([x, layers.Add()([x, CoffeeLayer(2, name="coffee")(x)])])
    return keras.Model(tokens, MinGRU(2, name="gru")(x)), TOKENS


def masked_until_a_convolution():
    """What is repeated at masked steps goes into the states of the layers behind it."""
    tokens, x = embedded()
    x = layers.Conv1D(DIM, 2, padding="causal", name="conv")(CoffeeLayer(2, name="coffee")(x))
    return keras.Model(tokens, MinGRU(2, name="gru")(x)), TOKENS


def masked_by_an_input():
    inputs, mask = features(), keras.Input((None,), dtype="bool")
    x = CoffeeLayer(2, name="coffee")(inputs, mask=mask)
    x = layers.GRU(2, return_sequences=True, name="gru")(x, mask=mask)
    return keras.Model([inputs, mask], x), [X, TOKENS != 0]


def masked_by_value():
    inputs = features()
    x = layers.LSTM(2, return_sequences=True, name="lstm")(layers.Masking()(inputs))
    return keras.Model(inputs, x), X * (TOKENS != 0)[..., None]


MASKED = {
    "coffee": (lambda: masked(CoffeeLayer(4, name="c")), ["c", "c.output"]),
    "lru": (lambda: masked(LRU(2, 3, name="l")), ["l", "l.output"]),
    "zeros": (lambda: masked(CoffeeLayer(4, name="c", zero_output_for_mask=True)), ["c"]),
    "gru": (
        lambda: masked(layers.GRU(4, return_sequences=True, name="g")),
        ["g", "g.output"],
    ),
    "gru-zeros": (
        lambda: masked(layers.GRU(4, return_sequences=True, zero_output_for_mask=True, name="g")),
        ["g"],
    ),
    "nested": (
        masked_in_a_nested_model,
        ["inner.coffee", "inner.coffee.output", "gru", "gru.output"],
    ),
    "merged": (masked_and_merged, ["coffee", "coffee.output", "gru", "gru.output"]),
    "convolution": (masked_until_a_convolution, ["coffee", "coffee.output", "conv", "gru"]),
    "input": (masked_by_an_input, ["coffee", "coffee.output", "gru", "gru.output"]),
    "value": (masked_by_value, ["lstm.0", "lstm.1", "lstm.output"]),
}


@pytest.mark.filterwarnings("ignore:Layer .* will therefore destroy the mask")
@pytest.mark.parametrize("case", MASKED)
def test_masked_pieces_equal_the_full_pass(case):
    build, names = MASKED[case]
    assert list(assert_streams(*build(), BLOCKS)) == names


@pytest.mark.filterwarnings("ignore:Layer .* will therefore destroy the mask")
def test_a_nested_model_casts_its_inputs():
    scaled = keras.Sequential([keras.Input((None, DIM), dtype="int32"), layers.Rescaling(0.5)])
    assert_streams(of(lambda x: 3 * x, scaled, CoffeeLayer(2)), X, BLOCKS)
    tokens, x = embedded()
    inner = keras.Sequential([keras.Input((None, DIM), dtype="float16"), layers.Identity()])
    model = keras.Model(tokens, [inner(x), CoffeeLayer(2, name="coffee")(inner(x))])
    assert list(assert_streams(model, TOKENS, BLOCKS)) == ["coffee", "coffee.output"]


def test_a_nested_model_takes_its_inputs_by_name():
    first, second = keras.Input((None, DIM), name="z"), keras.Input((None, DIM), name="a")
    inner = keras.Model([first, second], first - 2 * second)
    inputs = [features(), keras.Input((None, DIM))]
    model = keras.Model(inputs, inner({"z": inputs[0], "a": inputs[1]}))
    assert_streams(model, [X, Z], BLOCKS)


def test_a_step_keeps_axes_that_are_not_those_of_time():
    inputs = features()
    forecast = layers.Reshape((1, DIM))(layers.Dense(DIM)(layers.GRU(2)(inputs)))
    # Whatever is made of the last step is of one step too.
    inner = keras.Sequential([keras.Input((None, 5), dtype="float16"), layers.Rescaling(2.0)])
    last = inner(layers.Lambda(lambda x: x / 2)(logits(inputs, 1)))
    stream = Stream(keras.Model(inputs, {"forecast": forecast, "logits": last}))
    outputs, _ = stream(X, stream.get_initial_state(BATCH))
    assert {k: tuple(x.shape) for k, x in outputs.items()} == {
        "forecast": (BATCH, 1, DIM),
        "logits": (BATCH, 1, 5),
    }
    state = stream.get_initial_state(BATCH)
    outputs, _ = stream.step(X[:, 0], state)
    results = stream.as_model()({"inputs": ops.convert_to_tensor(X[:, 0]), **state})
    symbols = stream.as_model().output
    for name, shape in {"forecast": (1, DIM), "logits": (5,)}.items():
        assert tuple(outputs[name].shape) == (BATCH, *shape)
        assert tuple(results[f"outputs.{name}"].shape) == (BATCH, *shape)
        assert symbols[f"outputs.{name}"].shape[1:] == shape


def test_outputs_without_time_are_those_of_all_steps_so_far():
    inputs = features()
    outputs, *states = layers.LSTM(3, return_sequences=True, return_state=True)(inputs)
    last = layers.Dense(2)(CoffeeLayer(2, return_sequences=False)(outputs))
    # Behind the last output of a recurrent layer, any layer will do.
    decoded = layers.GRU(2, return_sequences=True)(layers.RepeatVector(4)(last))
    model = randomized(keras.Model(inputs, [last, *states, decoded]))
    stream = Stream(model)
    state = stream.get_initial_state(BATCH)
    _, state = stream(X[:, :3], state)
    for length in range(4, LENGTH + 1):
        actual, state = stream.step(X[:, length - 1], state)
        for one, exact in zip(actual, model(X[:, :length]), strict=True):
            np.testing.assert_allclose(to_numpy(one), to_numpy(exact), **CLOSE)


def test_a_stream_leaves_the_model_and_its_carried_states_alone():
    model, inputs = keras_layers()
    stream = Stream(randomized(model))
    expected = to_numpy(model(inputs))
    model.get_layer("gru").reset_state()
    feed(stream, inputs, [LENGTH])
    np.testing.assert_array_equal(to_numpy(model(inputs)), expected)


def test_each_row_of_a_state_can_be_set_and_reset():
    model, inputs = residual()
    stream = Stream(randomized(model))
    _, state = stream(inputs[:, :4], stream.get_initial_state(BATCH))
    begins = np.array([False, True])
    start = stream.get_initial_state(BATCH)
    state = {
        name: ops.where(np.expand_dims(begins, (1, 2)), start[name], x) for name, x in state.items()
    }
    outputs, _ = stream(inputs[:, 4:], state)
    np.testing.assert_allclose(to_numpy(outputs)[0], to_numpy(model(inputs))[0, 4:], **CLOSE)
    np.testing.assert_allclose(to_numpy(outputs)[1], to_numpy(model(inputs[:, 4:]))[1], **CLOSE)


def test_a_compiled_step_equals_the_full_pass():
    model, inputs = masked_and_merged()
    expected = to_numpy(randomized(model)(inputs))
    stream = Stream(model)
    step, state = compiled_by_the_framework(stream.step), stream.get_initial_state(BATCH)
    for k in range(LENGTH):
        outputs, state = step(inputs[:, k], state)
        np.testing.assert_allclose(to_numpy(outputs), expected[:, k], **CLOSE)


def compiled_by_the_framework(function):
    match keras.config.backend():
        case "jax":
            import jax

            return jax.jit(function)
        case "tensorflow":
            import tensorflow as tf

            return tf.function(function)
        case "torch":
            import torch

            return torch.inference_mode()(function)


def test_states_have_the_dtypes_that_the_layers_compute_in():
    inputs = features()
    x = layers.GRU(2, return_sequences=True, name="gru", dtype="mixed_float16")(inputs)
    x = layers.Conv1D(2, 2, padding="causal", name="conv", dtype="mixed_bfloat16")(x)
    stream = Stream(keras.Model(inputs, LRU(2, 2, name="lru")(x)))
    dtypes = {"gru": "float16", "conv": "bfloat16", "lru": "complex64"}
    for state in (stream.get_initial_state(BATCH), stream(X, stream.get_initial_state(BATCH))[1]):
        actual = {k: keras.backend.standardize_dtype(x.dtype) for k, x in state.items()}
        assert actual == dtypes


class Summing(keras.layers.Layer):
    """No recurrent layer of this library, with all that a stream asks for."""

    def check_stream(self):
        pass

    def get_initial_state(self, batch_size):
        return ops.zeros((batch_size, DIM))

    def advance(self, inputs, state, mask=None):
        outputs = ops.cumsum(inputs, axis=1) + ops.expand_dims(state[0], 1)
        return outputs, outputs[:, -1]

    def call(self, inputs):
        return ops.cumsum(inputs, axis=1)


def test_any_layer_with_advance_has_a_state():
    inputs = features()
    model = keras.Model(inputs, inputs - Summing(name="summing")(inputs))
    assert list(assert_streams(model, X, BLOCKS)) == ["summing"]


# Errors.


def of(*calls):
    """A model of one call after the other."""
    x = inputs = features()
    for call in calls:
        x = call(x)
    return keras.Model(inputs, x)


def logits(x, last):
    return SoftminLogits(SymbolEmbedding(5, DIM), last=last, name="logits")(x)


class Normalize(keras.Operation):
    """Not the operation of Keras with this name."""

    def call(self, x):
        return x - ops.mean(x, axis=1, keepdims=True)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (layers.Bidirectional(CoffeeLayer(2), name="both"), "both.*the layer in it alone"),
        (layers.Conv1D(2, 2, name="conv"), "conv.*padding='causal' and strides=1"),
        (layers.AveragePooling1D(2, name="pool"), "pool"),
        (layers.GlobalAveragePooling1D(name="pool"), "pool"),
        (layers.Permute((2, 1), name="permute"), "permute.*TimeDistributed"),
        (layers.Reshape((-1, DIM), name="reshape"), "reshape.*TimeDistributed"),
        (lambda x: layers.Attention(name="attention")([x, x]), "attention"),
        (lambda x: layers.Concatenate(axis=1, name="concatenate")([x, x]), "concatenate"),
        (lambda x: ops.softmax(x, axis=1), "softmax"),
        (lambda x: ops.mean(x, axis=-2, keepdims=True), "mean"),
        (lambda x: ops.sum(x), "sum"),
        (lambda x: ops.cumsum(x, axis=1), "cumsum"),
        (lambda x: layers.Softmax(axis=-1, name="softmax")(x[..., 0]), "softmax"),
        (lambda x: x + np.ones((LENGTH, DIM), "float32"), "add"),
        (lambda x: layers.Masking(-1.0, name="masking")(x[..., 0]), "masking"),
        (lambda x: layers.Rescaling([1.0, 2.0], name="rescaling")(x[..., 0]), "rescaling"),
        (lambda x: layers.Rescaling(1, np.ones((LENGTH, 1)), name="rescaling")(x), "rescaling"),
        (lambda x: ops.clip(x, 0, np.ones((1, LENGTH, 1), "float32")), "clip"),
        (lambda x: Normalize()(x), "normalize"),
        (lambda x: logits(x, last=2), "logits.*last=1 or last=None"),
        (lambda x: ops.matmul(x, ops.transpose(x, (0, 2, 1))), "transpose"),
    ],
)
def test_what_looks_at_other_steps_is_refused_by_name(call, named):
    name, _, advice = named.partition(".*")
    # Keras numbers the names of operations.
    message = rf"^'{name}(_\d+)?' of type .* may need other steps .*{advice}.* its class: Stream\("
    with pytest.raises(ValueError, match=message):
        Stream(of(call))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: layers.Add(name="mixed")([x, x[..., 0]]),
        lambda x: ops.multiply(x, ops.mean(x, -1)),
        lambda x: ops.where(ops.mean(x, -1) > 0, x, 0.0),
        lambda x: x[..., None] + x,
    ],
)
def test_tensors_of_different_ranks_are_refused(call):
    message = r"combines tensors of the shapes \[\(None, None.*same number of axes.*expand_dims"
    with pytest.raises(ValueError, match=message):
        Stream(of(call))


def test_operations_leave_time_alone_where_their_constants_do():
    inputs = features()
    x = layers.Rescaling([1.0, 2.0, 3.0], np.ones((1, 1, DIM)))(inputs)
    x = ops.clip(x, -1.0, np.ones((1, 1, DIM), "float32"))
    x = x * ops.expand_dims(layers.Rescaling(0.5)(x[..., 0]), -1)
    assert_streams(keras.Model(inputs, layers.Masking([0.0, 1.0, 2.0])(x)), X, BLOCKS)


def over_time(x):
    return ops.softmax(x, axis=1)


def mean_of_pairs(x):
    length = x.shape[1] or LENGTH
    pairs = [ops.mean(x[:, k : k + 2], 1, keepdims=True) for k in range(0, length, 2)]
    return ops.repeat(ops.concatenate(pairs, axis=1), 2, axis=1)[:, :length]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: layers.Activation("softmax", name="act")(x[..., 0]),
        layers.Activation(lambda x: ops.cumsum(x, axis=1), name="act"),
        layers.Activation(layers.Softmax(axis=1), name="act"),
        layers.Dense(1, activation=over_time, name="act"),
        layers.Conv1D(2, 1, activation=over_time, name="act"),
        layers.Conv1D(2, 2, padding="causal", activation=over_time, name="act"),
        CausalConv1D(2, activation=over_time, name="act"),
        MinGRU(2, activation=over_time, name="act"),
        layers.Activation(mean_of_pairs, name="act"),
        layers.Activation(lambda x: x + 1e-3 * ops.cumsum(x, axis=1), name="act"),
        layers.Activation(lambda x: x + np.ones((LENGTH, DIM), "float32"), name="act"),
    ],
)
def test_an_activation_over_time_is_refused(call):
    message = "^The activation of 'act' looks at other steps than the present one.*features.$"
    with pytest.raises(ValueError, match=message):
        Stream(of(call))


def test_activations_of_each_step_are_taken():
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(12, 3)(layers.Activation(lambda x: 2 * x)(tokens))
    with_weights = layers.PReLU(shared_axes=[1])
    with_weights.build((None, None, 5))  # JAX can't in a call
    x = layers.Dense(5, activation=with_weights)(x)
    x = layers.Dense(4, activation="glu")(layers.Activation("softmax")(x))
    assert_streams(keras.Model(tokens, x), TOKENS, BLOCKS)


def flipping(layer_class):
    """A class of Keras that reads time backwards behind its own work."""

    class Flip(layer_class):
        def call(self, inputs):
            return ops.flip(super().call(inputs), axis=1)

    return Flip


@pytest.mark.parametrize(
    ("layer_class", "arguments"),
    [
        (layers.Identity, ()),
        (layers.Dense, (DIM,)),
        (layers.Conv1D, (DIM, 1)),
        (layers.Conv1D, (DIM, 2, 1, "causal")),
    ],
)
def test_a_class_that_derives_from_a_known_one_is_refused(layer_class, arguments):
    layer = flipping(layer_class)(*arguments, name="flip")
    message = (
        "^'flip' of type Flip may need other steps.*If it treats each step separately, list its "
        r"class: Stream\(model, pointwise=\[\.\.\.\]\)"
    )
    with pytest.raises(ValueError, match=message):
        Stream(of(layer))


def test_a_recurrent_layer_with_a_loop_of_its_own_is_refused():
    class Flip(layers.GRU):
        def call(self, sequences, initial_state=None, mask=None, training=False):
            return ops.flip(super().call(sequences, initial_state, mask, training), axis=1)

    with pytest.raises(ValueError, match="^'flip' of type Flip may need other steps"):
        Stream(of(Flip(DIM, return_sequences=True, name="flip")))


class OwnCall(CoffeeLayer):
    def call(self, inputs, initial_state=None, mask=None, training=None, inputs_mask=None):
        return 2 * super().call(inputs, initial_state, mask, training, inputs_mask)


def test_a_recurrent_layer_with_a_call_of_its_own_is_refused():
    message = "^'own' of type OwnCall may need other steps.*an `advance` of its own"
    with pytest.raises(ValueError, match=message):
        Stream(of(OwnCall(2, name="own")))


def test_a_recurrent_layer_with_a_call_and_an_advance_of_its_own_has_a_state():
    class OwnBoth(OwnCall):
        def advance(self, inputs, state, mask=None, reset=None):
            outputs, state = super().advance(inputs, state, mask, reset)
            return 2 * outputs, state

    assert list(assert_streams(of(OwnBoth(2, name="own")), X, BLOCKS)) == ["own"]


def test_a_class_that_derives_from_a_known_one_may_be_declared():
    class Doubled(layers.Identity):
        def call(self, inputs):
            return 2 * inputs

    assert_streams(of(CoffeeLayer(2), Doubled()), X, BLOCKS, pointwise=[Doubled])


@pytest.mark.parametrize("layer", [layers.SpatialDropout1D(0.5), layers.ReversibleEmbedding(6, 2)])
def test_classes_of_keras_that_derive_from_known_ones_are_known(layer):
    symbols = keras.Input((None,), dtype="int32")
    x = symbols if isinstance(layer, layers.Embedding) else layers.Embedding(6, 2)(symbols)
    assert_streams(keras.Model(symbols, CoffeeLayer(2, name="coffee")(layer(x))), TOKENS, BLOCKS)


@pytest.mark.parametrize("key", [np.s_[:, ::-1], np.s_[:, -1], np.s_[..., 1:, :], 0])
def test_a_slice_of_steps_is_refused(key):
    message = (
        "^'get_item.* may need other steps .*, set return_sequences=False in the last rec.*r.$"
    )
    with pytest.raises(ValueError, match=message):
        Stream(of(lambda x: x[key]))


def in_training(layer):
    return lambda x: layer(x, training=True)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (in_training(layers.GRU(2, dropout=0.9, name="gru")), "gru"),
        (in_training(layers.BatchNormalization(name="norm")), "norm"),
        (lambda x: layers.Dropout(0.5, name="drop")(layers.GRU(2)(x), training=True), "drop"),
        (in_training(keras.Sequential([layers.Dropout(0.5)], name="inner")), "inner"),
    ],
)
def test_training_in_the_model_is_refused(call, name):
    message = f"^'{name}' is called with training=True in the model.*Build the model without it"
    with pytest.raises(ValueError, match=message):
        Stream(of(call))


class Inner(keras.Model):
    pass


class Outer(layers.Wrapper):
    def call(self, inputs):
        return self.layer(inputs)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.parametrize(
    "place", ["behind the last output", "wrapper", "wrappers", "Sequential", "declared"]
)
def test_training_inside_of_a_model_that_runs_as_one_piece_is_refused(place):
    shape = (None, DIM) if place == "declared" else (DIM,)
    inputs = keras.Input(shape)
    model = Inner(inputs, layers.Dropout(0.5, name="drop")(inputs, training=True))
    calls = {
        "behind the last output": [layers.GRU(DIM), model],
        "wrapper": [layers.TimeDistributed(model)],
        "wrappers": [layers.TimeDistributed(Outer(model))],
        "Sequential": [layers.GRU(DIM), keras.Sequential([keras.Input(shape), model])],
        "declared": [model],
    }[place]
    message = "^'drop' is called with training=True in the model.*Build the model without it"
    with pytest.raises(ValueError, match=message):
        Stream(of(*calls), pointwise=[Inner])


@pytest.mark.parametrize("place", ["wrapper", "wrappers", "behind the last output", "model"])
def test_a_stateful_layer_inside_of_what_runs_as_one_piece_is_refused(place):
    gru = layers.GRU(DIM, stateful=True, name="gru")
    inputs = keras.Input(batch_shape=(BATCH, None, 4, DIM))
    x = layers.TimeDistributed(layers.GRU(DIM))(inputs)
    frames = keras.Input(batch_shape=(BATCH, 4, DIM))
    if place == "wrapper":
        x = layers.TimeDistributed(keras.Sequential([gru]))(inputs)
    elif place == "wrappers":
        x = layers.TimeDistributed(Outer(keras.Sequential([gru])))(inputs)
    elif place == "model":
        x = layers.TimeDistributed(keras.Model(frames, gru(frames)))(inputs)
    else:
        last = layers.RepeatVector(4)(layers.GRU(DIM)(x))
        x = keras.Sequential([keras.Sequential([gru])])(last)
    with pytest.raises(ValueError, match="^'gru' is stateful and would keep.*stateful=False"):
        Stream(keras.Model(inputs, x))


@pytest.mark.filterwarnings("ignore:Layer .* will therefore destroy the mask")
def test_a_mask_may_have_fewer_axes_than_what_it_masks():
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(6, DIM)(tokens)
    for layer in (layers.BatchNormalization(), layers.TimeDistributed(layers.Dense(2))):
        assert_streams(keras.Model(tokens, layer(x, None, tokens > 0)), TOKENS, BLOCKS)


def test_a_mask_without_time_is_refused():
    inputs = features()
    mask = ops.expand_dims(layers.GRU(DIM)(inputs), 1) > 0
    with pytest.raises(ValueError, match="combines steps with a tensor that has no axis of time"):
        Stream(keras.Model(inputs, layers.Softmax()(inputs, mask=mask)))


def test_training_may_be_false_for_layers_that_do_not_take_it():
    inputs = features()
    model = keras.Model(inputs, layers.Rescaling(2.0)(inputs, training=False))
    assert_streams(model, X, BLOCKS)


def test_inputs_may_be_given_by_name():
    inputs = features()
    inner = keras.Sequential([keras.Input((None, DIM)), layers.Dense(DIM)])
    x = CoffeeLayer(2, name="coffee")(inputs=inner(inputs=inputs))
    x = layers.Dense(2)(inputs=layers.GRU(2, return_sequences=True, name="gru")(sequences=x))
    assert list(assert_streams(keras.Model(inputs, x), X, BLOCKS)) == ["coffee", "gru"]


def test_a_recurrent_layer_of_keras_that_goes_backwards_is_refused():
    backwards = layers.LSTM(2, go_backwards=True, return_sequences=True, name="lstm")
    with pytest.raises(ValueError, match="'lstm' goes backwards.*can't follow a stream"):
        Stream(of(backwards))


def test_a_last_output_among_single_steps_is_refused():
    inputs = features()
    last = layers.GRU(DIM)(inputs)
    joined = layers.Add(name="joined")([inputs, layers.Reshape((1, DIM))(last)])
    with pytest.raises(ValueError, match="'joined' combines steps.*return_sequences=True"):
        Stream(keras.Model(inputs, joined))


@pytest.mark.parametrize("make", [CoffeeLayer, layers.LSTM], ids=lambda make: make.__name__)
def test_an_initial_state_in_the_model_is_refused(make):
    inputs = features()
    _, *state = make(2, return_state=True)(inputs)
    message = "'second' is given an initial_state.*that state of the stream"
    name = "inputs" if make is CoffeeLayer else "sequences"
    for given in ((inputs,), {}), ((), {name: inputs}):
        args, kwargs = given
        outputs = make(2, name="second")(*args, **kwargs, initial_state=state)
        with pytest.raises(ValueError, match=message):
            Stream(keras.Model(inputs, outputs))


def test_a_nested_model_given_another_rank_is_refused():
    inputs = keras.Input((None,))
    inner = keras.Sequential([keras.Input((None, 1)), layers.Dense(2)], name="inner")
    message = r"'inner' takes the shape \(None, None, 1\), but is called with \(None, None\).*axes"
    with pytest.raises(ValueError, match=message):
        Stream(keras.Model(inputs, inner(inputs)))


@pytest.mark.parametrize("mark", ["mask", "reset"])
def test_a_constant_mark_is_refused(mark):
    layer = CoffeeLayer(2, name="coffee")
    model = of(lambda x: layer(x, **{mark: np.ones((1, 1), bool)}))
    message = f"'coffee' is given a {mark} that is not made of the stream's inputs.*an input of"
    with pytest.raises(ValueError, match=message):
        Stream(model)


def test_two_states_of_one_name_are_refused():
    # PyTorch takes no weights of a layer with a dot in its name.
    recurrent = layers.LSTM(DIM, return_sequences=True, name="l"), Summing(name="l.1")
    with pytest.raises(ValueError, match="Two states of .* have the name 'l.1'. Rename a layer"):
        Stream(of(*recurrent))


@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_one_step_with_a_state_named_as_an_input_or_output_is_refused(name):
    stream = Stream(of(CoffeeLayer(2, name=name)))
    stream.step(X[:, 0], stream.get_initial_state(BATCH))
    with pytest.raises(ValueError, match=f"of one step of .* the name '{name}'. Rename a layer"):
        stream.as_model()


@pytest.mark.filterwarnings("ignore:Layer .* will therefore destroy the mask")
def test_a_mask_for_a_nested_model_alone_is_refused():
    inputs, mask = features(), keras.Input((None,), dtype="bool")
    inner = keras.Sequential([keras.Input((None, DIM)), CoffeeLayer(2)], name="inner")
    with pytest.raises(ValueError, match="'inner' is given a mask that its inputs do not carry"):
        Stream(keras.Model([inputs, mask], inner(inputs, mask=mask)))


class Doubling(keras.Model):
    def call(self, inputs):
        return 2 * inputs


class DoublingSequential(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs)


class DoublingFunctional(keras.Model):
    def __init__(self, inputs, outputs, **kwargs):
        super().__init__(inputs, outputs, **kwargs)

    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs)


def doubling_models():
    inputs = features()
    yield DoublingSequential([keras.Input((None, DIM)), CoffeeLayer(2)], name="doubling")
    yield DoublingFunctional(inputs, CoffeeLayer(2)(inputs), name="doubling")


def test_models_with_a_call_of_their_own_are_refused():
    with pytest.raises(TypeError, match="needs a keras.Sequential or a Functional.*Doubling"):
        Stream(Doubling())
    for model in doubling_models():
        with pytest.raises(ValueError, match="'doubling' has a `call` of its own"):
            Stream(model)
        with pytest.raises(ValueError, match="'doubling' has a `call` of its own"):
            Stream(of(model))
    with pytest.raises(ValueError, match=r"'doubling' of type Doubling may need other steps"):
        Stream(of(Doubling(name="doubling")))


def test_a_model_may_be_declared_to_treat_each_step_by_itself():
    assert_streams(of(CoffeeLayer(2), Doubling()), X, BLOCKS, pointwise=[Doubling])


def test_an_input_without_time_is_refused():
    inputs, scale = features(), keras.Input((), name="scale")
    model = keras.Model([inputs, scale], [CoffeeLayer(2)(inputs), -scale])
    with pytest.raises(ValueError, match=r"'scale' has the shape \(None,\).*time as their second"):
        Stream(model)


@pytest.mark.parametrize(
    "inputs", [X, [X], {"prices": X}, [X, Z, X]], ids=["array", "one", "dict", "three"]
)
def test_inputs_in_another_structure_are_errors(inputs):
    stream = Stream(shared()[0])
    message = r"takes the inputs \['inputs.0', 'inputs.1'\], received \['inputs.*in the structure"
    with pytest.raises(ValueError, match=message):
        stream(inputs, stream.get_initial_state(BATCH))


def test_a_state_instead_of_the_inputs_is_an_error():
    stream = Stream(keras.Sequential([keras.Input((None, 3)), CoffeeLayer(2, name="coffee")]))
    state = stream.get_initial_state(BATCH)
    with pytest.raises(ValueError, match=r"takes the inputs \['inputs'\], received .*coffee"):
        stream.step(state, X[:, 0])


def test_inputs_of_different_sizes_are_errors():
    stream = Stream(shared()[0])
    state = stream.get_initial_state(BATCH)
    for other in (Z[:1], Z[:, :1]):
        with pytest.raises(ValueError, match=r"same \(batch, steps\), received \[\(2, 7\), \("):
            stream([X, other], state)
    with pytest.raises(ValueError, match=r"same \(batch\), received \[\(2,\), \(1,\)\]"):
        stream.step([X[:, 0], Z[:1, 0]], state)
