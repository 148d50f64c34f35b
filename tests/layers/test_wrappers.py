"""Inside Bidirectional, TimeDistributed, and models of every kind."""

import itertools

import keras
import numpy as np
import pytest
from nightly import IS_THOROUGH
from recurrent import (
    WITH_TWO_STATES,
    make,
    random_inputs,
    random_states,
    randomized,
    to_numpy,
    with_weights_of,
)

BATCH, LENGTH, DIM = (2, 9, 3)
INPUTS = random_inputs(BATCH, LENGTH, DIM)
MASK = np.ones((BATCH, LENGTH), bool)
MASK[0, 6:] = MASK[1, :2] = False
MERGE = {
    "concat": lambda a, b: np.concatenate([a, b], -1),
    "sum": np.add,
    "mul": np.multiply,
    "ave": lambda a, b: (a + b) / 2,
    None: lambda a, b: [a, b],
}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=WITH_TWO_STATES)
def layer(request):
    return randomized(make(request.param))


def both_ways(layer, **options):
    """Bidirectional around a layer, with other weights for the way back."""
    wrapper = keras.layers.Bidirectional(layer, **options)
    wrapper.build((None, None, DIM))
    weights = layer.get_weights()
    wrapper.set_weights([*weights, *(0.5 * weight for weight in weights)])
    return wrapper


# Sequences and masks in every pair with the mode that Keras takes by default; the others, which
# differ by one operation behind the layers, in one pair each.
BY_DAY = [
    *itertools.product(["concat"], [False, True], [False, True]),
    *[("sum", True, True), ("mul", False, True), ("ave", True, False), (None, True, True)],
]


@pytest.mark.parametrize(
    ("merge_mode", "return_sequences", "masked"),
    list(itertools.product(MERGE, [False, True], [False, True])) if IS_THOROUGH else BY_DAY,
)
def test_bidirectional(layer, merge_mode, return_sequences, masked):
    mask = MASK if masked else None
    layer = with_weights_of(layer, return_sequences=return_sequences, return_state=True)
    wrapper = both_ways(layer, merge_mode=merge_mode)
    # Keras zeroes the masked outputs of sequences here, so that both directions agree on them.
    zeroed = {"zero_output_for_mask": return_sequences}
    forward = with_weights_of(layer, **zeroed)
    backward = with_weights_of(layer, go_backwards=True, **zeroed)
    backward.set_weights([0.5 * weight for weight in layer.get_weights()])
    (ahead, *ahead_final), (back, *back_final) = (
        to_numpy(one(INPUTS, mask=mask)) for one in (forward, backward)
    )
    back = back[:, ::-1] if return_sequences else back
    merged = MERGE[merge_mode](ahead, back)
    exact = [*(merged if merge_mode is None else [merged]), *ahead_final, *back_final]
    actual = to_numpy(wrapper(INPUTS, mask=mask))
    assert len(actual) == len(exact)
    for a, e in zip(actual, exact, strict=True):
        np.testing.assert_allclose(a, e, **CLOSE)


def test_bidirectional_takes_initial_states_and_still_sees_the_mask(layer):
    # With initial states Keras drops the mask of the inputs on the way to the wrapped layers.
    wrapper = both_ways(with_weights_of(layer, return_state=True))
    states = [state for k in (1, 2) for state in random_states(layer, BATCH, seed=k)]
    masked = keras.layers.Masking(0.0)(np.float32(INPUTS * MASK[..., None]))
    actual = to_numpy(wrapper(masked, initial_state=states))
    exact = to_numpy(wrapper(INPUTS, initial_state=states, mask=MASK))
    for a, e in zip(actual, exact, strict=True):
        np.testing.assert_allclose(a, e, **CLOSE)


def test_bidirectional_trains_and_is_saved_with_unknown_batch_and_time(layer, tmp_path):
    inputs = keras.Input((None, DIM))
    model = keras.Model(inputs, keras.layers.Bidirectional(layer)(inputs))
    model.compile(keras.optimizers.SGD(1.0), "mse")
    # A new layer's outputs are small, and the gradients of what leads to them round to nothing.
    random = np.random.default_rng(0)
    model.set_weights([x + random.normal(scale=0.3, size=x.shape) for x in model.get_weights()])
    before = model.get_weights()
    model.train_on_batch(INPUTS, np.zeros((BATCH, LENGTH, 2 * layer.output_size(DIM))))
    assert all((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(*(m.predict(INPUTS, verbose=0) for m in (again, model)), **CLOSE)


def test_time_distributed_runs_the_layer_over_each_inner_sequence(layer):
    inputs = random_inputs(BATCH, 5, LENGTH, DIM)
    outer = keras.Input((5, LENGTH, DIM))
    model = keras.Model(outer, keras.layers.TimeDistributed(layer)(outer))
    exact = np.stack([to_numpy(layer(inputs[:, k])) for k in range(5)], 1)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), exact, **CLOSE)


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.recurrence = layer
        self.head = keras.layers.Dense(2)

    def call(self, inputs, mask=None, training=None):
        outputs, *states = self.recurrence(inputs, mask=mask)
        parts = (keras.ops.reshape(keras.ops.real(x), (BATCH, -1)) for x in states)
        return self.head(outputs[:, -1]) + sum(keras.ops.sum(x, 1, keepdims=True) for x in parts)


def test_a_subclassed_model(layer):
    model = Subclassed(with_weights_of(layer, return_state=True))
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    history = model.fit(INPUTS, np.ones((BATCH, 2)), verbose=0, epochs=2).history["loss"]
    assert history[1] < history[0]


def test_layers_in_a_row_with_unknown_batch_and_time():
    layers = [make("coffee"), make("s6"), make("linearized-s6", return_sequences=False)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    for length in (LENGTH, 1):
        inputs = random_inputs(BATCH, length, DIM)
        assert np.isfinite(model.train_on_batch(inputs, np.ones((BATCH, 1))))
        assert model.predict(inputs, verbose=0).shape == (BATCH, 1)
