import keras
import numpy as np
import pytest
from gradients import value_and_gradients
from keras import ops
from keras.src import testing

from keras_coffee.initializers import OrthonormalSymbols
from keras_coffee.layers.symbol_embedding import SymbolEmbedding

VOCABULARY, DIM = 9, 16
SYMBOLS = np.random.default_rng(0).integers(VOCABULARY, size=(4, 7), dtype="int32")


def embedding_and_table(dim=DIM, **kwargs):
    embedding = SymbolEmbedding(VOCABULARY, dim, **kwargs)
    embedding.build()
    return embedding, ops.convert_to_numpy(embedding.table())


def compiled(embedding):
    """The layer in compiled code, where the values of the symbols aren't known."""
    model = keras.Sequential([embedding])
    model.compile(jit_compile=keras.backend.backend() != "torch")
    return lambda symbols: model.predict(symbols, verbose=0)


# Keras' own test trains on a generator and doesn't turn shuffling off.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
class TestSymbolEmbeddingAsALayer(testing.TestCase):
    def test_layer_contract(self):
        self.run_layer_test(
            SymbolEmbedding,
            init_kwargs={
                "vocabulary_size": VOCABULARY,
                "dim": 3,
                "embeddings_regularizer": "l2",
                "embeddings_constraint": "non_neg",
            },
            input_data=SYMBOLS,
            expected_output_shape=(4, 7, 3),
            expected_num_trainable_weights=1,
            expected_num_losses=1,
            supports_masking=False,
        )

    def test_layer_contract_with_a_unit_symbol(self):
        self.run_layer_test(
            SymbolEmbedding,
            init_kwargs={"vocabulary_size": VOCABULARY, "dim": 3, "unit_symbol": 4},
            input_data=SYMBOLS,
            expected_output_shape=(4, 7, 3),
            expected_num_trainable_weights=1,
            supports_masking=False,
        )


@pytest.mark.parametrize("shape", [(), (1,), (0, 5), (4, 7), (2, 3, 4)], ids=str)
def test_each_symbol_gets_its_row(shape):
    embedding, table = embedding_and_table()
    symbols = np.random.default_rng(1).integers(VOCABULARY, size=shape)
    vectors = ops.convert_to_numpy(embedding(symbols))
    np.testing.assert_array_equal(vectors, table[symbols])
    assert embedding.compute_output_shape(shape) == (*shape, DIM) == vectors.shape


@pytest.mark.parametrize("unit_symbol", [0, 4, VOCABULARY - 1])
def test_the_unit_symbol_is_ones_and_leaves_the_other_rows_as_drawn(unit_symbol):
    embedding, table = embedding_and_table(
        unit_symbol=unit_symbol, embeddings_initializer=OrthonormalSymbols(seed=3)
    )
    drawn = ops.convert_to_numpy(OrthonormalSymbols(seed=3)((VOCABULARY, DIM)))
    drawn[unit_symbol] = 1.0
    np.testing.assert_array_equal(table, drawn)
    np.testing.assert_array_equal(ops.convert_to_numpy(embedding(SYMBOLS)), drawn[SYMBOLS])


def test_parameters_are_counted_as_in_the_paper():
    assert embedding_and_table()[0].count_params() == 144
    fixed, _ = embedding_and_table(unit_symbol=0)
    assert fixed.count_params() == 128
    (weight,) = fixed.trainable_variables
    assert (weight.name, tuple(weight.shape)) == ("embeddings", (8, 16))


def test_the_default_table_is_orthonormal():
    _, table = embedding_and_table()
    np.testing.assert_allclose(table @ table.T, np.eye(VOCABULARY), atol=1e-6)


@pytest.mark.parametrize("unit_symbol", [None, 0, 4, VOCABULARY - 1])
def test_gradients_agree_with_a_loop_in_float64(unit_symbol):
    embedding, table = embedding_and_table(unit_symbol=unit_symbol)
    generator = np.random.default_rng(2)
    on_vectors = generator.normal(size=(4, 7, DIM)).astype("float32")
    on_table = generator.normal(size=(VOCABULARY, DIM)).astype("float32")
    weight = np.delete(table, [] if unit_symbol is None else unit_symbol, axis=0)

    def loss(weight):
        vectors, _ = embedding.stateless_call([weight], [], SYMBOLS)
        with keras.StatelessScope([(embedding.embeddings, weight)]):
            whole = embedding.table()
        return ops.sum(ops.multiply(vectors, on_vectors)) + ops.sum(ops.multiply(whole, on_table))

    value, (gradient,) = value_and_gradients(loss, weight)
    expected = on_table.astype("float64")
    for symbol, cotangent in zip(SYMBOLS.ravel(), on_vectors.reshape(-1, DIM), strict=True):
        expected[symbol] += cotangent
    products = table[SYMBOLS].astype("float64") * on_vectors, table.astype("float64") * on_table
    expected = np.delete(expected, [] if unit_symbol is None else unit_symbol, axis=0)
    # The products nearly cancel in some draws of the table; rounding is relative to their sizes.
    sizes = sum(abs(x).sum() for x in products)
    np.testing.assert_allclose(value, sum(x.sum() for x in products), rtol=0, atol=1e-6 * sizes)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


@pytest.mark.parametrize("outside", [-1, VOCABULARY, -(2**31), 2**40, 0.5, -0.5, np.nan, np.inf])
@pytest.mark.parametrize("container", [list, np.array])
def test_known_symbols_outside_the_vocabulary_are_an_error(outside, container):
    embedding, _ = embedding_and_table(name="words")
    with pytest.raises(ValueError, match=rf"'words' knows the symbols 0, …, 8; received {outside}"):
        embedding(container([[0, 3], [outside, 8]]))


def test_an_array_of_names_is_an_error():
    embedding, _ = embedding_and_table()
    with pytest.raises(ValueError, match=r"takes integers; received an array of dtype <U1"):
        embedding(np.array(["a", "b"]))


def test_lists_are_symbols_too():
    embedding, table = embedding_and_table()
    vectors = ops.convert_to_numpy(embedding([[0, 3], [8, 1]]))
    np.testing.assert_array_equal(vectors, table[[[0, 3], [8, 1]]])


@pytest.mark.parametrize("unit_symbol", [None, 0])
@pytest.mark.parametrize(
    ("dtype", "outside"),
    [
        ("int32", [-1, -2, -VOCABULARY, VOCABULARY, -(2**31), 2**31 - 1]),
        ("uint8", [VOCABULARY, 255]),
        ("float32", [-1.0, -0.5, 0.5, 8.5, 9.0, 1e10, -1e10, np.inf, -np.inf, np.nan]),
    ],
)
def test_unknown_symbols_outside_the_vocabulary_are_nan(dtype, outside, unit_symbol):
    embedding, table = embedding_and_table(unit_symbol=unit_symbol)
    symbols = np.array([[0, symbol, VOCABULARY - 1] for symbol in outside], dtype)
    vectors = compiled(embedding)(symbols)
    assert np.isnan(vectors[:, 1]).all()
    expected = np.broadcast_to(table[[0, VOCABULARY - 1]], vectors[:, [0, 2]].shape)
    np.testing.assert_array_equal(vectors[:, [0, 2]], expected)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX cuts int64 to int32 itself")
def test_long_symbols_do_not_wrap_around():
    embedding, _ = embedding_and_table()
    symbols = np.array([[2**32 + 1, 2**32, -(2**32)]])
    assert np.isnan(compiled(embedding)(symbols)).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int64", "float32", "float16"])
def test_any_dtype_that_holds_the_symbols(dtype):
    embedding, table = embedding_and_table()
    np.testing.assert_array_equal(compiled(embedding)(SYMBOLS.astype(dtype)), table[SYMBOLS])


def test_a_vocabulary_larger_than_the_symbols_dtype():
    embedding = SymbolEmbedding(70_000, 2, embeddings_initializer="standard_normal")
    embedding.build()
    table = ops.convert_to_numpy(embedding.table())
    symbols = np.array([[0, 255]], "uint8")
    np.testing.assert_array_equal(compiled(embedding)(symbols), table[symbols])


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 by default")
def test_float64_vectors_and_symbols_stay_exact():
    embedding = SymbolEmbedding(VOCABULARY, 1, embeddings_initializer="zeros", dtype="float64")
    embedding.build()
    embedding.embeddings.assign(np.full((VOCABULARY, 1), 1 / 3))
    # Rounded to float32, the second one would be the symbol 8.
    symbols = ops.convert_to_tensor(np.array([8.0, 8.0 + 1e-12]), dtype="float64")
    np.testing.assert_array_equal(ops.convert_to_numpy(embedding(symbols)), [[1 / 3], [np.nan]])


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_low_precision_rounds_vectors_but_not_symbols(dtype):
    embedding = SymbolEmbedding(
        1001, 4, unit_symbol=0, embeddings_initializer="uniform", dtype="mixed_bfloat16"
    )
    symbols = np.array([[257, 1000, 999, 0]], dtype)
    vectors = embedding(symbols)
    assert keras.backend.standardize_dtype(vectors.dtype) == "bfloat16"
    assert keras.backend.standardize_dtype(embedding.embeddings.dtype) == "float32"
    assert keras.backend.standardize_dtype(embedding.table().dtype) == "float32"
    table = ops.convert_to_numpy(embedding.table())[symbols.astype(int)]
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(vectors, "float32")), table, rtol=2.0**-8
    )


def test_unknown_batch_and_time():
    embedding, table = embedding_and_table()
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, embedding(inputs))
    assert model.output_shape == (None, None, DIM)
    for shape in [(2, 3), (5, 1)]:
        symbols = SYMBOLS.ravel()[: np.prod(shape)].reshape(shape)
        np.testing.assert_array_equal(model.predict(symbols, verbose=0), table[symbols])


def test_regularizer_constraint_and_training_act_on_the_learned_rows_only():
    embedding, before = embedding_and_table(
        unit_symbol=2,
        embeddings_regularizer=keras.regularizers.L2(0.5),
        embeddings_constraint="non_neg",
    )
    (loss,) = embedding.losses
    learned = np.delete(before, 2, axis=0)
    np.testing.assert_allclose(ops.convert_to_numpy(loss), 0.5 * np.sum(learned**2), rtol=1e-5)
    model = keras.Sequential([embedding])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(SYMBOLS, np.zeros((4, 7, DIM), "float32"), verbose=0)
    after = ops.convert_to_numpy(embedding.table())
    np.testing.assert_array_equal(after[2], 1.0)
    assert after.min() == 0.0
    assert np.abs(after - before).max() > 0.01


def test_config_round_trip():
    embedding = SymbolEmbedding(
        5,
        3,
        unit_symbol=1,
        embeddings_initializer=OrthonormalSymbols(seed=7),
        embeddings_regularizer="l1",
        embeddings_constraint="stable",
        name="words",
    )
    config = keras.saving.serialize_keras_object(embedding)
    restored = keras.saving.deserialize_keras_object(config)
    assert restored.get_config() == embedding.get_config()
    symbols = np.arange(5)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(restored(symbols)), ops.convert_to_numpy(embedding(symbols))
    )


@pytest.mark.parametrize("size", [0, -1, 2.0, "9", True, None])
@pytest.mark.parametrize("name", ["vocabulary_size", "dim"])
def test_sizes_are_positive_integers(name, size):
    sizes = {"vocabulary_size": 9, "dim": 16, name: size}
    with pytest.raises(ValueError, match=rf"`{name}` must be a positive integer, received"):
        SymbolEmbedding(**sizes)


def test_sizes_may_be_numpy_integers():
    config = SymbolEmbedding(np.int64(9), np.int32(16), unit_symbol=np.int64(0)).get_config()
    assert type(config["dim"]) is type(config["vocabulary_size"]) is type(config["unit_symbol"])
    assert type(config["dim"]) is int


@pytest.mark.parametrize("symbol", [-1, 9, 1.0, True, "a"])
def test_the_unit_symbol_is_one_of_the_vocabulary(symbol):
    with pytest.raises(ValueError, match=r"`unit_symbol` must be None or an integer in \[0, 9\)"):
        SymbolEmbedding(9, 16, unit_symbol=symbol)


def test_a_unit_symbol_leaves_something_to_learn():
    with pytest.raises(ValueError, match="vocabulary_size=1.*unit_symbol=None"):
        SymbolEmbedding(1, 16, unit_symbol=0)


def test_no_table_before_build():
    with pytest.raises(ValueError, match="'words' do not exist yet.*build"):
        SymbolEmbedding(9, 16, name="words").table()


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="Unknown initializer: 'orthonormal'"):
        SymbolEmbedding(9, 16, embeddings_initializer="orthonormal")
    with pytest.raises(ValueError, match="Unknown constraint: 'unit'"):
        SymbolEmbedding(9, 16, embeddings_constraint="unit")


@pytest.mark.parametrize("unit_symbol", [0, 2, 4, None])
def test_trains_when_compiled(unit_symbol):
    # The slice before symbol 0 is empty, and XLA on TensorFlow has no gradient of that.
    if keras.config.backend() == "torch":
        pytest.skip("eager")
    model = keras.Sequential([keras.Input((4,), dtype="int32"), SymbolEmbedding(5, 3, unit_symbol)])
    model.compile("sgd", "mse", jit_compile=True)
    symbols = np.arange(8).reshape(2, 4) % 5
    assert np.isfinite(model.train_on_batch(symbols, np.zeros((2, 4, 3))))


def test_complex_symbols_are_refused():
    symbols = ops.convert_to_tensor(np.ones((2, 5), "complex64"))
    with pytest.raises(TypeError, match="The symbols for .* must be real, received dtype complex6"):
        SymbolEmbedding(4, 3)(symbols)
