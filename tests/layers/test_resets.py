"""A row with resets is its pieces alone, whatever the pieces and the masks in them are."""

import functools

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st
from keras import ops
from nightly import IS_NIGHTLY, IS_THOROUGH
from recurrent import make, random_inputs, random_states, randomized, to_numpy, with_weights_of
from scans import assert_same, coffee_arrays, differentiated_scan, in_pieces, precision

from keras_coffee import CoffeeLayer
from keras_coffee.layers import Block, MambaMixer
from keras_coffee.streaming import Stream

BATCH, LENGTH, DIM = SHAPE = 2, 9, 3
INPUTS = random_inputs(*SHAPE)
# In the middle of the first row twice, and at the first step of the second.
RESET = np.zeros((BATCH, LENGTH), bool)
RESET[0, [4, 5]] = RESET[1, 0] = True
# The same steps in programs of other shapes.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}

NAMES = ("coffee-all", "coffee-none", "s6-all", "linearized-s6", "min-gru", "lru", "causal-conv")
MADE = {name: functools.partial(make, name) for name in NAMES}
MADE["block"] = lambda **flags: Block(MambaMixer(2, kernel_size=3), **flags)
MADE["mixer"] = lambda **flags: MambaMixer(kernel_size=2, mixer=CoffeeLayer(2), **flags)


class Comparison:
    """A layer on rows with resets, and on their pieces, each at the start of a row of its own.

    There are always as many rows, so that each of both is one program.
    """

    def __init__(self, name, **flags):
        self.layer = layer = randomized(MADE[name](return_state=True, **flags))
        self.weights = {weight.name: to_numpy(weight) for weight in layer.weights}
        self.states = [f"state {k}" for k in range(len(layer.state_specs(DIM)))]

        def scan(inputs, mask, reset=None, **given):
            marks = {"mask": mask} if reset is None else {"mask": mask, "reset": reset}
            states = [given[state] for state in self.states]
            weights = [given[name] for name in self.weights]
            return tuple(
                layer.stateless_call(weights, [], inputs, initial_state=states, **marks)[0]
            )

        names = ["inputs", *self.states, *self.weights, "mask"]
        self.on_pieces = differentiated_scan(scan, names)
        self.on_rows = differentiated_scan(scan, [*names, "reset"])

    def check(self, reset, mask):
        states = random_states(self.layer, BATCH)
        cotangents = [
            random_inputs(BATCH, LENGTH, self.layer.output_size(DIM), seed=2),
            *random_states(self.layer, BATCH, seed=3),
        ]
        arrays = {"inputs": np.where(mask[..., None], INPUTS, np.float32(np.nan))}
        arrays |= dict(zip(self.states, states, strict=True))
        marks = {"mask": mask.astype("float32"), "reset": reset.astype("float32")}
        results, grads = self.on_rows(arrays | self.weights | marks, cotangents)

        pieces = pieces_of(reset)
        cut_up = {name: spread(x, pieces, reset) for name, x in arrays.items()}
        cut_up["inputs"] = cut(arrays["inputs"], pieces)
        own_marks = {"mask": cut(marks["mask"], pieces)}
        own_cotangents = [cut(cotangents[0], pieces)]
        own_cotangents += [at_ends(x, pieces) for x in cotangents[1:]]
        own, own_grads = self.on_pieces(cut_up | self.weights | own_marks, own_cotangents)

        assert_close(results[0], joined(own[0], pieces), "outputs")
        for final, own_final in zip(results[1:], own[1:], strict=True):
            assert_close(final, gathered(own_final, pieces, is_last), "final state")
        assert_close(grads["inputs"], joined(own_grads["inputs"], pieces), "inputs")
        for name in self.states:
            taken = gathered(own_grads[name], pieces, lambda row, start, stop: start == 0)
            taken[reset[:, 0]] = 0
            assert_close(grads[name], taken, name)
        for name in self.weights:
            assert_close(grads[name], own_grads[name], name)


def pieces_of(reset):
    """Row, first step, and step after the last of each piece."""
    pieces = []
    for row, begins in enumerate(reset):
        starts = sorted({0, *np.flatnonzero(begins)})
        pieces += [(row, *ends) for ends in zip(starts, [*starts[1:], LENGTH], strict=True)]
    return pieces


def cut(rows, pieces):
    """Each piece, and zeros behind it."""
    array = np.zeros((BATCH * LENGTH, *rows.shape[1:]), rows.dtype)
    for k, (row, start, stop) in enumerate(pieces):
        array[k, : stop - start] = rows[row, start:stop]
    return array


def joined(array, pieces):
    """The pieces in their rows again."""
    rows = np.zeros((BATCH, *array.shape[1:]), array.dtype)
    for k, (row, start, stop) in enumerate(pieces):
        rows[row, start:stop] = array[k, : stop - start]
    return rows


def spread(states, pieces, reset):
    """For each piece the state that it starts from: zeros, if it begins with a reset."""
    array = np.zeros((BATCH * LENGTH, *states.shape[1:]), states.dtype)
    for k, (row, start, _) in enumerate(pieces):
        array[k] = 0 if reset[row, start] else states[row]
    return array


def at_ends(states, pieces):
    """What belongs to the final state of a row, for its last piece."""
    array = np.zeros((BATCH * LENGTH, *states.shape[1:]), states.dtype)
    for k, piece in enumerate(pieces):
        if is_last(*piece):
            array[k] = states[piece[0]]
    return array


def gathered(array, pieces, is_taken):
    """Of each row what its first or its last piece has."""
    rows = np.zeros((BATCH, *array.shape[1:]), array.dtype)
    for k, piece in enumerate(pieces):
        if is_taken(*piece):
            rows[piece[0]] = array[k]
    return rows


def is_last(row, start, stop):
    return stop == LENGTH


def assert_close(actual, exact, name):
    scale = max(abs(exact).max(), 1e-3)
    np.testing.assert_allclose(actual / scale, exact / scale, **CLOSE, err_msg=name)


def marks(probability):
    """Booleans for each step of the batch, most of them not `probability`."""
    return st.lists(
        st.sampled_from(probability), min_size=BATCH * LENGTH, max_size=BATCH * LENGTH
    ).map(lambda x: np.array(x).reshape(BATCH, LENGTH))


@pytest.mark.parametrize("name", MADE)
def test_values_and_gradients_are_those_of_the_pieces_alone(name):
    comparison = Comparison(name)

    @hypothesis.settings(max_examples=200 if IS_NIGHTLY else 50 if IS_THOROUGH else 15)
    @hypothesis.given(marks([False, False, True]), marks([True, True, False]))
    @hypothesis.example(RESET, np.ones_like(RESET))
    # A reset at a masked step, behind one and before one that counts.
    @hypothesis.example(RESET, ~RESET)
    def check(reset, mask):
        comparison.check(reset, mask)

    check()


def test_backwards_each_sequence_is_read_from_its_end():
    layer = randomized(make("coffee-all", return_state=True))
    backwards = with_weights_of(layer, go_backwards=True)
    actual = to_numpy(backwards(INPUTS, reset=RESET))
    # From the last piece to the first, and each of them from its end.
    turned = np.zeros_like(RESET)
    turned[0, [LENGTH - 5, LENGTH - 4]] = True
    expected = to_numpy(layer(INPUTS[:, ::-1], reset=turned))
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x, y, **CLOSE)


@pytest.mark.parametrize("zero_output_for_mask", [False, True])
def test_nothing_is_repeated_from_another_sequence(zero_output_for_mask):
    layer = randomized(make("s6-all", zero_output_for_mask=zero_output_for_mask))
    mask = np.ones((BATCH, LENGTH), bool)
    mask[0, 4:7] = mask[1, 3] = False
    outputs = to_numpy(layer(INPUTS, mask=mask, reset=RESET))
    assert not outputs[0, 4:7].any()
    repeated = 0 * outputs[1, 2] if zero_output_for_mask else outputs[1, 2]
    np.testing.assert_array_equal(outputs[1, 3], repeated)


def test_a_stateful_layer_drops_what_it_carries():
    layer = randomized(make("lru"))
    stateful = randomized(make("lru", stateful=True), batch=BATCH)
    stateful(INPUTS)
    outputs = to_numpy(stateful(INPUTS, reset=RESET))
    first = to_numpy(layer(INPUTS[1:]))
    np.testing.assert_allclose(outputs[1:], first, **CLOSE)
    assert not np.allclose(outputs[0, :4], to_numpy(layer(INPUTS))[0, :4], atol=1e-2)


def by_trajectory(layer, inputs, initial_state, reset):
    return layer.trajectory(inputs, initial_state, reset=reset)


def by_solve(layer, inputs, initial_state, reset):
    states = layer.solve(inputs, initial_state, solver="newton", reset=reset).states
    return states, ops.zeros_like(states)


# What differs between backends in `solve` is the solver's, and tests of `nonlinear_scan` cover it.
@pytest.mark.parametrize("look", [by_trajectory, by_solve][: 1 + IS_THOROUGH])
def test_a_look_inside_sees_the_pieces_alone(look):
    arrays = coffee_arrays((*SHAPE, 2), gate_scale=0.5, input_scale=1.0, gated=True)
    del arrays["gate_inputs"]
    arrays["gate_projection"] = random_inputs(DIM, DIM)
    with precision("float64"):
        layer = CoffeeLayer(
            2, use_input_matrix=True, input_gate="full", use_gate_bias=True, dtype="float64"
        )
        layer.build(SHAPE)

        def scan(inputs, initial_state, readout, output_gate, reset=None, **weights):
            pairs = [(w, weights[w.name]) for w in layer.weights if w.name in weights]
            with keras.StatelessScope(state_mapping=pairs):
                states, gates = look(layer, inputs, initial_state, reset)
            outputs = ops.sum(states * readout + gates * output_gate, axis=-1)
            return outputs, states[:, -1]

        assert_same(functools.partial(scan, reset=RESET), in_pieces(scan, RESET), arrays)


def test_a_look_inside_at_masked_resets():
    layer = randomized(make("coffee-all"))
    mask = ~RESET
    states, gates = to_numpy(layer.trajectory(INPUTS, mask=mask, reset=RESET))
    assert not states[RESET].any()
    assert not gates[RESET].any()
    found = layer.solve(INPUTS, mask=mask, reset=RESET, solver="newton").states
    np.testing.assert_allclose(to_numpy(found), states, **CLOSE)
    with pytest.raises(
        ValueError, match=r"`reset` must have shape \(batch, time\) = \(2, 9\), received \(2, 8\)"
    ):
        layer.trajectory(INPUTS, reset=RESET[:, 1:])


@pytest.fixture(scope="module")
def model():
    """Two layers, one behind a mask, both with resets that are an input."""
    inputs, reset = keras.Input((None, DIM)), keras.Input((None,), dtype="bool")
    masked = keras.layers.Masking(0.0)(inputs)
    hidden = randomized(CoffeeLayer(4, name="first"))(masked, reset=reset)
    outputs = Block(make("s6-all"), name="second")(hidden, reset=reset)
    return keras.Model([inputs, reset], outputs)


def test_in_a_model_resets_are_an_input_beside_the_mask(model):
    padded = np.where(np.arange(LENGTH)[:, None] == 4, 0, INPUTS)
    outputs = to_numpy(model([padded, RESET]))
    mask = np.arange(LENGTH)[None] != 4
    first, second = (model.get_layer(name) for name in ("first", "second"))
    marks = {"mask": np.repeat(mask, BATCH, axis=0), "reset": RESET}
    expected = second(first(padded, **marks), **marks)
    np.testing.assert_allclose(outputs, to_numpy(expected), **CLOSE)
    assert not np.allclose(outputs, to_numpy(model([padded, RESET & False])), atol=1e-3)


def test_a_stream_of_pieces_is_the_whole_sequence(model):
    padded = np.where(np.arange(LENGTH)[:, None] == 4, 0, INPUTS)
    stream = Stream(model)
    state, found = stream.get_initial_state(BATCH), []
    # A piece begins with a reset at a masked step, and the next one with another.
    for start, stop in ((0, 4), (4, 5)):
        outputs, state = stream([padded[:, start:stop], RESET[:, start:stop]], state)
        found.append(to_numpy(outputs))
    for t in range(5, LENGTH):
        outputs, state = stream.step([padded[:, t], RESET[:, t]], state)
        found.append(to_numpy(outputs)[:, None])
    expected = to_numpy(model([padded, RESET]))
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, **CLOSE)


def test_resets_of_another_shape_are_an_error():
    layer = make("min-gru")
    with pytest.raises(
        ValueError, match=r"`reset` must have shape \(batch, time\) = \(2, 9\), received"
    ):
        layer(INPUTS, reset=RESET[:, 1:])


def test_a_layer_of_ones_own_that_takes_no_resets_says_so():
    with pytest.raises(ValueError, match="takes no `reset`. Give it this argument"):
        make("two-states")(INPUTS, reset=RESET)


def test_a_scan_that_hands_on_all_arguments_takes_resets():
    class Louder(CoffeeLayer):
        def scan(self, *args, **kwargs):
            outputs, state = super().scan(*args, **kwargs)
            return 2 * outputs, state

    layer = randomized(make("coffee-none"))
    louder = Louder.from_config(layer.get_config())
    louder.build(INPUTS.shape)
    louder.set_weights(layer.get_weights())
    expected = 2 * to_numpy(layer(INPUTS, reset=RESET))
    np.testing.assert_array_equal(to_numpy(louder(INPUTS, reset=RESET)), expected)
