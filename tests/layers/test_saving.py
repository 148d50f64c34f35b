"""Configurations, copies and files: what comes back is what was there."""

import copy
import inspect
import pickle
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import saved_models
from recurrent import (
    CASES,
    CHOSEN,
    COFFEE_OPTIONS,
    S6_OPTIONS,
    SHAPE,
    WITH_LINEARIZED_S6,
    make,
    random_inputs,
    randomized,
    to_numpy,
)

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.constraints import Interval
from keras_coffee.layers import LRU, CausalConv1D, MinGRU
from keras_coffee.solvers import Sequential

BATCH, LENGTH, DIM = SHAPE
INPUTS = random_inputs(*SHAPE)


@pytest.fixture(params=(*WITH_LINEARIZED_S6, "two-states"))
def name(request):
    return request.param


def model_of(*layers):
    return keras.Sequential([keras.Input(batch_shape=(BATCH, None, DIM)), *layers])


def compiled(name):
    model = model_of(make(name, stateful=True), keras.layers.Dense(2))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit_on(model):
    history = model.fit(INPUTS, np.ones((BATCH, LENGTH, 2)), epochs=2, shuffle=False, verbose=0)
    return history.history["loss"]


def trained(name):
    """A model in training, with a carried state."""
    model = compiled(name)
    fit_on(model)
    return model


def assert_equal_weights(actual, expected):
    assert [w.path.split("/")[-1] for w in actual.weights] == [
        w.path.split("/")[-1] for w in expected.weights
    ]
    for a, e in zip(actual.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(e), err_msg=e.name)


# Configurations.


def _arguments(layer_class):
    parameters = inspect.signature(layer_class).parameters.values()
    return [x for x in parameters if x.kind is not x.VAR_KEYWORD]


def unusual_arguments(layer_class):
    """Every argument of a layer, each other than its default or what `CASES` has."""
    arguments = {
        "return_sequences": False,
        "return_state": True,
        "go_backwards": True,
        "stateful": True,
        "zero_output_for_mask": True,
        "solver": Sequential(),
        "recompute": True,
        "dtype": "mixed_bfloat16",
        "trainable": False,
        "name": "first",
    }
    arguments |= {
        CoffeeLayer: {
            "n": 3,
            "start": "paper",
            "feedback": "linear",
            **COFFEE_OPTIONS,
        },
        S6Layer: {"n": 3, "start": "paper", "discretization": "mamba", **S6_OPTIONS},
        MinGRU: {"units": 3, "activation": "tanh", "use_bias": False},
        CausalConv1D: {"kernel_size": 3, "activation": "tanh", "use_bias": False},
        LRU: {"units": 3, "n": 2, "r_min": 0.5, "r_max": 0.75, "max_phase": 1.0},
    }.get(layer_class, {"n": 3, "start": "paper"})
    if layer_class is CausalConv1D:
        # It refuses what is no default.
        arguments |= {"solver": "auto", "recompute": False}
    # A weight that a layer does not have has no rules.
    weights = [w for w in layer_class.WEIGHTS if w != "bias"]
    for weight in weights:
        arguments[f"{weight}_initializer"] = keras.initializers.Constant(-0.5)
        arguments[f"{weight}_regularizer"] = keras.regularizers.L2(0.25)
        arguments[f"{weight}_constraint"] = Interval(-1.0, 0.0)
    return arguments


@pytest.mark.parametrize("name", CHOSEN)
def test_a_configuration_keeps_every_argument(name):
    layer_class = CASES[name][0]
    layer = layer_class(**unusual_arguments(layer_class))
    config = keras.saving.serialize_keras_object(layer)
    assert config["registered_name"] == f"keras_coffee>{layer_class.__name__}"
    needed = [x.name for x in _arguments(layer_class) if x.default is x.empty]
    own, default = layer.get_config(), layer_class(**dict.fromkeys(needed, 4)).get_config()
    # So that an argument that is added one day is added here.
    assert set(own) == set(unusual_arguments(layer_class))
    same = [key for key in own if key in default and own[key] == default[key]]
    assert same == (["recompute", "solver"] if layer_class is CausalConv1D else [])
    again = keras.saving.deserialize_keras_object(config)
    assert keras.saving.serialize_keras_object(again) == config
    assert again.solver == layer.solver
    weight = next(iter(layer_class.WEIGHTS))
    assert getattr(again, f"{weight}_constraint").lower == -1
    again.build((BATCH, LENGTH, DIM))
    assert {w.name: w.constraint.upper for w in again.weights[:-1]} == dict.fromkeys(
        again.weight_specs(), 0.0
    )
    assert (to_numpy(again.weights[0]) == -0.5).all()
    assert len(again.trainable_weights) == 0


def test_weight_names_and_order():
    # They are what weight files and distribution layouts match on.
    def names(layer):
        layer.build((BATCH, None, 3))
        assert [w.path.split("/")[-1] for w in layer.weights] == [w.name for w in layer.weights]
        return [weight.name for weight in layer.weights]

    coffee = ["transition", "gate", "readout", "input_matrix", "output_gate"]
    assert names(CoffeeLayer(2, output_filter=True, use_input_matrix=True)) == coffee
    assert names(CoffeeLayer(2, **COFFEE_OPTIONS)) == [*coffee, "gate_projection", "gate_bias"]
    assert names(CoffeeLayer(2)) == ["transition", "gate", "readout"]
    assert names(CoffeeLayer(2, output_filter=True)) == [
        "transition",
        "gate",
        "readout",
        "output_gate",
    ]
    s6 = ["log_transition", "input_projection", "output_projection", "step_projection"]
    assert names(S6Layer(2)) == s6
    assert names(S6Layer(2, stateful=True)) == [*s6, "state"]
    linearized = ["transition", "input_matrix", "readout", "step_projection"]
    assert names(LinearizedS6Layer(2)) == linearized
    assert names(MinGRU(2)) == ["kernel", "bias"]
    assert names(MinGRU(2, use_bias=False)) == ["kernel"]
    assert names(CausalConv1D(2)) == ["kernel", "bias"]
    scales = ["log_decay", "log_phase", "log_scale"]
    assert names(LRU(2, n=2)) == [*scales, "input_kernel", "output_kernel", "skip"]


def test_get_weights_of_a_model_has_the_carried_state_after_its_layers_weights(name):
    model = model_of(make(name, stateful=True), keras.layers.Dense(2))
    layer = model.layers[0]
    model.predict(INPUTS, verbose=0)
    weights = [*layer.trainable_weights, *layer.states, *model.layers[1].weights]
    for actual, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(actual, to_numpy(expected))
    assert all(state.any() for state in to_numpy(layer.states))


# Copies.


def test_a_cloned_model_computes_the_same_with_the_same_weights(name):
    tokens = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(6, DIM, mask_zero=True)(tokens)
    hidden = keras.layers.Bidirectional(make(name))(embedded)
    last = keras.layers.Dense(DIM)(hidden)
    model = keras.Model(tokens, make(name, return_sequences=False)(last))
    clone = keras.models.clone_model(model)
    assert not {id(w) for w in clone.weights} & {id(w) for w in model.weights}
    clone.set_weights(model.get_weights())
    data = np.array([[0, 0, 5, 2, 1], [3, 4, 1, 0, 0]])
    np.testing.assert_array_equal(*(m.predict(data, verbose=0) for m in (clone, model)))


def pickled(x):
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_layer_has_weights_of_its_own_with_the_same_values(name, copied):
    layer = randomized(make(name, stateful=True), batch=BATCH)
    layer(INPUTS)
    before = to_numpy(layer.states)
    assert all(state.any() for state in before)
    again = copied(layer)
    assert again.get_config() == layer.get_config()
    assert_equal_weights(again, layer)
    outputs = to_numpy(again(INPUTS))
    for actual, expected in zip(to_numpy(layer.states), before, strict=True):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(outputs, to_numpy(layer(INPUTS)))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_layer_that_is_not_built_yet_can_be_built(name, copied):
    again = copied(make(name, return_sequences=False))
    assert not again.built
    assert tuple(again(INPUTS).shape) == (BATCH, again.output_size(DIM))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_model_has_weights_of_its_own_with_the_same_values(name, copied):
    model = trained(name)
    again = copied(model)
    assert_equal_weights(again, model)
    assert all(state.any() for state in to_numpy(again.layers[0].states))
    momenta = (to_numpy(list(m.optimizer.variables)) for m in (again, model))
    for actual, expected in zip(*momenta, strict=True):
        np.testing.assert_array_equal(actual, expected)
    again.layers[0].reset_state()
    assert all(state.any() for state in to_numpy(model.layers[0].states))


# Files.


@pytest.mark.smoke
def test_a_model_from_a_file_goes_on_training_as_the_original(name, tmp_path):
    # The optimizer's momenta and the carried state are part of it.
    model = trained(name)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    whole = keras.models.load_model(tmp_path / "model.keras")
    filled = compiled(name)
    filled.optimizer.build(filled.trainable_variables)
    filled.load_weights(tmp_path / "model.weights.h5")
    expected = fit_on(model)
    for again in (whole, filled):
        np.testing.assert_array_equal(fit_on(again), expected)
        assert_equal_weights(again, model)


@pytest.mark.parametrize("file", ["model.weights.h5", "model.keras"])
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_files_of_low_precision(policy, file, tmp_path):
    model = model_of(make("coffee-all", dtype=policy))
    if file == "model.keras":
        model.save(tmp_path / file)
        again = keras.models.load_model(tmp_path / file, compile=False)
        assert again.layers[0].dtype_policy.name == policy
    else:
        model.save_weights(tmp_path / file)
        again = model_of(make("coffee-all", dtype=policy))
        again.load_weights(tmp_path / file)
    pairs = zip(again.weights, model.weights, strict=True)
    for actual, expected in pairs:
        assert actual.dtype == expected.dtype
        as_float32 = (to_numpy(keras.ops.cast(w, "float32")) for w in (actual, expected))
        np.testing.assert_array_equal(*as_float32)


COFFEE = ["transition", "gate", "readout"]


@pytest.mark.parametrize(
    "saved, loaded, has, given",
    [
        # The same number of weights with the same shapes: by number they would fit each other.
        (
            CoffeeLayer(4, output_filter=True),
            CoffeeLayer(4, use_input_matrix=True),
            [*COFFEE, "input_matrix"],
            ["gate", "output_gate", "readout", "transition"],
        ),
        # Keras looks for the layer by its class.
        (
            S6Layer(4),
            LinearizedS6Layer(4),
            ["transition", "input_matrix", "readout", "step_projection"],
            [],
        ),
        (
            CoffeeLayer(4, output_filter=True),
            CoffeeLayer(4),
            COFFEE,
            ["gate", "output_gate", "readout", "transition"],
        ),
        (
            CoffeeLayer(4),
            CoffeeLayer(4, output_filter=True),
            [*COFFEE, "output_gate"],
            sorted(COFFEE),
        ),
    ],
    ids=["other-option", "other-layer", "option-off", "option-on"],
)
def test_weights_of_a_layer_with_other_options_are_refused(saved, loaded, has, given, tmp_path):
    model_of(type(saved).from_config(saved.get_config())).save_weights(tmp_path / "x.weights.h5")
    other = model_of(type(loaded).from_config(loaded.get_config()))
    before = other.get_weights()
    message = re.escape(f"has the weights {has}, but {given} were saved. Make the layer with")
    with pytest.raises(ValueError, match=message):
        other.load_weights(tmp_path / "x.weights.h5")
    for actual, expected in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_weights_for_another_size_are_refused(name, tmp_path):
    layer = make(name)
    model_of(layer).save_weights(tmp_path / "model.weights.h5")
    size = next(name for name in ("n", "units", "kernel_size") if hasattr(layer, name))
    other = type(layer).from_config({**layer.get_config(), size: 8})
    shapes = r"(?s)\((3, 8|8,|3, 16|8, 3)\).*[(\[](3, 4|[45],?|3, 8|4, 3)[)\]]"
    with pytest.raises(ValueError, match=shapes):
        model_of(other).load_weights(tmp_path / "model.weights.h5")


@pytest.mark.parametrize(
    ("layer_class", "changed"),
    [
        *((x, {"start": "paper"}) for x in (CoffeeLayer, S6Layer, LinearizedS6Layer)),
        (LRU, {"r_min": 0.9, "r_max": 0.99, "max_phase": 0.1}),
    ],
)
def test_what_is_changed_in_a_configuration_changes_the_start(layer_class, changed):
    arguments = {"n": 2, "name": "layer", **({"units": 3} if layer_class is LRU else {})}

    def built(config):
        keras.utils.set_random_seed(0)
        layer = layer_class.from_config(config)
        layer.build((None, None, DIM))
        return layer

    config = layer_class(**arguments).get_config()
    expected = built({**arguments, **changed})
    assert expected.get_config() == config | changed
    assert_equal_weights(built(config | changed), expected)
    # What is given stays, also if it is given later.
    weight = next(iter(layer_class.WEIGHTS))
    given = {f"{weight}_initializer": keras.initializers.Constant(-0.5)}
    late = layer_class(**arguments)
    setattr(late, *next(iter(given.items())))
    for layer in (layer_class(**arguments, **given), late):
        again = built(layer.get_config() | changed)
        assert (to_numpy(getattr(again, weight)) == -0.5).all()


# Files of before.

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("name", saved_models.MODELS)
def test_files_of_before_load_and_give_the_outputs_of_then(name):
    exact = np.load(DATA / "outputs.npz")[name]
    whole = keras.models.load_model(DATA / f"{name}.keras", compile=False)
    filled = saved_models.MODELS[name]()
    filled.load_weights(DATA / f"{name}.weights.h5")
    for model in (whole, filled):
        # As one program: JAX takes a minute to compile parallel solvers piece by piece.
        run = model.predict_on_batch if name == "options" else model
        outputs = to_numpy(run(saved_models.inputs(name)))
        np.testing.assert_allclose(outputs, exact, rtol=0, atol=1e-5 * abs(exact).max())


def test_files_of_before_name_their_distance():
    # Whatever is the default of today.
    model = keras.models.load_model(DATA / "symbols.keras", compile=False)
    assert model.layers[-1].distance == "euclidean"
