"""Layers that are solved in parallel: the same layer, trained, saved, masked and looked into."""

import keras
import numpy as np
import pytest
from gradients import compiled
from nightly import IS_THOROUGH
from recurrent import to_numpy

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.callbacks import SolverMonitor
from keras_coffee.solvers import Associative, Elk, Newton

SHAPE = (4, 20, 3)
PARALLEL = [
    (CoffeeLayer, "newton"),
    (CoffeeLayer, Elk(window=6, tolerance=1e-6)),
    (S6Layer, "associative"),
    (LinearizedS6Layer, Associative()),
]
# Elk shares Newton's program except for its damping, and the selective layers share their solver.
EACH = pytest.mark.parametrize(("layer", "solver"), PARALLEL if IS_THOROUGH else PARALLEL[::2])
ALL = [
    pytest.param(PARALLEL[0], id="newton"),
    pytest.param(PARALLEL[2], id="associative"),
]


def data():
    generator = np.random.default_rng(0)
    return (generator.normal(size=SHAPE).astype("float32") for _ in "xy")


def pair(layer, solver, **options):
    """A model solved in parallel, and the same one step after another."""
    models = []
    for s in (solver, "sequential"):
        keras.utils.set_random_seed(0)
        models.append(
            keras.Sequential(
                [
                    keras.Input(SHAPE[1:]),
                    keras.layers.Masking(),
                    layer(4, solver=s, **options),
                    keras.layers.Dense(3),
                ]
            )
        )
    return models


@EACH
def test_training_is_the_same(layer, solver):
    histories, x, y = [], *data()
    x[1, 12:] = 0  # masked
    for model in pair(layer, solver):
        # At five times this rate S6 diverges, and every step multiplies the last one's rounding.
        model.compile(keras.optimizers.SGD(0.002), loss="mse")
        history = model.fit(x, y, batch_size=4, epochs=4, verbose=0, shuffle=False).history["loss"]
        histories.append([*history, *model.predict(x, verbose=0).ravel()])
    np.testing.assert_allclose(*histories, rtol=1e-4, atol=1e-5)
    assert histories[0][3] < histories[0][0]


@pytest.mark.parametrize("which", ALL)
def test_flags_and_masks(which):
    options = {"go_backwards": True, "zero_output_for_mask": True, "return_state": True}
    x, _ = data()
    x[0, :5] = 0
    x[1, 12:] = 0
    x[2] = 0
    layer, solver = which
    inputs = keras.ops.convert_to_tensor(x)
    mask = keras.ops.any(inputs != 0, axis=-1)
    results = []
    for s in (solver, "sequential"):
        keras.utils.set_random_seed(0)
        made = layer(4, solver=s, **options)
        made.build(SHAPE)
        results.append(compiled(lambda x, made=made: made(x, mask=mask))(inputs))
    for a, e in zip(*results, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(e), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("layer", "solver"), [PARALLEL[1], PARALLEL[3]])
def test_saved_with_its_solver(layer, solver, tmp_path):
    model, _ = pair(layer, solver)
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    assert restored.layers[1].solver == solver
    x, _ = data()
    np.testing.assert_array_equal(
        restored.predict(x, verbose=0), model.predict(x, verbose=0), strict=True
    )


@pytest.mark.parametrize("which", ALL)
def test_a_single_step_is_that_of_the_whole(which):
    layer = which[0](4, solver=which[1])
    x, _ = data()
    layer.build(SHAPE)
    expected = to_numpy(compiled(layer)(x))
    (state,), outputs = layer.get_initial_state(SHAPE[0]), []
    for t in range(4):
        output, state = layer.step(x[:, t], state)
        outputs.append(to_numpy(output))
    np.testing.assert_allclose(np.stack(outputs, 1), expected[:, :4], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "solver", "message"),
    [
        (CoffeeLayer, "associative", "nonlinear in its state .*, received 'associative'"),
        (S6Layer, "newton", "is linear in its state takes .*, received 'newton'"),
        (S6Layer, Elk(), r"is linear in its state .*, received Elk\("),
    ],
)
def test_solver_of_the_other_kind(layer, solver, message):
    with pytest.raises(ValueError, match=message):
        layer(4, solver=solver)


def test_recompute_needs_the_sequential_solver():
    with pytest.raises(ValueError, match="Newton needs them all at once. Leave out one"):
        CoffeeLayer(4, solver="newton", recompute=True)


def test_solve():
    layer = CoffeeLayer(4, use_input_matrix=True, input_gate="full", use_gate_bias=True)
    x, _ = data()
    layer(x)
    mask = np.ones(SHAPE[:2], bool)
    mask[2, 7:] = False
    expected, _ = layer.trajectory(x, mask=mask)
    for solver in (None, "newton", Newton(window=6)):
        solution = compiled(lambda x, s=solver: layer.solve(x, mask=mask, solver=s))(x)
        assert to_numpy(solution.converged).all()
        np.testing.assert_allclose(
            to_numpy(solution.states), to_numpy(expected), rtol=1e-5, atol=1e-5
        )
    with pytest.raises(
        ValueError, match=r"must have shape \(batch, time, 3\).*received \(4, 20, 2\)"
    ):
        layer.solve(x[..., :2])


def test_monitor_of_training():
    x, y = data()
    model, _ = pair(CoffeeLayer, "newton")
    layer = model.layers[1]
    model.compile(loss="mse")
    monitor = SolverMonitor(layer, x)
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=[monitor]).history
    iterations = history[f"{layer.name}_iterations"]
    assert all(k >= 2 for k in iterations)
    assert history[f"{layer.name}_converged"] == [1.0, 1.0]
    assert max(history[f"{layer.name}_residual"]) <= 8 * 2.0**-23


def test_monitor_sees_the_weights_of_the_epoch():
    x, y = data()
    model, _ = pair(CoffeeLayer, "newton")
    layer, seen = model.layers[1], []

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(logs[f"{layer.name}_iterations"])
            # As hard as it gets, for the next epoch.
            layer.gate.assign(np.full((3, 4), 30.0, "float32"))

    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    layer.gate.assign(np.zeros((3, 4), "float32"))
    model.fit(x, y, epochs=1, verbose=0, callbacks=[SolverMonitor(layer, x), Seen()])
    model.fit(x, y, epochs=1, verbose=0, callbacks=[SolverMonitor(layer, x), Seen()])
    assert seen[1] > seen[0]


@pytest.mark.parametrize(
    ("given", "go_backwards"),
    [
        ("mask", True),
        ("state", False),
        ("mask and state", True),
        ("reset and mask", True),
        *((given, False) for given in ("mask", "mask and state", "reset") if IS_THOROUGH),
        *((given, True) for given in ("state", "reset") if IS_THOROUGH),
    ],
)
def test_monitor_solves_what_the_layer_computes(given, go_backwards):
    x, y = data()
    generator = np.random.default_rng(1)
    mask = generator.uniform(size=SHAPE[:2]) > 0.7
    state = 3 * generator.normal(size=(SHAPE[0], 3, 4)).astype("float32")
    inputs = [keras.Input(SHAPE[1:])]
    arrays, more = [x], {}
    if "state" in given:
        inputs.append(keras.Input((3, 4)))
        arrays.append(state)
        more["initial_state"] = inputs[-1]
    if "mask" in given:
        inputs.append(keras.Input(SHAPE[1:2], dtype="bool"))
        arrays.append(mask)
        more["mask"] = inputs[-1]
    reset = generator.uniform(size=SHAPE[:2]) > 0.8
    if "reset" in given:
        inputs.append(keras.Input(SHAPE[1:2], dtype="bool"))
        arrays.append(reset)
        more["reset"] = inputs[-1]
    layer = CoffeeLayer(4, solver=Newton(window=5), go_backwards=go_backwards)
    model = keras.Model(inputs, layer(inputs[0], **more))
    layer.gate.assign(2 * generator.normal(size=(3, 4)))
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    monitor = SolverMonitor(layer, arrays)
    history = model.fit(arrays, y, verbose=0, callbacks=[monitor]).history
    order = slice(None, None, -1 if go_backwards else 1)
    solution = layer.solve(
        x[:, order],
        initial_state=state if "state" in given else None,
        mask=mask[:, order] if "mask" in given else None,
        reset=(backwards_of(reset) if go_backwards else reset) if "reset" in given else None,
    )
    assert history[f"{layer.name}_iterations"] == [int(to_numpy(solution.iterations).max())]
    residual = float(to_numpy(solution.residual).max())
    np.testing.assert_allclose(history[f"{layer.name}_residual"], residual, atol=2.0**-22)


def backwards_of(reset):
    """A sequence ends where the next one begins, and from there it is read."""
    return np.roll(reset, -1, axis=1)[:, ::-1] * (np.arange(SHAPE[1]) > 0)


def test_monitor_starts_where_a_stateful_layer_is():
    x, y = data()
    x *= 10
    layer = CoffeeLayer(4, solver="newton", stateful=True)
    model = keras.Sequential([keras.Input(batch_shape=SHAPE), layer])
    layer.gate.assign(2 * np.random.default_rng(1).normal(size=(3, 4)))
    layer.transition.assign(np.full((3, 4), -0.1))
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    monitor = SolverMonitor(layer, x, batch_size=4)
    history = model.fit(x, y, batch_size=4, verbose=0, callbacks=[monitor]).history
    start = [to_numpy(state).copy() for state in layer.states]
    expected = int(to_numpy(layer.solve(x, start).iterations).max())
    assert history[f"{layer.name}_iterations"] == [expected]
    assert expected != int(to_numpy(layer.solve(x).iterations).max())


class States(keras.callbacks.Callback):
    """Copies the carried states of layers at the end of each epoch."""

    def __init__(self, *layers):
        super().__init__()
        self.layers, self.seen = layers, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append([to_numpy(layer.states[0]).copy() for layer in self.layers])


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize("names", [("z", "b"), ("other", "more")])
def test_monitor_finds_data_by_the_keys_of_the_model(names):
    x, y = data()
    first, second = (keras.Input(SHAPE[1:], name=name) for name in names)
    layer = CoffeeLayer(4, solver="newton")
    model = keras.Model({"b": first, "z": second}, layer(first + 0 * second))
    layer.gate.assign(2 * np.random.default_rng(1).normal(size=(3, 4)))
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    given = {"b": 3 * x, "z": np.zeros_like(x)}
    history = model.fit(given, y, verbose=0, callbacks=[SolverMonitor(layer, given)]).history
    expected = int(to_numpy(layer.solve(3 * x).iterations).max())
    assert history[f"{layer.name}_iterations"] == [expected]
    assert expected > 0


def test_monitor_of_a_model_that_is_built_by_training():
    x, y = data()
    layer = CoffeeLayer(4, solver="newton")
    model = keras.Sequential([layer])
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=[SolverMonitor(layer, x)]).history
    expected = int(to_numpy(layer.solve(x).iterations).max())
    assert expected > 0
    assert history[f"{layer.name}_iterations"] == [expected] * 2


def test_monitor_changes_no_carried_state():
    x, y = data()
    layers = [CoffeeLayer(2, stateful=True), CoffeeLayer(4, solver="newton", stateful=True)]
    model = keras.Sequential([keras.Input(batch_shape=SHAPE), *layers])
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    before, after = States(*layers), States(*layers)
    callbacks = [before, SolverMonitor(layers[1], x, batch_size=4), after]
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    for states, same in zip(before.seen, after.seen, strict=True):
        for state, other in zip(states, same, strict=True):
            assert state.any()
            np.testing.assert_array_equal(other, state)


def test_monitor_refuses_at_once_what_it_cannot_watch():
    with pytest.raises(TypeError, match="watches a CoffeeLayer, received S6Layer"):
        SolverMonitor(S6Layer(2), np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="nonlinear in its state .*, received 'associative'"):
        SolverMonitor(CoffeeLayer(2), np.ones((1, 2, 3)), solver="associative")
    for layer, solver in ((CoffeeLayer(2), None), (CoffeeLayer(2, solver="newton"), "sequential")):
        with pytest.raises(ValueError, match="watches iterations, .* has none. Pass solver="):
            SolverMonitor(layer, np.ones((1, 2, 3)), solver)


def test_monitor_of_a_layer_of_another_model():
    x, y = data()
    model, other = pair(CoffeeLayer, "newton")
    model.compile(loss="mse")
    with pytest.raises(
        ValueError, match="SolverMonitor watches the layer 'coffee_layer.*not among"
    ):
        model.fit(x, y, verbose=0, callbacks=[SolverMonitor(other.layers[1], x, "newton")])


def test_monitor_of_a_layer_that_was_called_in_another_model_before():
    x, y = data()
    layer = CoffeeLayer(4, solver="newton")
    keras.Sequential([keras.Input(SHAPE[1:]), layer])
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    model.compile(loss="mse")
    with pytest.raises(ValueError, match="must not have been called before in another model"):
        model.fit(x, y, verbose=0, callbacks=[SolverMonitor(layer, x)])


def test_monitor_of_a_subclassed_model():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.coffee = CoffeeLayer(4)

        def call(self, inputs):
            return self.coffee(inputs)

    x, y = data()
    model = Subclassed()
    model.compile(loss="mse")
    with pytest.raises(
        ValueError, match="of a Functional or Sequential model, received Subclassed. Make"
    ):
        model.fit(x, y, verbose=0, callbacks=[SolverMonitor(model.coffee, x, "newton")])
