"""A masked step is the identity, wherever the mask comes from and whatever stands beneath it."""

import keras
import numpy as np
import pytest
from gradients import value_and_gradients
from keras import ops
from recurrent import (
    CASES,
    WITH_TWO_STATES,
    make,
    random_inputs,
    random_states,
    randomized,
    to_numpy,
    with_weights_of,
)
from scans import differentiate

from keras_coffee.layers import CausalConv1D, MambaMixer

BATCH, LENGTH, DIM = 4, 9, 3
# Left, right and middle padding, and a row of padding alone.
MASK = np.ones((BATCH, LENGTH), bool)
MASK[0, :3] = MASK[1, 6:] = MASK[2, 3:5] = MASK[3] = False
INPUTS = random_inputs(BATCH, LENGTH, DIM)
# Two float32 runs of the same numbers, one of them over a longer sequence.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=WITH_TWO_STATES)
def layer(request):
    return randomized(make(request.param, return_state=True))


@pytest.fixture
def states(layer):
    return random_states(layer, BATCH)


def alone(layer, row, states):
    """A row without its padding: outputs and final states."""
    steps, own = INPUTS[row : row + 1, MASK[row]], [state[row : row + 1] for state in states]
    if not steps.size:
        return np.zeros((0, layer.output_size(DIM))), *(state[0] for state in own)
    return tuple(x[0] for x in to_numpy(layer(steps, initial_state=own)))


@pytest.mark.parametrize("padding", [0.0, 1e30, np.inf, np.nan])
def test_a_padded_batch_equals_each_row_alone_in_value(layer, states, padding):
    padded = np.where(MASK[..., None], INPUTS, padding).astype("float32")
    outputs, *final = to_numpy(layer(padded, initial_state=states, mask=MASK))
    for row in range(BATCH):
        own, *own_final = alone(layer, row, states)
        np.testing.assert_allclose(outputs[row, MASK[row]], own, **CLOSE)
        for state, own_state in zip(final, own_final, strict=True):
            np.testing.assert_allclose(state[row], own_state, **CLOSE)


@pytest.mark.smoke
def test_a_padded_batch_equals_each_row_alone_in_gradient(layer, states):
    weights = {weight.name: to_numpy(weight) for weight in layer.weights}
    names = [f"state {k}" for k in range(len(states))]
    cotangents = [
        random_inputs(*MASK.shape, layer.output_size(DIM), seed=2),
        *random_states(layer, BATCH, seed=3),
    ]

    def gradients(inputs, states, cotangents, mask=None):
        def scan(inputs, **given):
            results, _ = layer.stateless_call(
                [given[name] for name in weights],
                [],
                inputs,
                initial_state=[given[name] for name in names],
                mask=mask,
            )
            return tuple(results)

        arrays = {"inputs": inputs, **dict(zip(names, states, strict=True)), **weights}
        return differentiate(scan, arrays, cotangents)[1]

    padded = np.where(MASK[..., None], INPUTS, np.float32(np.nan))
    # The cotangent of a repeated output would belong to the step that it repeats.
    seen = cotangents[0] * MASK[..., None]
    actual = gradients(padded, states, [seen, *cotangents[1:]], MASK)
    assert not actual["inputs"][~MASK].any()
    for name, cotangent in zip(names, cotangents[1:], strict=True):
        np.testing.assert_array_equal(actual[name][3], cotangent[3])
    totals = dict.fromkeys(weights, 0.0)
    for row in range(BATCH - 1):
        one, kept = slice(row, row + 1), MASK[row]
        own = gradients(
            INPUTS[one, kept],
            [state[one] for state in states],
            [cotangents[0][one, kept], *(c[one] for c in cotangents[1:])],
        )
        parts = {name: actual[name][one] for name in names} | {
            "inputs": actual["inputs"][one, kept]
        }
        for name, part in parts.items():
            assert_close(part, own[name], name)
        totals = {name: total + own[name] for name, total in totals.items()}
    for name, total in totals.items():
        assert_close(actual[name], total, name)


def assert_close(actual, exact, name):
    scale = abs(exact).max()
    np.testing.assert_allclose(actual / scale, exact / scale, **CLOSE, err_msg=name)


@pytest.mark.parametrize("recompute", [False, True])
def test_outputs_are_repeated_or_zero(layer, states, recompute):
    if recompute and isinstance(layer, CausalConv1D):
        pytest.skip("has nothing to recompute")
    layer = with_weights_of(layer, recompute=recompute)
    outputs, *_ = to_numpy(layer(INPUTS, initial_state=states, mask=MASK))
    # There is nothing to repeat yet before the first step that counts, as in Keras.
    assert not outputs[0, :3].any()
    assert not outputs[3].any()
    np.testing.assert_array_equal(outputs[1, 6:], np.tile(outputs[1, 5], (3, 1)))
    np.testing.assert_array_equal(outputs[2, 3:5], np.tile(outputs[2, 2], (2, 1)))
    zeroing = with_weights_of(layer, zero_output_for_mask=True)
    zeroed, *_ = to_numpy(zeroing(INPUTS, initial_state=states, mask=MASK))
    np.testing.assert_array_equal(zeroed, outputs * MASK[..., None])


def test_repeated_outputs_send_their_gradient_to_the_step_that_they_repeat(layer):
    # Right padding and return_sequences=False: the last output is that of the last real step.
    last = with_weights_of(layer, return_sequences=False, return_state=False)

    def gradient(inputs, mask=None):
        return value_and_gradients(lambda x: ops.sum(last(x, mask=mask)), inputs)[1][0]

    by_inputs, own = gradient(INPUTS[1:2], MASK[1:2]), gradient(INPUTS[1:2, :6])
    np.testing.assert_allclose(by_inputs[:, :6], own, **CLOSE)
    assert not by_inputs[:, 6:].any()


def test_backwards_a_mask_is_turned_with_the_inputs(layer, states):
    backwards = with_weights_of(layer, go_backwards=True)
    results = backwards(INPUTS, initial_state=states, mask=MASK)
    turned = layer(INPUTS[:, ::-1], initial_state=states, mask=MASK[:, ::-1])
    for pair in zip(to_numpy(results), to_numpy(turned), strict=True):
        np.testing.assert_array_equal(*pair)


# Where masks come from, and where they go.


class SeenMask(keras.layers.Layer):
    """Outputs the mask that it gets."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        return ops.cast(mask, "float32")

    def compute_output_shape(self, input_shape):
        return input_shape[:2]


TOKENS = np.array([[0, 0, 5, 2, 1], [3, 4, 1, 0, 0]])


def embedding():
    return keras.layers.Embedding(6, DIM, mask_zero=True)


@pytest.mark.parametrize("go_backwards", [False, True])
def test_a_mask_is_used_and_passed_on_in_the_order_of_the_outputs(go_backwards):
    # Keras passes the mask of a layer that goes backwards on as it came, beside turned outputs;
    # and from 3.16 on its recurrent layers pass none on.
    layer = make("coffee-all", go_backwards=go_backwards)
    tokens = keras.Input((None,), dtype="int32")
    embedded = embedding()
    outputs = layer(embedded(tokens))
    model = keras.Model(tokens, [outputs, SeenMask()(outputs), embedded.output])
    actual, mask, vectors = to_numpy(model(TOKENS))
    order = slice(None, None, -1 if go_backwards else 1)
    np.testing.assert_array_equal(mask, (TOKENS != 0)[:, order])
    expected = layer(vectors, mask=TOKENS != 0)
    np.testing.assert_array_equal(actual, to_numpy(expected))
    assert not np.allclose(actual, to_numpy(layer(vectors)))


@pytest.mark.parametrize("name", CASES)
def test_masks_of_outputs_and_states_are_known_before_a_layer_is_built(name):
    fresh = make(name, return_state=True)
    mask, *of_states = fresh.compute_mask(None, MASK)
    assert mask is MASK
    assert of_states == [None] * len(fresh.state_specs(DIM))
    assert not fresh.built
    assert make(name).compute_mask(None, None) is None


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", ["s6-all", "two-states"])
def test_an_initial_state_does_not_make_the_mask_disappear(name, symbolic):
    # Keras' own layers drop the mask of their inputs when an initial state comes too.
    layer, source = make(name, return_state=True), embedding()
    states = random_states(layer, 2)
    if symbolic:
        tokens = keras.Input((None,), dtype="int32")
        given = [keras.Input(state.shape[1:], dtype=state.dtype.name) for state in states]
        outputs, *final = layer(source(tokens), initial_state=given)
        model = keras.Model([tokens, *given], [outputs, *final, SeenMask()(outputs)])
        *results, mask = model([TOKENS, *states])
        np.testing.assert_array_equal(to_numpy(mask), TOKENS != 0)
    else:
        results = layer(source(TOKENS), initial_state=states)
    vectors = ops.convert_to_tensor(to_numpy(source(TOKENS)))
    expected = layer(vectors, initial_state=states, mask=TOKENS != 0)
    for actual, e in zip(to_numpy(list(results)), to_numpy(expected), strict=True):
        np.testing.assert_allclose(actual, e, **CLOSE)


def test_masking_layer_and_loss_see_the_mask():
    # The loss is averaged over the steps that count, as behind Keras' own recurrent layers.
    layer = make("linearized-s6")
    model = keras.Sequential([keras.Input((LENGTH, DIM)), keras.layers.Masking(0.0), layer])
    model.compile("sgd", "mse")
    padded = INPUTS * MASK[..., None]
    outputs = model.predict(padded, verbose=0)
    targets = random_inputs(*INPUTS.shape, seed=5)
    loss = model.evaluate(padded, targets, verbose=0)
    np.testing.assert_allclose(loss, ((outputs - targets) ** 2)[MASK].mean(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_mask_of_numbers_counts_as_one_of_booleans(layer, dtype):
    expected = layer(INPUTS, mask=MASK)
    actual = layer(INPUTS, mask=ops.convert_to_tensor(MASK.astype(dtype)))
    np.testing.assert_array_equal(to_numpy(actual[0]), to_numpy(expected[0]))


def test_no_mask_equals_a_mask_of_ones(layer):
    for actual, expected in zip(layer(INPUTS), layer(INPUTS, mask=MASK | True), strict=True):
        np.testing.assert_allclose(*to_numpy([actual, expected]), **CLOSE)


@pytest.mark.parametrize("shape", [(4,), (4, 8), (4, 9, 3), (4, 9, 1), (1, 9)])
def test_a_mask_of_another_shape_is_an_error(layer, shape):
    with pytest.raises(
        ValueError, match=r"`mask` must have shape \(batch, time\) = \(4, 9\), received"
    ):
        layer(INPUTS, mask=np.ones(shape, bool))


def test_a_look_inside_before_the_first_step_that_counts():
    # There the state is held, while outputs are zeros.
    layer = randomized(make("coffee-all"))
    (state,) = random_states(layer, BATCH)
    states, gates = to_numpy(layer.trajectory(INPUTS, state, MASK))
    found = layer.solve(INPUTS, state, MASK, solver="sequential").states
    np.testing.assert_allclose(states, to_numpy(found), **CLOSE)
    previous = np.concatenate([to_numpy(state)[:, None], states[:, :-1]], axis=1)
    opened = layer.cell().delta(
        ops.convert_to_tensor(previous), layer.cell_inputs(ops.convert_to_tensor(INPUTS))
    )
    np.testing.assert_allclose(gates, to_numpy(opened) * MASK[..., None, None], **CLOSE)


@pytest.mark.parametrize("layer", [CausalConv1D(3), MambaMixer(2)], ids=["conv", "mamba"])
def test_a_masked_batch_of_no_sequence(layer):
    mask = np.ones((0, LENGTH), bool)
    outputs = layer(np.zeros((0, LENGTH, DIM), "float32"), mask=mask, reset=mask)
    assert tuple(outputs.shape) == (0, LENGTH, DIM)
