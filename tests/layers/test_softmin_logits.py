import copy
import io
import json
import re
import zipfile

import h5py
import keras
import numpy as np
import pytest
from gradients import value_and_gradients
from keras import ops
from keras.src import testing

from keras_coffee.layers.softmin_logits import SoftminLogits
from keras_coffee.layers.symbol_embedding import SymbolEmbedding

VOCABULARY, DIM, TIME = 9, 16, 6
LARGEST = float(np.finfo("float32").max)
PLAIN, SQUARED = "euclidean", "squared_euclidean"
DISTANCES = [PLAIN, SQUARED]
SYMBOLS = np.random.default_rng(0).integers(VOCABULARY, size=(4, TIME), dtype="int32")

# float32 keeps 24 bits; a distance over D features and a logit over V symbols lose a few.
RELATIVE = 1e-5


def normal(*shape, scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def layer_for(table, **kwargs):
    embedding = SymbolEmbedding(*table.shape, embeddings_initializer="zeros")
    layer = SoftminLogits(embedding, **kwargs)
    layer.build((None, None, table.shape[1]))
    embedding.embeddings.assign(table)
    return layer


def evaluate(layer, outputs):
    """The logits as an array. On JAX in compiled code, since each new shape is compiled anyway."""
    if keras.backend.backend() == "jax":
        import jax

        return np.array(jax.jit(layer)(outputs))
    return ops.convert_to_numpy(layer(outputs))


def logits_and_gradients(outputs, table, cotangent, **kwargs):
    layer = layer_for(table, **kwargs)

    def loss(outputs, table, cotangent):
        logits, _ = layer.stateless_call([table], [], outputs)
        return ops.sum(ops.multiply(logits, cotangent))

    # One program for all of it: the logits are the gradient by the cotangent.
    _, (*gradients, logits) = value_and_gradients(loss, outputs, table, cotangent)
    return logits, gradients


def oracle(outputs, table, cotangent, distance=SQUARED):
    """The definition in float64, one explicit sum over the others for each symbol.

    Distances above the largest float32 are taken to be that.
    """
    outputs, table = outputs.astype("float64"), table.astype("float64")
    differences = outputs[..., None, :] - table
    squares = np.sum(differences**2, axis=-1)
    distances = np.minimum(squares if distance == SQUARED else np.sqrt(squares), LARGEST)
    logits, on_distances = np.empty_like(distances), np.zeros_like(distances)
    for symbol in range(len(table)):
        others = np.delete(-distances, symbol, axis=-1)
        peak = others.max(axis=-1, keepdims=True)
        weights = np.exp(others - peak)
        total = weights.sum(axis=-1, keepdims=True)
        # From left to right: at distances of 1e38 the logarithm would vanish next to the peak.
        logits[..., symbol] = -distances[..., symbol] - peak[..., 0] - np.log(total[..., 0])
        shares = np.insert(weights / total, symbol, -1.0, axis=-1)
        on_distances += cotangent[..., symbol, None] * shares
    if distance == SQUARED:
        # A square that is capped no longer moves.
        directions = 2 * differences * (squares <= LARGEST)[..., None]
    else:
        directions = differences / np.where(distances == 0, 1, distances)[..., None]
    on_differences = on_distances[..., None] * directions
    axes = tuple(range(outputs.ndim - 1))
    return logits, [on_differences.sum(axis=-2), -on_differences.sum(axis=axes)]


def assert_agrees_with_oracle(outputs, table, distance=SQUARED):
    cotangent = normal(*outputs.shape[:-1], len(table), seed=9)
    logits, gradients = logits_and_gradients(outputs, table, cotangent, distance=distance)
    expected, expected_gradients = oracle(outputs, table, cotangent, distance)
    largest = max(1.0, np.abs(outputs).max(), np.abs(table).max())
    # A logit is a difference of distances, and a gradient of squares as large as the outputs are.
    size, slope = (float(largest) ** 2, largest) if distance == SQUARED else (largest, 1.0)
    np.testing.assert_allclose(logits, expected, rtol=RELATIVE, atol=RELATIVE * size)
    for actual, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=10 * RELATIVE, atol=10 * RELATIVE * slope)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("symbols", [2, 9, 300])
@pytest.mark.parametrize("scale", [1.0, 100.0], ids="scale{}".format)
def test_values_and_gradients_agree_with_the_definition(symbols, scale, distance):
    outputs, table = normal(2, 5, 8, scale=scale), normal(symbols, 8, scale=scale, seed=1)
    if distance == SQUARED and scale == 100.0:
        # Where two are almost as near, a rounding of their squares, 1e-3, decides the gradient.
        outputs = table[np.arange(10).reshape(2, 5) % symbols] + 0.1 * outputs
    assert_agrees_with_oracle(outputs, table, distance)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("features", [1, 33])
def test_any_number_of_features(features, distance):
    assert_agrees_with_oracle(normal(1, 7, features), normal(5, features, seed=1), distance)


@pytest.mark.parametrize("exponent", [-30, -20, 20, 30])
def test_distances_whose_squares_leave_the_range(exponent):
    scale = 10.0**exponent
    outputs, table = normal(2, 3, 4, scale=scale), normal(5, 4, scale=scale, seed=1)
    assert_agrees_with_oracle(outputs, table, PLAIN)


@pytest.mark.parametrize("exponent", [-30, -20, 8, 18, 20, 30])
def test_squares_that_leave_the_range(exponent):
    scale = 10.0**exponent
    outputs, table = normal(2, 3, 4, scale=scale), normal(5, 4, scale=scale, seed=1)
    # Each factor is moderate, so that what overflows would be the layer's doing.
    cotangent = normal(2, 3, 5, seed=9)
    logits, gradients = logits_and_gradients(outputs, table, cotangent, distance=SQUARED)
    expected, wanted = oracle(outputs, table, cotangent, SQUARED)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(logits / largest, expected / largest, atol=1e-6)
    for actual, exact in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(actual / scale, exact / scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distance", DISTANCES)
def test_outputs_on_a_vector_and_between_two(distance):
    table = normal(5, 4, seed=1)
    outputs = np.stack([table[2], table[0], (table[1] + table[3]) / 2])[None]
    outputs[0, 2] = 0.5 * (table[1].astype("float64") + table[3])
    assert_agrees_with_oracle(outputs, table, distance)


@pytest.mark.parametrize("distance", DISTANCES)
def test_equal_vectors_and_an_output_on_both(distance):
    table = normal(4, 3, seed=1)
    table[2] = table[1]
    assert_agrees_with_oracle(np.stack([table[1], table[0]])[None], table, distance)


@pytest.mark.parametrize("distance", DISTANCES)
def test_one_symbol_far_nearer_than_the_others(distance):
    # Here p rounds to 1 in float32, and log(p / (1 - p)) taken literally is infinite.
    table = np.diag([1.0, 300.0, 3000.0]).astype("float32")
    outputs = table[None, :, :]
    assert_agrees_with_oracle(outputs, table, distance)
    logits = evaluate(layer_for(table, distance=distance), outputs)
    assert logits[0, 2, 2] > 2000


EXTREME = [0.0, 1e-45, 1e-38, 1e-30, -1e-30, 1e-19, 1.0, 1e19, 1e30, -1e30, 3e38, -3e38, LARGEST]


@pytest.mark.parametrize("distance", DISTANCES)
def test_finite_for_every_finite_output_and_table(distance):
    table = np.array([[0, 0], [1, 1], [3e38, -3e38], [-LARGEST, -LARGEST], [1e-38, 0]], "float32")
    outputs = np.array([[[x, y] for x in EXTREME for y in EXTREME]], "float32")
    ones = np.ones((1, 169, 5), "float32")
    logits, gradients = logits_and_gradients(outputs, table, ones, distance=distance)
    assert np.isfinite(logits).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    expected, _ = oracle(outputs, table, ones, distance)
    size = np.maximum(np.abs(outputs).max(axis=-1, keepdims=True), 1.0).astype("float64")
    if distance == SQUARED:
        size = np.minimum(size**2, LARGEST)
    np.testing.assert_allclose(logits / size, expected / size, atol=1e-6)


def test_the_gradient_at_distance_zero_is_that_of_the_other_symbols():
    table = np.array([[1.0, 2.0], [4.0, 6.0]], "float32")
    cotangent = np.array([[[1.0, 0.0]]], "float32")
    for distance, logit, gradient in ((PLAIN, 5.0, [-0.6, -0.8]), (SQUARED, 25.0, [-6.0, -8.0])):
        logits, (on_output, _) = logits_and_gradients(
            table[None, :1], table, cotangent, distance=distance
        )
        np.testing.assert_allclose(logits, [[[logit, -logit]]], rtol=1e-6)
        np.testing.assert_allclose(on_output, [[gradient]], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("distance", DISTANCES)
def test_what_is_no_number_comes_out_as_nan(bad, distance):
    outputs, table = normal(2, 3, 4), normal(5, 4, seed=1)
    layer = layer_for(table, distance=distance)
    clean = evaluate(layer, outputs)
    outputs[1, 0, 2] = bad
    clean[1, 0] = np.nan
    np.testing.assert_array_equal(evaluate(layer, outputs), clean)


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_nan_in_the_table_reaches_every_logit(distance):
    table = normal(5, 4, seed=1)
    for symbol in (0, 3):
        broken = table.copy()
        broken[symbol, 1] = np.nan
        layer = layer_for(broken, distance=distance)
        assert np.isnan(evaluate(layer, normal(2, 3, 4))).all()


@pytest.mark.parametrize("last", [1, TIME])
def test_last_keeps_the_last_positions(last):
    outputs, table = normal(2, TIME, DIM), normal(VOCABULARY, DIM, seed=1)
    whole = evaluate(layer_for(table), outputs)
    layer = layer_for(table, last=last)
    np.testing.assert_allclose(evaluate(layer, outputs), whole[:, -last:], rtol=1e-5, atol=1e-6)
    assert layer.compute_output_shape((None, TIME, DIM)) == (None, last, VOCABULARY)
    assert layer.compute_output_shape((None, None, DIM)) == (None, last, VOCABULARY)


def test_outputs_without_a_time_axis():
    outputs, table = normal(2, TIME, DIM), normal(VOCABULARY, DIM, seed=1)
    layer = layer_for(table)
    whole, one = evaluate(layer, outputs), evaluate(layer, outputs[:, 0])
    np.testing.assert_allclose(one, whole[:, 0], rtol=1e-5, atol=1e-6)
    assert layer.compute_output_shape((None, DIM)) == (None, VOCABULARY)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
def test_low_precision_is_computed_in_float32_and_cast_back(dtype):
    embedding = SymbolEmbedding(VOCABULARY, DIM, dtype=dtype)
    layer = SoftminLogits(embedding, dtype=dtype)
    outputs = ops.cast(normal(2, 3, DIM), layer.compute_dtype)
    layer.build(outputs.shape)
    logits = evaluate(layer, outputs)
    assert keras.backend.standardize_dtype(logits.dtype) == layer.compute_dtype
    exact, table = (
        ops.convert_to_numpy(ops.cast(x, "float32")) for x in (outputs, embedding.table())
    )
    expected, _ = oracle(exact, table, np.zeros((2, 3, VOCABULARY)))
    rounding = 2.0**-8 if layer.compute_dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(logits.astype("float32"), expected, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_low_precision_stays_finite(dtype):
    layer = SoftminLogits(SymbolEmbedding(VOCABULARY, DIM), dtype=dtype)
    outputs = np.array([1e30, -3e38, LARGEST, 1e5], "float32")[None, :, None] * np.ones(DIM)
    layer.build(outputs.shape)
    logits = evaluate(layer, outputs.astype("float32")).astype("float32")
    assert np.isfinite(logits).all()


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 by default")
def test_float64_stays_float64():
    outputs, table = normal(2, 3, 4).astype("float64"), normal(5, 4, seed=1).astype("float64")
    layer = SoftminLogits(SymbolEmbedding(5, 4, dtype="float64"), dtype="float64")
    layer.build((None, None, 4))
    layer.embedding.embeddings.assign(table)
    logits = ops.convert_to_numpy(layer(ops.convert_to_tensor(outputs, dtype="float64")))
    assert logits.dtype == "float64"
    expected, _ = oracle(outputs, table, np.zeros((2, 3, 5)))
    np.testing.assert_allclose(logits, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.filterwarnings("ignore:The SoftminLogits .* was made from a config:UserWarning")
class TestSoftminLogitsAsALayer(testing.TestCase):
    def test_layer_contract(self):
        self.run_layer_test(
            SoftminLogits,
            init_kwargs={"embedding": SymbolEmbedding(VOCABULARY, DIM), "last": 2},
            input_shape=(4, TIME, DIM),
            expected_output_shape=(4, 2, VOCABULARY),
            expected_num_trainable_weights=1,
            supports_masking=False,
        )


def sequential(*, with_input=True, unit_symbol=0):
    embedding = SymbolEmbedding(VOCABULARY, DIM, unit_symbol=unit_symbol)
    inputs = [keras.Input((TIME,), dtype="int32")] if with_input else []
    dense = keras.layers.Dense(DIM, use_bias=False)
    model = keras.Sequential([*inputs, embedding, dense, SoftminLogits(embedding, last=1)])
    model(SYMBOLS)
    return model


def lazy_sequential():
    return sequential(with_input=False)


def functional():
    embedding = SymbolEmbedding(VOCABULARY, DIM, unit_symbol=0)
    inputs = keras.Input((None,), dtype="int32")
    vectors = embedding(inputs)
    hidden = vectors + keras.layers.Dense(DIM, use_bias=False)(vectors)
    return keras.Model(inputs, SoftminLogits(embedding)(hidden))


def nested():
    embedding = SymbolEmbedding(VOCABULARY, DIM, unit_symbol=0)
    inputs = keras.Input((TIME,), dtype="int32")
    body = keras.Sequential([inputs, embedding, keras.layers.Dense(DIM, use_bias=False)])
    return keras.Sequential([inputs, body, SoftminLogits(embedding)])


def head_in_a_model_of_its_own():
    embedding = SymbolEmbedding(VOCABULARY, DIM, unit_symbol=0)
    dense = keras.layers.Dense(DIM, use_bias=False)
    head = keras.Sequential([keras.Input((TIME, DIM)), dense, SoftminLogits(embedding)])
    return keras.Sequential([keras.Input((TIME,), dtype="int32"), embedding, head])


def layers_of(model, kind):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from layers_of(layer, kind)
        elif isinstance(layer, kind):
            yield layer


def assert_tied(model, parameters=8 * DIM + DIM**2):
    (embedding,), (logits,) = (list(layers_of(model, x)) for x in (SymbolEmbedding, SoftminLogits))
    assert logits.embedding is embedding
    assert model.count_params() == parameters
    assert len(model.trainable_variables) == 2


MODELS = [sequential, lazy_sequential, functional, nested, head_in_a_model_of_its_own]


@pytest.mark.parametrize("make", MODELS)
def test_saved_and_loaded_models_are_tied_and_predict_the_same(make, tmp_path):
    model = make()
    assert_tied(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_tied(loaded)
    np.testing.assert_array_equal(*(x.predict(SYMBOLS, verbose=0) for x in (model, loaded)))


@pytest.mark.parametrize(
    "copied",
    [
        lambda model: keras.models.model_from_json(model.to_json()),
        lambda model: type(model).from_config(model.get_config()),
        keras.models.clone_model,
    ],
    ids=["json", "config", "clone"],
)
@pytest.mark.parametrize("make", [sequential, lazy_sequential, functional, nested])
def test_copies_are_tied_among_themselves(make, copied):
    model = make()
    copy = copied(model)
    copy(SYMBOLS)
    assert_tied(copy)
    (embedding,), (original,) = (list(layers_of(x, SymbolEmbedding)) for x in (copy, model))
    assert embedding is not original
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(*(x.predict(SYMBOLS, verbose=0) for x in (model, copy)))


def test_deep_copies_are_tied():
    model = sequential()
    copied = copy.deepcopy(model)
    assert_tied(copied)
    np.testing.assert_array_equal(*(x.predict(SYMBOLS, verbose=0) for x in (model, copied)))


def test_a_clone_that_cannot_be_tied_says_so():
    with pytest.warns(UserWarning, match=r"no SymbolEmbedding named.*vectors of its own.*nested"):
        keras.models.clone_model(head_in_a_model_of_its_own())


def test_the_vectors_are_saved_once(tmp_path):
    sequential().save(tmp_path / "model.keras")
    shapes = []
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as weights:
            weights.visititems(lambda _, x: shapes.append(getattr(x, "shape", None)))
    assert sorted(shape for shape in shapes if shape) == [(8, DIM), (DIM, DIM)]


def test_weights_files_load(tmp_path):
    model, other = sequential(), sequential()
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(*(x.predict(SYMBOLS, verbose=0) for x in (model, other)))


def test_training_moves_the_one_table():
    model = sequential(unit_symbol=None)
    before = model.get_weights()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled = keras.backend.backend() != "torch"
    # Squared distances have steeper slopes than plain ones: a rate of 1 leaps at times.
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=compiled)
    history = model.fit(SYMBOLS, SYMBOLS[:, -1:], epochs=20, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    after = model.get_weights()
    assert [x.shape for x in after] == [x.shape for x in before] == [(9, DIM), (DIM, DIM)]
    table = ops.convert_to_numpy(model.layers[-1].embedding.table())
    np.testing.assert_array_equal(table, after[0])
    assert np.abs(after[0] - before[0]).max() > 0.01


def test_a_head_alone_keeps_its_vectors(tmp_path):
    embedding = SymbolEmbedding(VOCABULARY, DIM)
    model = keras.Sequential([keras.Input((TIME, DIM)), SoftminLogits(embedding)])
    assert model.count_params() == VOCABULARY * DIM
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="vectors of its own"):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    outputs = normal(2, TIME, DIM)
    np.testing.assert_array_equal(*(x.predict(outputs, verbose=0) for x in (model, loaded)))


def test_a_layer_outside_a_graph_takes_the_vectors_of_its_config():
    embedding = SymbolEmbedding(5, 4, embeddings_initializer="ones")
    layer = SoftminLogits(embedding, last=2, distance=PLAIN)
    layer(normal(1, 3, 4))
    restored = SoftminLogits.from_config(layer.get_config())
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(x(normal(1, 3, 4))) for x in (layer, restored))
    )
    assert restored.get_config() == layer.get_config()
    assert restored.distance == PLAIN


def test_distances_are_squared_by_default():
    outputs, table = normal(2, 3, 4), normal(5, 4, seed=1)
    layers = layer_for(table), layer_for(table, distance=SQUARED)
    np.testing.assert_array_equal(*(evaluate(layer, outputs) for layer in layers))


def test_a_config_from_before_there_was_a_choice_has_plain_distances():
    config = SoftminLogits(SymbolEmbedding(5, 4)).get_config()
    del config["distance"]
    assert SoftminLogits.from_config(config).distance == PLAIN


def test_a_file_from_before_there_was_a_choice_gives_the_same_numbers(tmp_path):
    embedding = SymbolEmbedding(VOCABULARY, DIM)
    layers = [keras.Input((TIME,), dtype="int32"), embedding, keras.layers.Dense(DIM)]
    model = keras.Sequential([*layers, SoftminLogits(embedding, distance=PLAIN)])
    model.save(tmp_path / "new.keras")
    with (
        zipfile.ZipFile(tmp_path / "new.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        for name in new.namelist():
            content = new.read(name)
            if name == "config.json":
                config = json.loads(content)
                del config["config"]["layers"][-1]["config"]["distance"]
                content = json.dumps(config)
            old.writestr(name, content)
    loaded = keras.models.load_model(tmp_path / "old.keras")
    np.testing.assert_array_equal(*(x.predict(SYMBOLS, verbose=0) for x in (model, loaded)))


def test_no_weights_of_its_own():
    embedding = SymbolEmbedding(VOCABULARY, DIM)
    layer = SoftminLogits(embedding)
    layer.build((None, TIME, DIM))
    assert embedding.built
    assert [id(x) for x in layer.weights] == [id(embedding.embeddings)]


def test_other_features_than_the_embeddings_are_an_error():
    layer = SoftminLogits(SymbolEmbedding(VOCABULARY, DIM))
    message = r"D = 16, the `dim` of its embedding; received the shape \(2, 3, 8\)"
    with pytest.raises(ValueError, match=message):
        layer(normal(2, 3, 8))
    with pytest.raises(ValueError, match=message):
        layer.compute_output_shape((2, 3, 8))


def test_more_last_positions_than_there_are_is_an_error():
    layer = SoftminLogits(SymbolEmbedding(VOCABULARY, DIM), last=5)
    message = r"keeps the last 5 positions; received the shape \(2, 3, 16\), which has only 3"
    with pytest.raises(ValueError, match=message):
        layer(normal(2, 3, DIM))
    layer(normal(2, 5, DIM))
    with pytest.raises(ValueError, match=message):
        layer(normal(2, 3, DIM))


def test_last_needs_a_time_axis():
    layer = SoftminLogits(SymbolEmbedding(VOCABULARY, DIM), last=1)
    with pytest.raises(ValueError, match=r"expects \(B, T, D\) with D = 16.*received the shape"):
        layer(normal(2, DIM))


@pytest.mark.parametrize("last", [0, -1, 1.0, True, "1"])
def test_last_is_a_positive_integer(last):
    with pytest.raises(ValueError, match="`last` must be a positive integer, received"):
        SoftminLogits(SymbolEmbedding(VOCABULARY, DIM), last=last)


@pytest.mark.parametrize("distance", ["cosine", None, ["euclidean"]])
def test_an_unknown_distance_is_an_error(distance):
    message = r"`distance` must be one of \('euclidean', 'squared_euclidean'\), received "
    with pytest.raises(ValueError, match=message + re.escape(repr(distance))):
        SoftminLogits(SymbolEmbedding(VOCABULARY, DIM), distance=distance)


@pytest.mark.parametrize("embedding", [None, keras.layers.Embedding(9, 16), np.eye(3)])
def test_only_a_symbol_embedding_will_do(embedding):
    with pytest.raises(TypeError, match="tied to the SymbolEmbedding of the model; received"):
        SoftminLogits(embedding)


def test_one_symbol_has_nothing_to_be_compared_with():
    with pytest.raises(ValueError, match="vocabulary_size=1. Use at least two symbols"):
        SoftminLogits(SymbolEmbedding(1, DIM))


def test_an_empty_batch_has_empty_logits():
    embedding = SymbolEmbedding(5, 3)
    assert tuple(SoftminLogits(embedding)(np.zeros((0, 4, 3), "float32")).shape) == (0, 4, 5)


def test_complex_vectors_are_refused():
    layer = SoftminLogits(SymbolEmbedding(4, 3))
    with pytest.raises(TypeError, match="The input of .* must be real, received dtype complex64"):
        layer(np.ones((2, 5, 3), "complex64"))
