"""What the recurrent layers have in common, and each one's equation."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops
from keras.src import testing
from nightly import by_night
from recurrent import (
    CASES,
    CHOSEN,
    COFFEE_OPTIONS,
    ROUNDING,
    SHAPE,
    STATE_SPACE_LAYERS,
    WITH_LINEARIZED_S6,
    WITH_S6,
    TwoStates,
    chosen_with,
    expected,
    make,
    random_inputs,
    random_states,
    randomized,
)

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer, initializers
from keras_coffee.constraints import Interval
from keras_coffee.layers import (
    LRU,
    Block,
    CausalConv1D,
    MambaMixer,
    MinGRU,
    StateSpec,
    WeightSpec,
)


@pytest.fixture(params=CASES)
def case(request):
    layer_class, arguments, parameters = CASES[request.param]
    return layer_class, arguments, parameters


@pytest.fixture(params=CHOSEN)
def chosen(request):
    return class_and_arguments(request.param)


def class_and_arguments(name):
    return CASES[name][:2]


@pytest.mark.smoke
def test_equation(case):
    layer_class, arguments, _ = case
    layer = randomized(layer_class(**arguments))
    inputs = random_inputs(*SHAPE)
    outputs, *_ = expected(layer, inputs)
    scale = np.abs(outputs).max()
    np.testing.assert_allclose(
        ops.convert_to_numpy(layer(inputs)), outputs, atol=ROUNDING * scale, rtol=0
    )


# Keras' battery feeds `fit` by a generator and leaves its default for shuffling.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(
    ("name", "flags"),
    chosen_with(
        [
            *[
                ("coffee-all", {}),
                ("coffee-all", {"stateful": True}),
                ("s6-all", {"stateful": True}),
            ],
            ("linearized-s6", {"return_sequences": False, "recompute": True}),
            ("s6-all", {"go_backwards": True, "zero_output_for_mask": True, "return_state": True}),
            *[("two-states", {"stateful": True}), ("min-gru", {}), ("lru", {"stateful": True})],
        ]
    ),
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_keras_own_battery(name, flags):
    if name == "lru" and "return_state" in flags:
        pytest.skip("trains on all outputs, and Keras has no loss for a complex state")
    if name == "causal-conv" and "recompute" in flags:
        pytest.skip("has nothing to recompute")
    layer_class, arguments = class_and_arguments(name)
    layer = randomized(layer_class(**arguments))
    width = layer.output_size(3)
    outputs = (2, 9, width) if flags.get("return_sequences", True) else (2, width)
    carried = len(layer.state_size) if flags.get("stateful") else 0
    testing.TestCase().run_layer_test(
        layer_class,
        init_kwargs={**arguments, **flags},
        input_shape=SHAPE,
        expected_output_shape=(outputs, *((2, *shape) for shape in layer.state_size))
        if "return_state" in flags
        else outputs,
        expected_num_trainable_weights=len(layer.weights),
        expected_num_non_trainable_weights=carried,
        expected_num_seed_generators=0,
        expected_num_losses=0,
        supports_masking=True,
    )


def test_parameter_count(case):
    layer_class, arguments, parameters = case
    layer = layer_class(**arguments)
    layer.build((None, None, 3))
    assert layer.count_params() == parameters


def test_weights_start_as_in_the_paper():
    coffee, s6 = CoffeeLayer(50, start="paper"), S6Layer(50, start="paper")
    coffee.build((None, None, 40))
    s6.build((None, None, 40))
    assert not ops.convert_to_numpy(coffee.transition).any()
    transition = -np.exp(ops.convert_to_numpy(s6.log_transition))
    np.testing.assert_allclose(transition, np.tile(-np.arange(1.0, 51), (40, 1)), rtol=1e-6)
    normal = (coffee.gate, coffee.readout, s6.input_projection, s6.step_projection)
    for weight in normal:
        values = ops.convert_to_numpy(weight)
        # Four standard errors of 1,600 or more draws.
        assert abs(values.mean()) < 0.1
        assert abs(values.std() - 1) < 0.075


@by_night
@pytest.mark.parametrize("layer_class", [CoffeeLayer, S6Layer, LinearizedS6Layer])
@pytest.mark.parametrize(("dim", "n"), [(8, 64), (16, 8), (32, 1), (32, 64)])
def test_a_new_layer_answers_quietly_and_forgets(layer_class, dim, n):
    layer = layer_class(n)
    inputs = random_inputs(64, 500, dim)
    outputs = ops.convert_to_numpy(layer(inputs))
    late = outputs[:, -100:].std()
    assert 0.01 < late < 1
    # As large after 500 steps as after 50: nothing piles up.
    assert late < 2 * outputs[:, 50:150].std()
    louder = ops.convert_to_numpy(layer_class(n, start="paper")(inputs))
    assert louder[:, -100:].std() > 2 * late


@pytest.mark.parametrize("layer_class", [CoffeeLayer, S6Layer, LinearizedS6Layer])
def test_a_start_leaves_the_initializers_that_are_given(layer_class):
    weight = next(iter(layer_class.WEIGHTS))
    given = {f"{weight}_initializer": keras.initializers.Constant(-0.25)}
    for start in layer_class.STARTS:
        layer = layer_class(2, start=start, **given)
        layer.build((None, None, 3))
        assert (ops.convert_to_numpy(getattr(layer, weight)) == -0.25).all()
        others = [name for name in layer.weight_specs() if name != weight]
        for name in others:
            expected = initializers.get(layer_class.STARTS[start][name])
            actual = getattr(layer, f"{name}_initializer")
            assert type(actual) is type(expected)


@pytest.mark.parametrize("layer_class", [CoffeeLayer, S6Layer, LinearizedS6Layer])
def test_an_unknown_start_is_refused(layer_class):
    for start in ("mamba", None):
        message = rf"`start` must be one of \('series', 'paper'\), received {start!r}"
        with pytest.raises(ValueError, match=message):
            layer_class(2, start=start)


def test_last_output_only(chosen):
    layer_class, arguments = chosen
    layer = randomized(layer_class(**arguments))
    last = layer_class.from_config({**layer.get_config(), "return_sequences": False})
    last.build((None, None, 3))
    last.set_weights(layer.get_weights())
    inputs = random_inputs(*SHAPE)
    assert last.compute_output_shape(SHAPE) == (2, layer.output_size(3))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(last(inputs)), ops.convert_to_numpy(layer(inputs))[:, -1]
    )


@pytest.mark.parametrize("name", WITH_LINEARIZED_S6)
def test_functional_model_with_unknown_batch_and_time(name):
    layer_class, arguments = class_and_arguments(name)
    inputs, layer = keras.Input((None, 3)), layer_class(**arguments)
    outputs, width = layer(inputs), layer.output_size(3)
    assert outputs.shape == (None, None, width)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    for length in (1, 9):
        u = random_inputs(2, length, 3)
        assert model.predict(u, verbose=0).shape == (2, length, width)
        assert np.isfinite(model.train_on_batch(u, np.ones((2, length, width))))


@pytest.mark.parametrize("name", [name for name in WITH_S6 if name != "causal-conv"])
def test_recompute_trains_the_same(name):
    layer_class, arguments = class_and_arguments(name)
    inputs = random_inputs(*SHAPE)
    trained = []
    for recompute in (False, True):
        layer = randomized(layer_class(**arguments, recompute=recompute))
        model = keras.Sequential([keras.Input((9, 3)), layer])
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        model.train_on_batch(inputs, np.ones((2, 9, layer.output_size(3))))
        trained.append(model.get_weights())
    for stored, recomputed in zip(*trained, strict=True):
        np.testing.assert_allclose(stored, recomputed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "jit_compile"),
    chosen_with(
        [("coffee-all", True), ("coffee-all", False), ("s6-all", True), ("linearized-s6", False)]
    ),
)
@pytest.mark.smoke
def test_learns_with_and_without_compilation(name, jit_compile):
    if keras.config.backend() == "torch" and jit_compile:
        pytest.skip("torch.compile of whole training steps is Keras' own concern; see its issues")
    layer_class, arguments = class_and_arguments(name)
    layer = layer_class(**arguments)
    model = keras.Sequential([keras.Input((9, 3)), layer])
    model.compile(keras.optimizers.Adam(0.03), "mse", jit_compile=jit_compile)
    inputs = random_inputs(*SHAPE)
    # As many features as the outputs have.
    targets = 0.5 * np.take(inputs, range(layer.output_size(3)), axis=-1, mode="wrap")
    losses = model.fit(inputs, targets, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


def test_transition_is_kept_stable_by_training():
    layer = CoffeeLayer(4)
    model = keras.Sequential([keras.Input((9, 3)), layer])
    model.compile(keras.optimizers.SGD(1e3), "mse")
    inputs = random_inputs(*SHAPE)
    model.train_on_batch(inputs, 10 * inputs)
    transition = ops.convert_to_numpy(layer.transition)
    assert transition.min() >= -2
    assert transition.max() <= 0
    # The step was large enough to leave the interval, both ways.
    assert {-2.0, 0.0} <= set(transition.ravel().tolist())


def test_rules_by_name_and_by_object():
    layer = CoffeeLayer(
        2,
        transition_initializer="ones",
        transition_constraint=None,
        gate_regularizer="l2",
        readout_initializer=keras.initializers.Constant(3.0),
        readout_constraint=keras.constraints.MaxNorm(1.0),
    )
    layer.build((None, None, 3))
    assert (ops.convert_to_numpy(layer.transition) == 1).all()
    assert (ops.convert_to_numpy(layer.readout) == 3).all()
    assert layer.transition.constraint is None
    assert isinstance(layer.readout.constraint, keras.constraints.MaxNorm)
    assert isinstance(layer.gate.regularizer, keras.regularizers.L2)
    assert len(layer.losses) == 1
    assert isinstance(CoffeeLayer(2).transition_constraint, Interval)


def test_integer_inputs_are_cast(chosen):
    layer_class, arguments = chosen
    layer = randomized(layer_class(**arguments))
    inputs = np.arange(54).reshape(SHAPE) % 5
    np.testing.assert_array_equal(
        ops.convert_to_numpy(layer(inputs)), ops.convert_to_numpy(layer(inputs.astype("float32")))
    )


def test_linear_feedback_never_leaves_the_zero_state():
    # Δ = w x(k-1) vanishes with the state: the paper's ablation answers at random, and this is why.
    layer = randomized(CoffeeLayer(4, feedback="linear"))
    assert not ops.convert_to_numpy(layer(random_inputs(*SHAPE))).any()


def test_linear_feedback_leaves_the_zero_state_where_the_gate_sees_the_input():
    for options in ({"input_gate": "feature"}, {"use_gate_bias": True}):
        layer = randomized(CoffeeLayer(4, feedback="linear", **options))
        assert ops.convert_to_numpy(layer(random_inputs(*SHAPE))).any()


def test_trajectory_of_a_coffee_layer():
    layer = randomized(CoffeeLayer(4, **COFFEE_OPTIONS))
    inputs = random_inputs(*SHAPE)
    states, gates = (ops.convert_to_numpy(x) for x in layer.trajectory(inputs))
    assert states.shape == gates.shape == (2, 9, 3, 4)
    w = {weight.name: ops.convert_to_numpy(weight) for weight in layer.weights}
    previous = np.concatenate([np.zeros((2, 1, 3, 4)), states[:, :-1]], 1)
    argument = w["gate"] * previous + (inputs @ w["gate_projection"])[..., None] + w["gate_bias"]
    np.testing.assert_allclose(gates, 1 / (1 + np.exp(-argument)), atol=1e-6)
    change = w["transition"] * previous + w["input_matrix"] * inputs[..., None]
    np.testing.assert_allclose(states, previous + gates * change, atol=1e-5)
    read = (states * w["readout"]).sum(-1) / (1 + np.exp(-(states * w["output_gate"]).sum(-1)))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(inputs)), read, atol=1e-5)


def test_trajectory_of_no_sequence():
    layer = randomized(CoffeeLayer(4))
    assert [x.shape for x in layer.trajectory(np.zeros((0, 9, 3), "float32"))] == 2 * [(0, 9, 3, 4)]


# Layers of a user's own.


class Wrong(TwoStates):
    """Its scan gives what `made` makes of what it should give."""

    made = None

    def scan(self, inputs, initial_state, mask):
        return self.made(*super().scan(inputs, initial_state, mask))


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda y, states: (y, states[0]), ValueError, r"has 2 states, .* received 1 as `final s"),
        (
            lambda y, states: (y, states[::-1]),
            ValueError,
            r"`final state` must have shape \(2, 4\)",
        ),
        (
            lambda y, states: (y, [ops.cast(x, "complex64") for x in states]),
            TypeError,
            "`final state` must be real",
        ),
        (
            lambda y, states: (ops.cast(y, "complex64"), states),
            TypeError,
            "The outputs of `scan` of .* must be real",
        ),
        (lambda y, states: None, TypeError, "`scan` of Wrong must return .* received a NoneType"),
        (lambda y, states: (y, *states), TypeError, "`scan` of Wrong .* received a tuple of 3"),
        (lambda y, states: y, TypeError, "`scan` of Wrong .* `return self.run_cell"),
        (lambda y, states: (y[..., :1], states), ValueError, r"time, 7\), as `output_size` says"),
        (lambda y, states: (None, states), TypeError, r"`scan` of Wrong .* \(NoneType, list\)"),
    ],
    ids=[
        "too few",
        "another order",
        "complex state",
        "complex outputs",
        "nothing",
        "three",
        "outputs alone",
        "another width",
        "no outputs",
    ],
)
def test_a_scan_that_gives_something_else_is_an_error(made, error, message):
    layer = Wrong(4)
    layer.made = made
    with pytest.raises(error, match=message):
        layer(random_inputs(*SHAPE))


@pytest.mark.parametrize(
    "specs", [None, (3,), StateSpec((3,)), [(3,)], [StateSpec(3)], [StateSpec((3.0,))]]
)
def test_states_that_are_not_declared_are_an_error(specs):
    class Undeclared(TwoStates):
        def state_specs(self, dim):
            return specs

    with pytest.raises(TypeError, match="`state_specs` of Undeclared must return a list"):
        Undeclared(4)(random_inputs(*SHAPE))


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({"w": (3,)}, TypeError, r"`WEIGHTS` of Weighed must be .*, received {'w': \(3,\)}"),
        ([WeightSpec((3,))], TypeError, "`WEIGHTS` of Weighed must be a dictionary of names"),
        ({"w": WeightSpec(("units",))}, AttributeError, "name the axis 'units': set self.units"),
        *(
            ({name: WeightSpec((3,))}, ValueError, f"name '{name}'.*carries. Choose another name")
            for name in ("state", "state_1")
        ),
    ],
)
def test_weights_that_are_not_declared_are_an_error(weights, error, message):
    class Weighed(TwoStates):
        WEIGHTS = weights

    with pytest.raises(error, match=message):
        Weighed(4)(random_inputs(*SHAPE))


class Inner(TwoStates):
    """A layer inside, and weights of its own under a name."""

    def __init__(self, n, second="second", **kwargs):
        super().__init__(n, **kwargs)
        self.second = second
        self.dense = keras.layers.Dense(3, bias_initializer="ones")

    def build(self, inputs_shape, initial_state_shape=None):
        super().build(inputs_shape, initial_state_shape)
        self.dense.build(inputs_shape)
        # Named as one of the weights of the layer inside.
        self.kernel = self.add_weight(name="kernel", shape=(3,))
        self.other = self.add_weight(name=self.second, shape=(3,))

    def scan(self, inputs, initial_state, mask):
        outputs, states = super().scan(self.dense(inputs), initial_state, mask)
        return outputs * ops.sum(self.kernel * self.other), states


def test_weights_made_by_hand_and_those_of_layers_inside_are_saved(tmp_path):
    inputs = random_inputs(*SHAPE)
    layers = [randomized(Inner(4)), Inner(4)]
    models = [keras.Sequential([keras.Input((None, 3)), layer]) for layer in layers]
    models[0].save_weights(tmp_path / "model.weights.h5")
    models[1].load_weights(tmp_path / "model.weights.h5")
    first, second = (ops.convert_to_numpy(model(inputs)) for model in models)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["state", "state_2"])
def test_a_weight_made_by_hand_may_be_named_as_a_state_that_the_layer_has_not(name, tmp_path):
    layers = [randomized(Inner(4, second=name, stateful=True), batch=2), Inner(4, second=name)]
    models = [keras.Sequential([keras.Input(batch_shape=(2, None, 3)), x]) for x in layers]
    models[0].save_weights(tmp_path / "model.weights.h5")
    models[1].load_weights(tmp_path / "model.weights.h5")
    first, second = (ops.convert_to_numpy(layer.other) for layer in layers)
    np.testing.assert_array_equal(first, second)
    assert first.any()


def test_two_weights_of_one_name_cannot_be_saved(tmp_path):
    model = keras.Sequential([keras.Input((None, 3)), Inner(4, second="kernel")])
    with pytest.raises(ValueError, match="know them by name: give each `add_weight` a name of its"):
        model.save_weights(tmp_path / "model.weights.h5")


# Errors.


@pytest.mark.parametrize("layer_class", STATE_SPACE_LAYERS)
@pytest.mark.parametrize("n", [0, -3, 2.0, True, "8", None])
def test_n_must_be_a_positive_integer(layer_class, n):
    with pytest.raises(ValueError, match=f"must be a positive integer, received {n!r}"):
        layer_class(n)


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 4, 3, 5)])
def test_inputs_must_be_sequences(name, shape):
    layer = make(name)
    remedy = "Add the missing axis" if len(shape) < 3 else "TimeDistributed, or merge axes"
    message = rf"{type(layer).__name__} expects inputs of shape \(batch, time, features\).*{remedy}"
    with pytest.raises(ValueError, match=message):
        layer(np.zeros(shape, "float32"))


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("lengths", [(5, 7), (5, 7, 6)])
def test_a_list_of_sequences_must_be_padded(name, lengths):
    sequences = [np.zeros((length, 3), "float32") for length in lengths]
    message = rf"expects one tensor \(batch, time, features\), received a \w+ of {len(lengths)}\. "
    with pytest.raises(ValueError, match=message + r"Pad sequences .* dtype='float32'"):
        make(name)(sequences)
    inputs = np.zeros((2, 4, 3), "float32")
    for several in ([inputs] * len(lengths), dict.fromkeys("abc"[: len(lengths)], inputs)):
        with pytest.raises(ValueError, match=message + "Join features by keras.layers.Concatenate"):
            make(name)(several)


@pytest.mark.parametrize("name", CHOSEN)
def test_features_must_be_known_and_stay(name):
    with pytest.raises(
        ValueError, match=r"received \(None, 4, None\). Give the number of features"
    ):
        make(name).build((None, 4, None))
    layer = make(name)
    layer(np.zeros((1, 4, 3), "float32"))
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 3"):
        layer(np.zeros((1, 4, 5), "float32"))


@pytest.mark.parametrize("name", CHOSEN)
def test_no_steps_is_an_error(name):
    message = r"`inputs` of '.*' has no steps: its shape is \(2, 0, 3\)"
    with pytest.raises(ValueError, match=message):
        make(name)(np.zeros((2, 0, 3), "float32"))


@pytest.mark.parametrize("name", CHOSEN)
def test_unknown_names_are_errors(name):
    message = "must not have" if name == "causal-conv" else "'sequential'.*, received 'newtown'"
    with pytest.raises(ValueError, match=message):
        make(name, solver="newtown")
    weight = next(iter(CASES[name][0].WEIGHTS))
    with pytest.raises(ValueError, match="wishful"):
        make(name, **{f"{weight}_initializer": "wishful"})
    with pytest.raises(ValueError, match="wishful"):
        make(name, **{f"{weight}_constraint": "wishful"})
    with pytest.raises(ValueError, match="Unrecognized keyword arguments.*wishful"):
        make(name, wishful=0.1)


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("dropout", "Put a keras.layers.Dropout in front of it."),
        ("recurrent_dropout", "Put a keras.layers.Dropout in front of it: the state"),
        ("unroll", "Leave it out: all steps"),
        ("return_sequence", "Did you mean `return_sequences`"),
    ],
)
def test_arguments_of_other_layers_are_told_what_to_do_instead(name, argument, instead):
    layer_class = CASES[name][0]
    message = f"{layer_class.__name__} has no argument `{argument}`. {instead}"
    with pytest.raises(TypeError, match=message):
        make(name, **{argument: True})


def test_what_every_layer_of_keras_takes_is_taken():
    layer = CoffeeLayer(2, name="mine", dtype="float64", trainable=False, autocast=False)
    assert (layer.name, layer.compute_dtype, layer.trainable) == ("mine", "float64", False)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="ragged tensors of TensorFlow")
def test_ragged_tensors_are_refused():
    import tensorflow as tf

    ragged = tf.RaggedTensor.from_row_lengths(tf.ones((3, 2)), [2, 1])
    with pytest.raises(TypeError, match=r"must not be ragged. Pad it by inputs.to_tensor\(\)"):
        CoffeeLayer(2)(ragged)
    padded, mask = ragged.to_tensor(), tf.sequence_mask(ragged.row_lengths())
    assert CoffeeLayer(2)(padded, mask=mask).shape == (2, 2, 2)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="only TensorFlow hides a length")
def test_another_number_of_features_in_a_model_of_tensorflow():
    model = keras.Sequential([keras.Input((None, 3)), CoffeeLayer(2)])
    model.predict(np.ones((2, 5, 3)), verbose=0)
    with pytest.raises(ValueError, match="None stands for a number that is not the same in every"):
        model.predict(np.ones((2, 5, 2)), verbose=0)


@pytest.mark.parametrize("layer_class", STATE_SPACE_LAYERS)
@pytest.mark.parametrize("n", [(), (2,)])
def test_units_are_told_apart_from_n(layer_class, n):
    message = f"{layer_class.__name__} has no `units`: its outputs are as wide as .* Pass `n`"
    with pytest.raises(TypeError, match=message):
        layer_class(*n, units=3)


USES = {
    "call": lambda layer, inputs, state: layer(inputs, initial_state=state),
    "advance": lambda layer, inputs, state: layer.advance(inputs, state),
    "step": lambda layer, inputs, state: layer.step(inputs[:, 0], state),
    "trajectory": lambda layer, inputs, state: layer.trajectory(inputs, state),
    "solve": lambda layer, inputs, state: layer.solve(inputs, state),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", CHOSEN)
def test_what_is_complex_is_refused(use, name):
    # A cast would silently drop the imaginary part.
    layer = randomized(make(name))
    if not hasattr(layer, use.replace("call", "__call__")):
        pytest.skip("CoffeeLayer has it alone")
    inputs, (state,) = random_inputs(*SHAPE), random_states(layer, 2)
    with pytest.raises(TypeError, match="`inputs` of .* must be real, received dtype complex64"):
        USES[use](layer, 1j * inputs, state)
    if np.iscomplexobj(state):
        return
    argument = "state" if use in ("advance", "step") else "initial_state"
    with pytest.raises(TypeError, match=f"`{argument}` must be real, received dtype complex64"):
        USES[use](layer, inputs, 1j * state)


def test_unknown_feedback_is_an_error():
    with pytest.raises(ValueError, match="`feedback` must be one of .*'sigmoid'.*'tanh'"):
        CoffeeLayer(2, feedback="tanh")


def test_unknown_input_gate_is_an_error():
    message = r"`input_gate` must be one of \(None, 'feature', 'full'\), received True"
    with pytest.raises(ValueError, match=message):
        CoffeeLayer(2, input_gate=True)


def test_arguments_of_a_weight_that_the_layer_lacks_are_ignored():
    # As Keras' own layers take `bias_initializer` with `use_bias=False`.
    layer = CoffeeLayer(2, output_gate_initializer="ones")
    layer.build((None, None, 3))
    assert [weight.name for weight in layer.weights] == ["transition", "gate", "readout"]
    assert "output_gate_initializer" not in layer.get_config()


@pytest.mark.parametrize("name", CHOSEN)
def test_every_argument_is_in_the_signature(name):
    # For completion and type checkers. Keras' own three are typed, by `LayerOptions`.
    named = set(inspect.signature(CASES[name][0]).parameters) - {"kwargs"}
    assert named | {"name", "dtype", "trainable"} == set(make(name).get_config())


@pytest.mark.parametrize("layer_class", STATE_SPACE_LAYERS)
def test_a_layer_without_n_says_what_to_do(layer_class):
    name = layer_class.__name__
    for arguments in ({}, {"return_state": True}):
        with pytest.raises(TypeError, match=rf"{name} needs `n`, .* for example {name}\(n=8\)"):
            layer_class(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (MinGRU, r"MinGRU needs `units`, the width of its outputs, .* MinGRU\(units=32\)"),
        (lambda: LRU(8), r"LRU needs `n`, the number of states, .* LRU\(units=32, n=8\)"),
        (lambda: LRU(units=8), "LRU needs `n`"),
        (lambda: LRU(n=8), "LRU needs `units`"),
        (CausalConv1D, "CausalConv1D needs `kernel_size`"),
        (Block, r"Block needs `mixer`, a recurrent layer, .* Block\(mixer=CoffeeLayer\(n=8\)\)"),
        (lambda: CausalConv1D(8, 3), "CausalConv1D takes `kernel_size` without a name, received 2"),
        (
            lambda: CausalConv1D(filters=8, kernel_size=3),
            r"no argument `filters`. .*Dense\(filters",
        ),
        (lambda: CausalConv1D(3, units=8), "CausalConv1D has no `units`: .* inputs. Put a keras"),
        (lambda: MambaMixer(d_state=4), "MambaMixer has no argument `d_state`. .* mean `n`"),
        (lambda: S6Layer(d_state=4), "S6Layer has no argument `d_state`. Did you mean `n`"),
        (lambda: MinGRU(n=4), "MinGRU has no argument `n`. Did you mean `units`"),
        (lambda: MambaMixer(d_model=4), "no argument `d_model`. Its width is that of its inputs"),
        (lambda: CoffeeLayer(4, recurrent_initializer="zeros"), "Each of its weights has an init"),
        (lambda: MambaMixer(d_conv=4), "`d_conv`. Did you mean `kernel_size`"),
        (lambda: MambaMixer(dt_rank=4), "`dt_rank`. Did you mean `step_rank`"),
    ],
)
def test_a_call_that_lacks_an_argument_says_what_to_do(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_of_several_unknown_arguments_the_first_is_named():
    with pytest.raises(TypeError, match="`dropout`"):
        CoffeeLayer(8, dropout=0.1, use_bias=True, seed=1)
    with pytest.raises(TypeError, match="`seed`"):
        CoffeeLayer(8, seed=1, use_bias=True, dropout=0.1)


class Steady(keras.initializers.Initializer):
    """Without a configuration, which Keras does not ask for."""

    def __init__(self, value):
        self.value = value

    def __call__(self, shape, dtype=None):
        return ops.full(shape, self.value, dtype)


@pytest.mark.parametrize("seed", [3, keras.random.SeedGenerator(3)], ids=["number", "generator"])
def test_an_initializer_of_a_class_with_a_seed_is_left_as_it_is(seed):
    drawn = keras.initializers.RandomNormal(seed=seed)

    class Drawn(TwoStates):
        WEIGHTS = {"a": WeightSpec(("D",), drawn), "b": WeightSpec(("D",), Steady(0.5))}

    layers = [Drawn(2), Drawn(2)]
    assert all(layer.a_initializer is drawn for layer in layers)
    layers[0].add_declared_weights(3)
    assert ops.convert_to_numpy(layers[0].b).tolist() == [0.5] * 3


def test_an_initializer_of_a_class_draws_anew_for_each_layer():
    class Drawn(TwoStates):
        WEIGHTS = {
            **TwoStates.WEIGHTS,
            "a": WeightSpec(("D", "D"), keras.initializers.RandomNormal()),
        }

    layers = [Drawn(2), Drawn(2)]
    for layer in layers:
        layer.build((None, None, 3))
    first, second = (ops.convert_to_numpy(layer.a) for layer in layers)
    assert (first != second).all()


def test_a_subclass_may_choose_its_own_arguments():
    class Wide(CoffeeLayer):
        def __init__(self, units=2):
            super().__init__(n=units)

    class Any(CoffeeLayer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    class Named(MinGRU):
        def __init__(self, **kwargs):
            super().__init__(kwargs.pop("units"), **kwargs)

    class Positional(CoffeeLayer):
        def __init__(self, n, /):
            super().__init__(n)

    assert [Wide().n, Wide(units=3).n, Wide(3).n] == [2, 3, 3]
    assert [Any(4).n, Any(n=4).n, Named(units=4).units, Positional(4).n] == [4, 4, 4, 4]


def test_nan_inputs_come_out_as_nan(chosen):
    layer_class, arguments = chosen
    layer = randomized(layer_class(**arguments))
    inputs = random_inputs(*SHAPE)
    clean = ops.convert_to_numpy(layer(inputs))
    inputs[0, 2, 1] = np.nan
    outputs = ops.convert_to_numpy(layer(inputs))
    seen = slice(2, 2 + arguments.get("kernel_size", SHAPE[1]))
    assert np.isnan(outputs[0, seen, 1]).all()
    np.testing.assert_array_equal(outputs[0, :2], clean[0, :2])
    np.testing.assert_array_equal(outputs[1], clean[1])
