"""An image read in four directions: values and gradients in float64, copies, files, errors."""

import keras
import layer_oracle
import numpy as np
import pytest
from gradients import value_and_gradients
from keras import ops
from keras.src import testing
from recurrent import make, random_inputs, to_numpy
from rounding import Rounded, assert_agrees
from scans import precision

from keras_coffee import CoffeeLayer, S6Layer
from keras_coffee.layers import FourDirections

# Not square, so that rows can't be taken for columns.
SHAPE = BATCH, HEIGHT, WIDTH = 2, 9, 3
IMAGES = random_inputs(*SHAPE)
DIRECTIONS = ("rows", "columns", "rows_reversed", "columns_reversed")


def inner_layers():
    return {
        "coffee": make("coffee-all"),
        "s6": make("s6", return_sequences=False),
        "gru": keras.layers.GRU(4),
        # Outputs for all steps, and no `return_sequences` to ask for the last one alone.
        "sequential": keras.Sequential([keras.layers.Dense(4, "tanh"), make("coffee")]),
        "dense": keras.layers.Dense(4),
    }


@pytest.fixture(params=inner_layers())
def inner(request):
    return inner_layers()[request.param]


def copies(layer):
    return [getattr(layer, direction) for direction in DIRECTIONS]


def randomized(layer, shape=SHAPE):
    """Builds the layer and moves its weights off their special starting values."""
    layer.build((None, *shape[1:]))
    generator = np.random.default_rng(1)
    for weight in layer.weights:
        values = generator.normal(size=weight.shape)
        weight.assign(-2 / (1 + np.exp(values)) if weight.name == "transition" else values)
    return layer


def sequences(images):
    """What each copy reads, by NumPy."""
    columns = images.swapaxes(1, 2)
    rows, columns = (x.reshape(*x.shape[:2], -1) for x in (images, columns))
    return rows, columns, rows[:, ::-1], columns[:, ::-1]


def model_of(layer, *others):
    return keras.Sequential([keras.Input((HEIGHT, WIDTH)), layer, *others])


# Values and gradients.


def exact(layer, images, cotangent):
    """Outputs and gradients in float64: the copies' equations, put together by hand."""
    outputs, gradients, start = [], [], 0
    by_images = Rounded(np.zeros(images.shape))
    for direction, copy, sequence in zip(DIRECTIONS, copies(layer), sequences(images), strict=True):
        arrays = {w.name: np.float64(to_numpy(w)) for w in copy.weights}
        batch, length, dim = sequence.shape
        state = np.zeros((batch, dim, copy.n))
        by_outputs = np.zeros(sequence.shape)
        by_outputs[:, -1] = cotangent[:, start : start + dim]
        start += dim
        (found, _), by = layer_oracle.run(
            copy,
            {"inputs": np.float64(sequence), "initial_state": state, **arrays},
            (by_outputs, np.zeros(state.shape)),
            np.ones((batch, length), bool),
        )
        outputs.append(found[:, -1])
        gradients += [by[w.name] for w in copy.weights]
        by_images = by_images + in_the_image(by["inputs"], direction)
    return outputs, [*gradients, by_images]


def in_the_image(gradient, direction):
    if direction.endswith("reversed"):
        gradient = gradient[:, ::-1]
    if direction.startswith("columns"):
        parts = gradient.value, gradient.error
        gradient = Rounded(*(part.swapaxes(1, 2) for part in parts))
    return gradient


@pytest.mark.parametrize("name", ["coffee-all", "s6-all"])
def test_values_and_every_gradient_agree_with_the_equations(name):
    layer = randomized(FourDirections(make(name)))
    cotangent = random_inputs(BATCH, 2 * (HEIGHT + WIDTH), seed=2)
    weights = [to_numpy(w) for w in layer.weights]

    def loss(*tensors):
        outputs, _ = layer.stateless_call(list(tensors[:-1]), [], tensors[-1])
        return ops.sum(ops.multiply(outputs, cotangent))

    _, gradients = value_and_gradients(loss, *weights, IMAGES)
    outputs, expected = exact(layer, IMAGES, cotangent)
    split = np.cumsum([x.shape[1] for x in outputs])[:-1]
    actual = np.split(to_numpy(layer(IMAGES)), split, axis=1)
    names = [w.path for w in layer.weights] + ["images"]
    assert len(gradients) == len(expected) == len(names)
    for direction, *pair in zip(DIRECTIONS, actual, outputs, strict=True):
        assert_agrees(*pair, direction)
    for weight, *pair in zip(names, gradients, expected, strict=True):
        assert_agrees(*pair, weight)


def last_outputs(layer, images):
    """The last outputs of the copies, each called by itself."""
    outputs = [
        to_numpy(copy(np.ascontiguousarray(sequence)))
        for copy, sequence in zip(copies(layer), sequences(images), strict=True)
    ]
    return np.concatenate([x[:, -1] if x.ndim == 3 else x for x in outputs], axis=1)


def test_outputs_are_the_last_ones_of_the_copies(inner):
    layer = randomized(FourDirections(inner))
    expected = last_outputs(layer, IMAGES)
    np.testing.assert_allclose(to_numpy(layer(IMAGES)), expected, rtol=1e-5, atol=1e-6)
    assert layer.compute_output_shape(SHAPE) == expected.shape
    assert layer.compute_output_shape((None, HEIGHT, WIDTH)) == (None, expected.shape[1])


def test_channels_join_the_features():
    images = random_inputs(BATCH, 5, 3, 2)
    layer = randomized(FourDirections(make("coffee")), images.shape)
    assert [copy.gate.shape[0] for copy in copies(layer)] == [6, 10, 6, 10]
    assert layer.compute_output_shape(images.shape) == (BATCH, 2 * 2 * (5 + 3))
    expected = last_outputs(layer, images)
    np.testing.assert_allclose(to_numpy(layer(images)), expected, rtol=1e-5, atol=1e-6)


def test_a_pixel_reaches_its_row_and_its_column_alone():
    # The features of a CoffeeLayer know nothing of each other.
    layer = randomized(FourDirections(make("coffee")))
    changed = IMAGES.copy()
    changed[:, 4, 1] += 1
    differs = (to_numpy(layer(changed)) != to_numpy(layer(IMAGES))).any(0)
    rows, columns, rows_reversed, columns_reversed = np.split(differs, [3, 12, 15])
    for by_row, by_column in ((rows, columns), (rows_reversed, columns_reversed)):
        assert np.flatnonzero(by_row).tolist() == [1]
        assert np.flatnonzero(by_column).tolist() == [4]


@pytest.mark.parametrize(
    "layer, parameters",
    [
        (CoffeeLayer(n=2), 3_385),
        (CoffeeLayer(n=2, output_filter=True), 3_585),
        (S6Layer(n=2), 5_885),
        (S6Layer(n=16), 10_085),
    ],
    ids=["coffee", "coffee-filter", "s6-2", "s6-16"],
)
def test_parameters_of_the_papers_classifiers(layer, parameters):
    head = keras.layers.Dense(25, "gelu"), keras.layers.Dense(10)
    model = keras.Sequential([keras.Input((25, 25)), FourDirections(layer), *head])
    assert model.layers[0].output.shape == (None, 100)
    assert model.count_params() == parameters


def test_s6_sees_nothing_of_images_with_black_edges():
    """Its output is zero where its input is, so that of the last step is, whatever came before."""
    images = np.zeros(SHAPE, "float32")
    images[:, 1:-1, 1:-1] = np.abs(IMAGES[:, 1:-1, 1:-1])
    layer = FourDirections(S6Layer(2))
    np.testing.assert_array_equal(to_numpy(layer(images)), 0)
    assert np.all(to_numpy(layer(images - 0.4)) != 0)


# Copies.


def test_copies_and_weights_have_stable_names():
    layer = FourDirections(CoffeeLayer(2, name="coffee"), name="four")
    layer.build((None, HEIGHT, WIDTH))
    names = [f"{direction}_coffee" for direction in DIRECTIONS]
    assert [copy.name for copy in copies(layer)] == names
    weights = ("transition", "gate", "readout")
    expected = [f"four/{name}/{weight}" for name in names for weight in weights]
    assert [weight.path for weight in layer.weights] == expected


def all_differ(arrays):
    return all((a != b).any() for k, a in enumerate(arrays) for b in arrays[:k])


@pytest.mark.parametrize("again", [False, True], ids=["new", "from-config"])
def test_copies_start_with_different_weights(again):
    for inner, names in (
        (CoffeeLayer(2), ["gate", "readout"]),
        (S6Layer(2), ["input_projection", "step_projection"]),
        (keras.layers.Dense(4), ["kernel"]),
    ):
        layer = FourDirections(inner)
        layer = FourDirections.from_config(layer.get_config()) if again else layer
        layer.build((None, 5, 5))
        for name in names:
            assert all_differ([to_numpy(getattr(copy, name)) for copy in copies(layer)])


def test_copies_start_alike_from_an_initializer_with_a_seed():
    # As those of keras.layers.Bidirectional do.
    initializer = keras.initializers.RandomNormal(seed=1)
    layer = FourDirections(CoffeeLayer(2, gate_initializer=initializer))
    layer.build((None, 5, 5))
    gates = [to_numpy(copy.gate) for copy in copies(layer)]
    assert all((gate == gates[0]).all() for gate in gates)


def test_only_the_last_outputs_are_computed():
    for inner in (CoffeeLayer(2), keras.layers.GRU(4, return_sequences=True)):
        layer = FourDirections(inner)
        assert [copy.return_sequences for copy in copies(layer)] == 4 * [False]
        assert inner.return_sequences


def test_the_weights_of_a_layer_that_is_built_are_left_behind():
    given = CoffeeLayer(2)
    given(random_inputs(1, 4, 7))
    layer = FourDirections(given)
    assert not any(copy.built for copy in copies(layer))
    assert to_numpy(layer(IMAGES)).shape == (BATCH, 2 * (HEIGHT + WIDTH))
    assert not {id(w) for w in layer.weights} & {id(w) for w in given.weights}
    assert not any(
        np.array_equal(to_numpy(copy.gate), to_numpy(given.gate)) for copy in copies(layer)
    )


def test_losses_of_all_copies_are_collected():
    layer = FourDirections(CoffeeLayer(2, gate_regularizer="l2"))
    layer.build((None, HEIGHT, WIDTH))
    expected = [0.01 * (to_numpy(copy.gate) ** 2).sum() for copy in copies(layer)]
    np.testing.assert_allclose(to_numpy(layer.losses), expected, rtol=1e-5)


def test_copies_are_frozen_together_and_one_by_one():
    layer = FourDirections(CoffeeLayer(2))
    layer.build((None, HEIGHT, WIDTH))
    layer.columns.trainable = False
    trainable = [*layer.rows.weights, *layer.rows_reversed.weights, *layer.columns_reversed.weights]
    assert [w.path for w in layer.trainable_weights] == [w.path for w in trainable]
    again = FourDirections.from_config(layer.get_config())
    assert [copy.trainable for copy in copies(again)] == [True, False, True, True]
    layer.trainable = False
    assert layer.trainable_weights == []
    assert [copy.trainable for copy in copies(layer)] == 4 * [False]


def test_what_is_frozen_inside_a_copy_stays_so(tmp_path):
    inside = keras.Sequential([CoffeeLayer(2, trainable=False), keras.layers.Dense(3)])
    model = keras.Sequential([keras.Input(SHAPE[1:]), FourDirections(inside)])
    model.layers[0].rows.layers[1].trainable = False
    model.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    for other in (model, reloaded, keras.models.clone_model(model)):
        # Kernel and bias of three of the four dense layers.
        assert len(other.trainable_weights) == 6
        assert len(other.non_trainable_weights) == 4 * 3 + 2


def test_a_sequential_that_was_built_for_another_size():
    inside = keras.Sequential([keras.Input((9, 9)), CoffeeLayer(2), keras.layers.Dense(3)])
    inside(np.zeros((1, 9, 9)))
    assert FourDirections(inside)(np.ones((2, 4, 6))).shape == (2, 12)


def test_a_layer_of_a_class_that_is_registered_nowhere():
    class Mine(keras.layers.Layer):
        def call(self, inputs):
            return inputs

    directions = FourDirections(Mine())
    assert directions(np.ones((2, 4, 6))).shape == (2, 20)
    again = FourDirections.from_config(directions.get_config(), custom_objects={"Mine": Mine})
    assert type(again.rows) is Mine


def test_training_reaches_the_copies():
    parts = keras.layers.Dropout(0.5), keras.layers.Dense(4)
    layer = FourDirections(keras.Sequential(parts))
    inference = [to_numpy(layer(IMAGES)) for _ in range(2)]
    training = [to_numpy(layer(IMAGES, training=True)) for _ in range(2)]
    np.testing.assert_array_equal(*inference)
    assert (training[0] != training[1]).any()


# In models and in files.


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_keras_own_battery():
    testing.TestCase().run_layer_test(
        FourDirections,
        init_kwargs={"layer": make("coffee-all")},
        input_shape=SHAPE,
        expected_output_shape=(BATCH, 2 * (HEIGHT + WIDTH)),
        expected_num_trainable_weights=4 * 7,
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=0,
        supports_masking=False,
    )


def test_every_copy_learns_in_compiled_steps():
    # torch.compile of whole training steps is Keras' own concern; see its issues.
    jit_compile = keras.config.backend() != "torch"
    model = model_of(FourDirections(CoffeeLayer(4)), keras.layers.Dense(2))
    model.compile(keras.optimizers.Adam(0.03), "mse", jit_compile=jit_compile)
    before = model.get_weights()
    losses = model.fit(IMAGES, np.eye(2), epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.1 * losses[0]
    for weight, old in zip(model.weights, before, strict=True):
        assert (to_numpy(weight) != old).any(), weight.path


@pytest.mark.parametrize("name", ["coffee", "sequential"])
def test_a_saved_model_computes_the_same(name, tmp_path):
    # Twice the same layer in a file: Keras must not take one copy for another.
    inner = inner_layers()[name]
    images = keras.Input((HEIGHT, WIDTH))
    branches = [FourDirections(inner)(images) for _ in range(2)]
    model = keras.Model(images, keras.layers.Concatenate()(branches))
    randomized(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert len({id(w) for w in again.weights}) == len(model.weights)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for other in (again, clone):
        np.testing.assert_array_equal(*(to_numpy(m(IMAGES)) for m in (other, model)))


def test_the_configuration_is_that_of_the_layer_given():
    inner = CoffeeLayer(2, output_filter=True, name="coffee")
    layer = FourDirections(inner, name="four", dtype="mixed_bfloat16")
    config = layer.get_config()
    assert config["layer"]["config"] == inner.get_config()
    assert config["name"] == "four"
    again = FourDirections.from_config(config)
    assert again.get_config() == config
    assert again.dtype_policy.name == "mixed_bfloat16"
    # Nothing was taken out of it on the way.
    assert config == layer.get_config()


def test_a_model_with_it_prints_a_summary():
    lines = []
    model = model_of(FourDirections(CoffeeLayer(2), name="four"))
    model.summary(expand_nested=True, print_fn=lambda line, **_: lines.append(line))
    assert "four" in "".join(lines)
    assert "(None, 24)" in "".join(lines)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_dtypes(policy):
    with precision(policy):
        layer = randomized(FourDirections(CoffeeLayer(4, dtype=policy), dtype=policy))
        outputs = layer(IMAGES)
        compute = policy.removeprefix("mixed_")
        assert keras.backend.standardize_dtype(outputs.dtype) == compute
        assert layer(keras.Input((HEIGHT, WIDTH))).dtype == compute
        full = FourDirections(CoffeeLayer(4, dtype="float32"), dtype="float32")
        full.build((None, HEIGHT, WIDTH))
        full.set_weights([to_numpy(ops.cast(w, "float32")) for w in layer.weights])
        expected = to_numpy(full(IMAGES))
    rounding = 2.0**-7 if compute == "bfloat16" else 1e-5
    actual = to_numpy(ops.cast(outputs, "float32"))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rounding * abs(expected).max())


def test_integer_images():
    images = (np.arange(BATCH * HEIGHT * WIDTH).reshape(SHAPE) % 5).astype("uint8")
    layer = randomized(FourDirections(make("coffee")))
    np.testing.assert_array_equal(
        to_numpy(layer(images)), to_numpy(layer(images.astype("float32")))
    )


def test_a_mask_is_dropped_with_the_warning_of_keras():
    layer = randomized(FourDirections(make("coffee")))
    images = IMAGES.copy()
    images[:, 5:] = 0
    expected = to_numpy(layer(images))
    masked = keras.layers.Masking(0.0)(images)
    assert not to_numpy(masked._keras_mask).all()
    with pytest.warns(UserWarning, match="does not support masking"):
        outputs = layer(masked)
    np.testing.assert_array_equal(to_numpy(outputs), expected)
    assert getattr(outputs, "_keras_mask", None) is None


# Errors.


@pytest.mark.parametrize("layer", [None, "gru", CoffeeLayer, keras.layers.GRUCell])
def test_the_layer_must_be_a_layer(layer):
    with pytest.raises(TypeError, match=r"`layer` must be a Keras layer, such as .*received"):
        FourDirections(layer)


@pytest.mark.parametrize("flag", ["return_state", "stateful", "go_backwards"])
@pytest.mark.parametrize("layer_class", [CoffeeLayer, keras.layers.GRU])
def test_what_four_directions_have_no_use_for_is_refused(layer_class, flag):
    message = f"must not have {flag}=True, received .* with it: .* Leave {flag} out"
    with pytest.raises(ValueError, match=message):
        FourDirections(layer_class(2, **{flag: True}))


def test_a_stateful_layer_inside_is_refused():
    inner = keras.Sequential([keras.layers.GRU(3, stateful=True, name="gru")], name="inner")
    message = "must not have stateful layers in it, received 'gru' in 'inner'.*Leave stateful out"
    for layer in (inner, keras.Sequential([inner], name="inner")):
        with pytest.raises(ValueError, match=message):
            FourDirections(layer)


@pytest.mark.parametrize(
    "shape", [(None, 9), (None, 9, 3, 1, 2), (None, None, 3), (None, 9, None), (None, 9, 3, None)]
)
def test_inputs_must_be_images_of_known_size(shape):
    layer = FourDirections(CoffeeLayer(2), name="four")
    message = r"'four' expects images \(batch, height, width\) .* received shape .* Give the size"
    for function in (layer.build, layer.compute_output_shape):
        with pytest.raises(ValueError, match=message):
            function(shape)
    with pytest.raises(ValueError, match=message):
        layer(keras.Input(shape[1:]))


def test_images_must_keep_their_size():
    layer = FourDirections(CoffeeLayer(2))
    layer.build((None, HEIGHT, WIDTH))
    with pytest.raises(ValueError, match="expected axis 1 of input shape to have value 9"):
        layer(IMAGES[:, 1:])


def test_a_layer_must_lead_to_vectors():
    layers = keras.layers.Reshape((1, 1, -1)), keras.layers.Reshape((-1, 1, 1))
    for inner in layers:
        layer = FourDirections(inner)
        with pytest.raises(ValueError, match="must return one tensor .*received the shapes"):
            layer(IMAGES)
        with pytest.raises(ValueError, match="must return one tensor .*received the shapes"):
            layer.compute_output_shape(SHAPE)


@keras.saving.register_keras_serializable()
class Turned(keras.layers.Layer):
    def call(self, inputs):
        return ops.cast(inputs, "complex64") * 1j


def test_a_layer_with_complex_outputs_is_refused():
    with pytest.raises(TypeError, match="The output of .* must be real, received dtype complex64"):
        FourDirections(Turned())(np.ones((2, 4, 5), "float32"))
