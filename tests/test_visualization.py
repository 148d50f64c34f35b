import sys

import keras
import matplotlib
import numpy as np
import pytest
from keras import ops

import keras_coffee
from keras_coffee import CoffeeLayer
from keras_coffee.layers import SoftminLogits, SymbolEmbedding

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver

from keras_coffee.visualization import plot_decision_regions, plot_gates, plot_state_trajectory

VECTORS = np.array([(5.394, 5.343), (-10.264, -1.575), (-1.539, -10.340)])
SYMBOLS = np.array([[0, 1, 2, 0], [2, 0, 1, 0]])


@pytest.fixture(autouse=True)
def no_open_figures():
    # Weights drawn anew may answer the whole plane with one class.
    keras.utils.set_random_seed(3)
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def ih0():
    """The paper's six-parameter model, its symbols counted from 0."""
    embedding = SymbolEmbedding(3, 2)
    coffee = CoffeeLayer(1, gate_initializer="ones", readout_initializer="ones", name="coffee")
    model = keras.Sequential(
        [keras.Input((4,), dtype="int32"), embedding, coffee, SoftminLogits(embedding, 1)]
    )
    embedding.set_weights([VECTORS])
    return model


@pytest.fixture(scope="module")
def wide():
    """Three features, two states each, with padding in the inputs."""
    return keras.Sequential(
        [
            keras.Input((4, 3)),
            keras.layers.Masking(),
            CoffeeLayer(2, output_filter=True),
            keras.layers.Dense(2),
        ]
    )


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")


def trajectory(layer, *args):
    return [ops.convert_to_numpy(x) for x in layer.trajectory(*args)]


def paths(axes):
    """Points of each sequence of arrows, which must hang together."""
    found = []
    for quiver in axes.collections:
        if isinstance(quiver, Quiver):
            tails = np.stack([quiver.X, quiver.Y], axis=-1)
            tips = tails + np.stack([quiver.U, quiver.V], axis=-1)
            np.testing.assert_allclose(tips[:-1], tails[1:], atol=1e-5)
            found.append(np.concatenate([tails[:1], tips]))
    return found


def from_zero(states):
    return np.concatenate([np.zeros_like(states[:, :1]), states], axis=1)


def heat_map(axes):
    return np.asarray(axes.images[0].get_array())


def texts(axes):
    return [text.get_text() for text in axes.texts]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_arrows_lead_from_state_to_state(ih0):
    axes = plot_state_trajectory(ih0, SYMBOLS)
    states, _ = trajectory(ih0.get_layer("coffee"), VECTORS[SYMBOLS])
    np.testing.assert_allclose(paths(axes), from_zero(states)[..., 0], rtol=1e-5)
    colors = [tuple(q.get_facecolor()[0]) for q in axes.collections if isinstance(q, Quiver)]
    assert len(set(colors)) == 2
    assert axes.get_xlabel() == "x(k), feature 0, state 0"
    assert axes.get_ylabel() == "x(k), feature 1, state 0"
    assert axes.get_aspect() == 1


def test_all_arrows_are_in_sight(ih0):
    axes = plot_state_trajectory(ih0, SYMBOLS)
    points = np.concatenate(paths(axes))
    for limits, coordinates in zip((axes.get_xlim(), axes.get_ylim()), points.T, strict=True):
        assert limits[0] < coordinates.min() and coordinates.max() < limits[1]


def test_steps_that_end_in_one_place_share_a_label(ih0):
    # The last trigger hardly moves the state; the figure of the paper shows where the others end.
    assert texts(plot_state_trajectory(ih0, SYMBOLS[0])) == ["1", "2", "3–4"]


def test_the_legend_names_symbols_numbers_or_what_is_given(ih0, wide, features):
    def names(*args, **kwargs):
        legend = plot_state_trajectory(*args, **kwargs).get_legend()
        return [text.get_text() for text in legend.get_texts()]

    assert names(ih0, SYMBOLS.tolist()) == ["0 1 2 0", "2 0 1 0"]
    assert names(wide, features) == ["sequence 0", "sequence 1"]
    assert names(ih0, SYMBOLS, labels=["a", "b"]) == ["a", "b"]


def test_the_plane_is_of_any_two_states(wide, features):
    states, _ = trajectory(wide.layers[1], features)
    axes = plot_state_trajectory(wide, features, states=((2, 1), (0, 0)))
    expected = np.stack([states[:, :, 2, 1], states[:, :, 0, 0]], axis=-1)
    np.testing.assert_allclose(paths(axes), from_zero(expected), atol=1e-6)
    axes = plot_state_trajectory(wide, features)
    np.testing.assert_allclose(paths(axes), from_zero(states[:, :, 0]), atol=1e-6)


@pytest.mark.parametrize("output_filter", [False, True])
def test_the_plane_of_outputs(output_filter):
    layer = CoffeeLayer(2, output_filter=output_filter)
    model = keras.Sequential([keras.Input((4, 2)), layer])
    inputs = np.random.default_rng(1).normal(size=(2, 4, 2)).astype("float32")
    axes = plot_state_trajectory(model, inputs, states="outputs")
    expected = ops.convert_to_numpy(model(inputs))
    np.testing.assert_allclose(paths(axes), from_zero(expected), atol=1e-5)


def test_initial_state_and_mask_given_in_the_model(features):
    inputs = keras.Input((4, 3), name="inputs")
    state, mask = keras.Input((3, 2), name="state"), keras.Input((4,), name="mask", dtype="bool")
    layer = CoffeeLayer(2, return_state=True)
    outputs, _ = layer(inputs, initial_state=state, mask=mask)
    model = keras.Model({"inputs": inputs, "state": state, "mask": mask}, outputs)
    data = {"inputs": features, "state": np.ones((2, 3, 2), "float32")}
    data["mask"] = np.array([[True, True, False, True], [False, True, True, True]])
    states, gates = trajectory(layer, features, data["state"], data["mask"])
    axes = plot_state_trajectory(model, data)
    start = np.ones((2, 1, 2))
    np.testing.assert_allclose(paths(axes), np.concatenate([start, states[:, :, 0]], 1), atol=1e-6)
    one = {name: array[:1] for name, array in data.items()}
    drawn = heat_map(plot_gates(model, one))
    np.testing.assert_allclose(drawn, gates[0].reshape(4, 6).T, atol=1e-6)


def test_resets_given_in_the_model(features):
    inputs, reset = keras.Input((4, 3)), keras.Input((4,), dtype="bool")
    layer = CoffeeLayer(2)
    model = keras.Model([inputs, reset], layer(keras.layers.Masking()(inputs), reset=reset))
    layer(inputs, reset=keras.Input((4,), dtype="bool"))  # in another model, as by `Stream`
    begins = np.array([[False, False, True, False], [True, False, False, True]])
    states = ops.convert_to_numpy(layer.trajectory(features, reset=begins)[0])
    axes = plot_state_trajectory(model, [features, begins])
    np.testing.assert_allclose(paths(axes), from_zero(states[:, :, 0]), atol=1e-6)


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize("names", [("b", "a"), ("other", "more")])
def test_data_are_found_by_the_keys_of_the_model(features, names):
    first, second = (keras.Input((4, 3), name=name) for name in names)
    layer = CoffeeLayer(2)
    model = keras.Model({"a": first, "b": second}, layer(first + 0 * second))
    _, gates = trajectory(layer, features[:1])
    axes = plot_gates(model, {"a": features[:1], "b": np.zeros_like(features[:1])})
    np.testing.assert_allclose(heat_map(axes), gates[0].reshape(4, 6).T, atol=1e-6)


@pytest.mark.parametrize("kind", ["list", "names", "keys"])
def test_one_sequence_of_several_inputs_needs_no_batch(kind):
    x, state = np.ones((4, 3), "float32"), np.ones((3, 2), "float32")
    symbols = {"x": keras.Input((4, 3), name="x"), "state": keras.Input((3, 2), name="state")}
    layer = CoffeeLayer(2)
    outputs = layer(symbols["x"], initial_state=symbols["state"])
    model = keras.Model(symbols if kind == "keys" else [*symbols.values()], outputs)
    given = [x, state] if kind == "list" else {"x": x, "state": state}
    _, gates = trajectory(layer, x[None], state[None])
    drawn = heat_map(plot_gates(model, given))
    np.testing.assert_allclose(drawn, gates[0].reshape(4, 6).T, atol=1e-6)


def test_a_stateful_layer_starts_from_its_state_and_keeps_it(features):
    layer = CoffeeLayer(2, stateful=True)
    model = keras.Sequential([keras.Input(batch_shape=(2, 4, 3)), layer])
    model(features)
    carried = ops.convert_to_numpy(layer.states[0])
    axes = plot_state_trajectory(model, features)
    assert abs(carried).min() > 0
    np.testing.assert_array_equal([path[0] for path in paths(axes)], carried[:, 0])
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.states[0]), carried)


def test_one_sequence_of_a_stateful_layer_starts_from_zeros(features):
    layer = CoffeeLayer(2, stateful=True)
    model = keras.Sequential([keras.Input(batch_shape=(2, 4, 3)), layer])
    model(features)
    carried = ops.convert_to_numpy(layer.states[0])
    (path,) = paths(plot_state_trajectory(model, features[:1]))
    assert not path[0].any()
    plot_gates(model, features[:1])
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.states[0]), carried)


@pytest.mark.parametrize("plot", [plot_state_trajectory, plot_gates])
def test_stateful_layers_in_front_keep_their_states_too(features, plot):
    arguments = {"return_sequences": True, "stateful": True}
    inner = keras.Sequential([keras.layers.GRU(3, **arguments)])
    both = keras.layers.Bidirectional(keras.layers.LSTM(3, **arguments))
    front = [CoffeeLayer(2, stateful=True), inner, both]
    layers = [*front, CoffeeLayer(2, name="watched")]
    model = keras.Sequential([keras.Input(batch_shape=(1, 4, 3)), *layers])
    model(features[:1])
    states = [state for layer in (front[0], *front[1].layers, front[2]) for state in layer.states]
    before = [ops.convert_to_numpy(state).copy() for state in states]
    plot(model, features[:1], layer="watched")
    for state, value in zip(states, before, strict=True):
        assert value.any()
        np.testing.assert_array_equal(ops.convert_to_numpy(state), value)


def test_a_layer_that_goes_backwards_is_drawn_in_its_order(ih0):
    layer = CoffeeLayer(1, go_backwards=True)
    embedding = SymbolEmbedding(3, 2)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, layer])
    embedding.set_weights([VECTORS])
    states, gates = trajectory(layer, VECTORS[SYMBOLS][:, ::-1])
    axes = plot_state_trajectory(model, SYMBOLS)
    np.testing.assert_allclose(paths(axes), from_zero(states)[..., 0], rtol=1e-5)
    axes = plot_gates(model, SYMBOLS[1])
    np.testing.assert_allclose(heat_map(axes), gates[1, ..., 0].T, rtol=1e-5)
    assert ticks(axes.xaxis) == ["0", "1", "0", "2"]


def test_the_heat_map_is_the_gates(ih0):
    axes = plot_gates(ih0, SYMBOLS[:1])
    _, gates = trajectory(ih0.get_layer("coffee"), VECTORS[SYMBOLS])
    np.testing.assert_allclose(heat_map(axes), gates[0, :, :, 0].T, rtol=1e-6)
    assert axes.images[0].get_clim() == (0, 1)
    assert axes.images[0].colorbar is not None
    assert ticks(axes.xaxis) == ["0", "1", "2", "0"]
    assert ticks(axes.yaxis) == ["0", "1"]


def test_gates_of_masked_steps_are_zero(wide, features):
    inputs = features[:1].copy()
    inputs[:, 2] = 0
    gates = heat_map(plot_gates(wide, inputs))
    assert gates.shape == (6, 4)
    assert (gates[:, 2] == 0).all() and (gates[:, [0, 1, 3]] > 0).all()


def test_linear_gates_have_colors_on_both_sides_of_zero(features):
    layer = CoffeeLayer(2, feedback="linear")
    inputs, state = keras.Input((4, 3)), keras.Input((3, 2))
    model = keras.Model([inputs, state], layer(inputs, initial_state=state))
    start = np.array([[[1, -2], [3, 4], [-5, 6]]], "float32")
    axes = plot_gates(model, [0 * features[:1], start])
    expected = (start * ops.convert_to_numpy(layer.gate)).reshape(6, 1)
    np.testing.assert_allclose(heat_map(axes)[:, :1], expected, rtol=1e-6)
    bound = abs(heat_map(axes)).max()
    assert axes.images[0].get_clim() == pytest.approx((-bound, bound))


@pytest.mark.parametrize("dim, n, steps", [(16, 8, 50), (300, 1, 20)])
def test_names_stay_few_enough_to_be_read(dim, n, steps):
    model = keras.Sequential([keras.Input((None, dim)), CoffeeLayer(n)])
    axes = plot_gates(model, np.ones((1, steps, dim), "float32"))
    assert heat_map(axes).shape == (dim * n, steps)
    for axis, places in ((axes.xaxis, steps), (axes.yaxis, dim)):
        assert min(10, places) <= len(ticks(axis)) <= 36
    # A name is in the middle of the rows of its feature.
    position, name = axes.get_yticks()[3], int(ticks(axes.yaxis)[3])
    assert position == name * n + (n - 1) / 2


def answers(model, points):
    """What the layers after the recurrence make of outputs that end with these points."""
    outputs = np.broadcast_to(points[:, None], (len(points), 4, 2)).astype("float32")
    for layer in model.layers[1 + [isinstance(x, CoffeeLayer) for x in model.layers].index(True) :]:
        outputs = layer(outputs)
    scores = ops.convert_to_numpy(outputs)
    return scores.reshape(len(points), -1, scores.shape[-1])[:, -1].argmax(-1)


def drawn_classes(axes, points):
    image = axes.images[0]
    left, right, bottom, top = image.get_extent()
    rows, columns = image.get_array().shape
    column = ((points[:, 0] - left) / (right - left) * columns).astype(int)
    row = ((points[:, 1] - bottom) / (top - bottom) * rows).astype(int)
    assert image.origin == "lower"
    return np.asarray(image.get_array())[row, column]


def random_centers(axes, count=200):
    """Centers of some of an image's pixels."""
    left, right, bottom, top = axes.images[0].get_extent()
    shape = axes.images[0].get_array().shape
    y, x = (np.random.default_rng(2).integers(0, size, count) + 0.5 for size in shape)
    return np.stack(
        [left + x / shape[1] * (right - left), bottom + y / shape[0] * (top - bottom)]
    ).T


def test_a_point_has_the_color_of_the_model_s_answer(ih0):
    axes = plot_decision_regions(ih0, resolution=100)
    points = random_centers(axes)
    np.testing.assert_array_equal(drawn_classes(axes, points), answers(ih0, points))
    np.testing.assert_array_equal(drawn_classes(axes, VECTORS), [0, 1, 2])
    image = axes.images[0]
    assert len({image.cmap(image.norm(k)) for k in range(3)}) == 3


def test_regions_of_a_reloaded_model_are_those_of_the_model(ih0, tmp_path):
    # A reloaded Sequential has called its layers more than once.
    ih0.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    expected, found = (
        plot_decision_regions(model, resolution=20).images[0].get_array()
        for model in (ih0, reloaded)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("resolution", [1, 2])
def test_regions_may_be_all_arrows(ih0, resolution):
    axes = plot_decision_regions(ih0, resolution=resolution)
    assert axes.images[0].get_array().shape == (resolution, resolution)


def test_regions_are_named_inside_themselves(ih0):
    labels = ["trigger", "A", "B"]
    axes = plot_decision_regions(ih0, labels=labels, resolution=100)
    named = {text.get_text(): text.get_position() for text in axes.texts}
    for number, label in enumerate(labels):
        place = np.array([named[f"region “{label}”"]])
        assert drawn_classes(axes, place) == answers(ih0, place) == number
        assert label in named  # beside the vector


def test_vectors_of_the_symbols_are_arrows(ih0):
    axes = plot_decision_regions(ih0, resolution=50)
    expected = [[(0, 0), vector] for vector in VECTORS]
    np.testing.assert_allclose(paths(axes), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 2), (None, 2)], ids=["known time", "unknown time"])
def test_regions_by_layers_of_any_kind(shape):
    last = [keras.layers.Flatten()] if shape[0] else [keras.layers.GlobalMaxPooling1D()]
    layers = [CoffeeLayer(3), keras.layers.Dense(5, "tanh"), *last, keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input(shape), *layers])
    axes = plot_decision_regions(model, extent=(-2, 1, -1, 3), resolution=50)
    assert tuple(axes.images[0].get_extent()) == (-2, 1, -1, 3)
    points = random_centers(axes)
    found = drawn_classes(axes, points)
    np.testing.assert_array_equal(found, answers(model, points))
    assert len(np.unique(found)) > 1
    assert not paths(axes)


def test_regions_of_a_functional_model_that_returns_a_state():
    inputs = keras.Input((4, 2))
    outputs, _ = CoffeeLayer(2, return_sequences=False, return_state=True)(inputs)
    first = keras.layers.Dense(3, name="first")
    model = keras.Model(inputs, keras.layers.Softmax()(2 * first(outputs)))
    axes = plot_decision_regions(model, resolution=50)
    points = random_centers(axes)
    expected = ops.convert_to_numpy(first(points.astype("float32"))).argmax(-1)
    np.testing.assert_array_equal(drawn_classes(axes, points), expected)


def test_regions_leave_the_state_of_a_layer_behind_as_it_is():
    last = keras.layers.GRU(3, stateful=True)
    model = keras.Sequential([keras.Input(batch_shape=(400, 5, 2)), CoffeeLayer(1), last])
    model(np.ones((400, 5, 2), "float32"))
    before = ops.convert_to_numpy(last.states[0]).copy()
    plot_decision_regions(model, resolution=20)
    assert before.any()
    np.testing.assert_array_equal(ops.convert_to_numpy(last.states[0]), before)


@pytest.mark.parametrize("asks", [True, False], ids=["asks for the mask", "does not"])
def test_regions_where_the_outputs_have_a_mask(asks):
    between = keras.layers.GlobalAveragePooling1D() if asks else keras.layers.Activation("tanh")
    layers = [keras.layers.Masking(), CoffeeLayer(1), between, keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((4, 2)), *layers])
    axes = plot_decision_regions(model, resolution=50)
    points = random_centers(axes)
    np.testing.assert_array_equal(drawn_classes(axes, points), answers(model, points))


def test_softmin_logits_of_several_steps_where_time_is_unknown():
    embedding = SymbolEmbedding(3, 2)
    model = keras.Sequential(
        [keras.Input((None,)), embedding, CoffeeLayer(1), SoftminLogits(embedding, last=2)]
    )
    embedding.set_weights([VECTORS])
    axes = plot_decision_regions(model, resolution=50)
    np.testing.assert_array_equal(drawn_classes(axes, VECTORS), [0, 1, 2])


def test_trajectories_and_regions_share_axes_in_both_orders(ih0):
    axes = plot_decision_regions(ih0, resolution=50)
    assert plot_state_trajectory(ih0, SYMBOLS, states="outputs", axes=axes) is axes
    assert len(paths(axes)) == 3 + 2
    axes = plot_state_trajectory(ih0, SYMBOLS)
    shown = (*axes.get_xlim(), *axes.get_ylim())
    plot_decision_regions(ih0, resolution=50, axes=axes)
    assert tuple(axes.images[0].get_extent()) == pytest.approx(shown)
    axes.figure.canvas.draw()


@pytest.mark.parametrize("plot", [plot_state_trajectory, plot_gates, plot_decision_regions])
def test_given_axes_are_used_and_pyplot_left_alone(ih0, plot):
    axes = Figure().subplots()
    data = () if plot is plot_decision_regions else (SYMBOLS[0],)
    assert plot(ih0, *data, axes=axes) is axes
    assert axes.has_data()
    assert plt.get_fignums() == []
    assert plot(ih0, *data).figure.number in plt.get_fignums()


def test_the_model_stays_as_it_was(ih0, tmp_path):
    before = ih0.predict(SYMBOLS, verbose=0)
    plot_state_trajectory(ih0, SYMBOLS)
    plot_decision_regions(ih0, resolution=50)
    np.testing.assert_array_equal(ih0.predict(SYMBOLS, verbose=0), before)
    ih0.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(SYMBOLS, verbose=0), before, rtol=1e-5)
    np.testing.assert_allclose(
        paths(plot_state_trajectory(loaded, SYMBOLS)), paths(plot_state_trajectory(ih0, SYMBOLS))
    )


def test_a_layer_is_chosen_by_itself_or_by_name(features):
    layers = [CoffeeLayer(2, name="first"), CoffeeLayer(2, name="second")]
    model = keras.Sequential([keras.Input((4, 3)), *layers])
    between = ops.convert_to_numpy(layers[0](features))
    _, gates = trajectory(layers[1], between)
    for choice in ("second", layers[1]):
        drawn = heat_map(plot_gates(model, features[:1], layer=choice))
        np.testing.assert_allclose(drawn, gates[0].reshape(4, 6).T, atol=1e-6)
    for choice in (None, "third", CoffeeLayer(2, name="other")):
        with pytest.raises(ValueError, match=r"one of the CoffeeLayers .*\['first', 'second'\]"):
            plot_gates(model, features[:1], layer=choice)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.coffee = CoffeeLayer(1)

    def call(self, inputs):
        return self.coffee(inputs)


def dense():
    return keras.Sequential([keras.Input((4, 2)), keras.layers.Dense(2, name="only")])


def nested():
    inner = keras.layers.Bidirectional(CoffeeLayer(1), name="both")
    return keras.Sequential([keras.Input((4, 2)), inner])


@pytest.mark.parametrize(
    "make, message",
    [
        (Subclassed, "'subclassed.*' of type Subclassed must be a built keras.Sequential or"),
        (lambda: keras.Sequential([CoffeeLayer(1)]), "Begin it with keras.Input or call it once"),
        (dense, r"no CoffeeLayer among its layers, which are \['only \(Dense\)'\]"),
        (nested, r"\['both \(Bidirectional\)'\]\. .* one inside another layer or model can't be"),
    ],
    ids=["subclassed", "not built", "without the layer", "inside another layer"],
)
def test_models_that_cannot_be_drawn(make, message):
    model = make()
    for plot in (plot_state_trajectory, plot_gates):
        with pytest.raises(ValueError, match=message):
            plot(model, np.ones((1, 4, 2)))
    with pytest.raises(ValueError, match=message):
        plot_decision_regions(model)


def test_a_layer_of_another_model_as_well():
    layer = CoffeeLayer(1)
    keras.Sequential([keras.Input((4, 2)), layer])
    model = keras.Sequential([keras.Input((4, 2)), layer, keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="not have been called before in another model"):
        plot_gates(model, np.ones((1, 4, 2)))


def test_sequences_that_do_not_fit(ih0):
    with pytest.raises(ValueError, match="gates of one sequence are drawn, received 2"):
        plot_gates(ih0, SYMBOLS)
    with pytest.raises(ValueError, match="At most 7 sequences .* received 8"):
        plot_state_trajectory(ih0, np.zeros((8, 4), "int32"))
    with pytest.raises(ValueError, match="`inputs` hold no sequence"):
        plot_state_trajectory(ih0, np.zeros((0, 4), "int32"))
    with pytest.raises(ValueError, match="'coffee' are not finite.*a symbol that its embedding"):
        plot_gates(ih0, [0, 1, 3, 0])


@pytest.mark.parametrize("states", [((0, 0),), ((0, 0), (2, 0)), ((0, 0), (0, -1)), "output", 3])
def test_states_that_the_layer_does_not_have(ih0, states):
    with pytest.raises(ValueError, match="two pairs .*features below 2 and states below 1"):
        plot_state_trajectory(ih0, SYMBOLS, states=states)


def test_layers_without_a_plane(wide, features):
    with pytest.raises(
        ValueError, match='states="outputs" needs a layer of two features, not of 3'
    ):
        plot_state_trajectory(wide, features, states="outputs")
    with pytest.raises(ValueError, match="'coffee.*' has 3 features, not 2"):
        plot_decision_regions(wide)
    single = keras.Sequential([keras.Input((4, 1)), CoffeeLayer(1)])
    with pytest.raises(ValueError, match="has a single state, and a plane needs two"):
        plot_state_trajectory(single, features[:, :, :1])


def test_models_without_regions():
    def of(head):
        inputs = keras.Input((4, 2))
        return keras.Model(inputs, head(CoffeeLayer(1)(inputs), inputs))

    dense = keras.layers.Dense
    for head, message in (
        (lambda outputs, _: outputs, "is the last layer of"),
        (lambda outputs, _: dense(1)(outputs), "scores of at least two classes"),
        (lambda outputs, _: [dense(2)(outputs), dense(2)(outputs)], "one output with the scores"),
        (lambda outputs, inputs: dense(2)(outputs + inputs), "depend on the layer's outputs only"),
    ):
        with pytest.raises(ValueError, match=message):
            plot_decision_regions(of(head))


def test_arguments_of_regions_that_do_not_fit(ih0):
    for extent in ((0, 1, 2), (1, 0, 0, 1), (0, 1, 1, 1), (0, np.inf, 0, 1)):
        with pytest.raises(ValueError, match="`extent` must be four finite numbers"):
            plot_decision_regions(ih0, extent)
    for labels in (["a", "b"], "abc"):
        with pytest.raises(ValueError, match="`labels` must be 3 names"):
            plot_decision_regions(ih0, labels=labels)
    with pytest.raises(ValueError, match="`resolution` must be a positive integer"):
        plot_decision_regions(ih0, resolution=0)


def test_matplotlib_is_asked_for_only_where_it_is_needed(monkeypatch):
    assert keras_coffee.visualization.plot_gates is plot_gates
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "keras_coffee.visualization")
    monkeypatch.delattr(keras_coffee, "visualization")
    with pytest.raises(ImportError, match=r"its extra: keras-coffee\[plots\]"):
        keras_coffee.visualization  # noqa: B018
    with pytest.raises(AttributeError, match="'MinGRU'. It is keras_coffee.layers.MinGRU$"):
        keras_coffee.MinGRU  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'visualisation'$"):
        keras_coffee.visualisation  # noqa: B018
