"""`MambaMixer` and `Block` against their equations as plain float64 loops."""

import keras
import numpy as np
import pytest
from gradients import compiled
from keras import ops
from oracles import sigmoid
from recurrent import random_inputs, randomized, to_numpy
from scans import differentiate, precision

from keras_coffee import CoffeeLayer, S6Layer, Stream
from keras_coffee.layers import Block, CausalConv1D, MambaMixer, MinGRU
from keras_coffee.solvers import Sequential

BATCH, LENGTH, DIM = SHAPE = (2, 9, 6)
MASK = np.ones((BATCH, LENGTH), bool)
MASK[0, :2] = MASK[0, 5] = MASK[1, 6:] = False
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def weights_of(layer):
    return {w.path.removeprefix(f"{layer.name}/"): to_numpy(w) for w in layer.trainable_weights}


def silu(x):
    return x * sigmoid(x)


def mamba(layer, w, u, mask=None):
    """Outputs and both states, one step after another, as in Mamba's code; held where masked."""
    kernel, inner = w["convolution/kernel"], layer.expand * u.shape[-1]
    rank = len(w["step_projection"])
    window = np.zeros((len(u), len(kernel), inner), np.result_type(u, *w.values()))
    state = np.zeros((len(u), inner, layer.n), window.dtype)
    output, outputs = np.zeros((len(u), u.shape[-1])), []
    for t in range(u.shape[1]):
        h = u[:, t] @ w["input_projection"] + w.get("input_bias", 0.0)
        h, z = h[:, :inner], h[:, inner:]
        seen = np.concatenate([window[:, 1:], h[:, None]], 1)
        v = silu((kernel * seen).sum(1) + w.get("convolution/bias", 0.0))
        d, b, c = np.split(v @ w["selection_projection"], [rank, rank + layer.n], -1)
        delta = np.log(1 + np.exp(d @ w["step_projection"] + w["step_bias"]))[..., None]
        decay = np.exp(-np.exp(w["log_transition"]) * delta)
        new = decay * state + delta * b[:, None] * v[..., None]
        y = (new * c[:, None]).sum(-1) + w["skip"] * v
        read = (y * silu(z)) @ w["output_projection"] + w.get("output_bias", 0.0)
        is_step = np.ones(len(u), bool) if mask is None else mask[:, t]
        window = np.where(is_step[:, None, None], seen, window)
        state = np.where(is_step[:, None, None], new, state)
        output = np.where(is_step[:, None], read, output)
        outputs.append(output)
    return np.stack(outputs, 1), window[:, 1:], state


OPTIONS = {
    "defaults": {},
    "all": {"expand": 3, "kernel_size": 2, "step_rank": 2, "use_bias": True},
    "no conv bias": {"use_conv_bias": False, "kernel_size": 1},
}


def make(name="defaults", **arguments):
    return randomized(MambaMixer(n=3, **OPTIONS[name], **arguments), DIM)


# Each option in both precisions, each precision with and without a mask.
@pytest.mark.parametrize(
    ("name", "dtype", "has_mask"),
    [
        ("defaults", "float32", False),
        ("defaults", "float64", True),
        ("all", "float32", True),
        ("all", "float64", False),
        ("no conv bias", "float32", True),
        ("no conv bias", "float64", False),
    ],
)
def test_outputs_and_states_are_those_of_the_plain_loop(name, dtype, has_mask):
    inputs, mask = random_inputs(*SHAPE).astype(dtype), MASK if has_mask else None
    given = np.where(MASK[..., None], inputs, np.nan).astype(dtype) if has_mask else inputs
    with precision(dtype):
        layer = make(name, return_state=True, dtype=dtype)
        results = to_numpy(compiled(lambda x: layer(x, mask=mask))(given))
    wide = {k: np.float64(w) for k, w in weights_of(layer).items()}
    expected = mamba(layer, wide, np.float64(inputs), mask)
    close = 1e-5 if dtype == "float32" else 1e-12
    for actual, e in zip(results, expected, strict=True):
        # A sum of twelve products of numbers that are larger than it.
        np.testing.assert_allclose(actual, e, rtol=0, atol=close * abs(e).max(initial=0))


@pytest.mark.parametrize("has_mask", [False, True], ids=["", "mask"])
@pytest.mark.parametrize("name", ["defaults", "all"])
def test_gradients_are_those_of_the_plain_loop(name, has_mask):
    mask = MASK if has_mask else None
    with precision("float64"):
        layer = make(name, return_state=True, dtype="float64")
        weights = weights_of(layer)
        arrays = {"inputs": np.float64(random_inputs(*SHAPE)), **weights}
        generator = np.random.default_rng(3)
        shapes = [SHAPE, *((BATCH, *shape) for shape in layer.state_size)]
        cotangents = [generator.normal(size=shape) for shape in shapes]

        def scan(inputs, **given):
            return tuple(layer.stateless_call(list(given.values()), [], inputs, mask=mask)[0])

        _, gradients = differentiate(scan, arrays, cotangents)

    # One derivative in a random direction for each array, by a complex step.
    def loss(moved):
        results = mamba(layer, {k: moved[k] for k in weights}, moved["inputs"], mask)
        return sum((r * c).sum() for r, c in zip(results, cotangents, strict=True))

    for k, array in arrays.items():
        for _ in range(3):
            direction = generator.normal(size=array.shape)
            slope = loss(arrays | {k: array + 1e-30j * direction}).imag / 1e-30
            actual = (gradients[k] * direction).sum()
            scale = abs(gradients[k]).max() * array.size**0.5
            np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-11 * scale, err_msg=k)


def deep(**arguments):
    """Layers around layers, of each kind, with states of other shapes."""
    mixers = MambaMixer(3), MambaMixer(mixer=CoffeeLayer(2), kernel_size=2)
    plain = MambaMixer(mixer=MinGRU(5), kernel_size=None, expand=1, use_bias=True)
    return [Block(mixer, **arguments) for mixer in (*mixers, plain)]


@pytest.fixture(params=["mamba", "coffee", "plain", "block of coffee"])
def layer(request):
    mamba_block, coffee_block, plain = deep()
    others = {"mamba": mamba_block, "coffee": coffee_block, "plain": plain}
    return randomized(others.get(request.param) or Block(CoffeeLayer(2)), DIM)


def test_a_padded_row_is_the_row_alone(layer):
    inputs = random_inputs(*SHAPE)
    run = compiled(lambda inputs, mask: layer(inputs, mask=mask))
    outputs = to_numpy(run(np.where(MASK[..., None], inputs, np.float32(np.nan)), MASK))
    for row in range(BATCH):
        alone = to_numpy(layer(inputs[row : row + 1, MASK[row]]))[0]
        np.testing.assert_allclose(outputs[row, MASK[row]], alone, **CLOSE)
    np.testing.assert_array_equal(outputs[0, 5], outputs[0, 4])
    assert not outputs[0, :2].any()


def test_steps_and_blocks_of_a_stream_are_the_whole(layer):
    inputs = random_inputs(*SHAPE)
    whole = to_numpy(layer(inputs))
    first = layer.get_initial_state(BATCH)
    outputs, state = layer.advance(inputs[:, :4], first if len(first) > 1 else first[0])
    np.testing.assert_allclose(to_numpy(outputs), whole[:, :4], **CLOSE)
    for t in range(4, LENGTH):
        outputs, state = layer.step(inputs[:, t], state)
        np.testing.assert_allclose(to_numpy(outputs), whole[:, t], **CLOSE)


def test_a_deep_model_streams_trains_and_is_saved(tmp_path):
    model = keras.Sequential([keras.Input((None, DIM)), *deep(), keras.layers.Dense(2)])
    inputs = random_inputs(*SHAPE)
    model.compile("adam", "mse")
    before = model.get_weights()
    model.fit(inputs, np.ones((BATCH, LENGTH, 2)), verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert (to_numpy(weight) != old).any(), weight.path
    stream = Stream(model)
    outputs, state = stream(inputs[:, :5], stream.get_initial_state(BATCH))
    rest, _ = stream(inputs[:, 5:], state)
    whole = to_numpy(model(inputs))
    pieces = np.concatenate([to_numpy(outputs), to_numpy(rest)], 1)
    np.testing.assert_allclose(pieces, whole, **CLOSE)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(inputs)), whole, rtol=1e-6, atol=1e-6)
    clone = keras.models.clone_model(model)
    assert not {id(w) for w in clone.weights} & {id(w) for w in model.weights}
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(to_numpy(clone(inputs)), whole, rtol=1e-6, atol=1e-6)


def test_a_stateful_block_carries_all_states_of_its_mixer():
    block = Block(MambaMixer(3), stateful=True)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, None, DIM)), block])
    inputs = random_inputs(*SHAPE)
    pieces = [to_numpy(model(inputs[:, k : k + 3])) for k in (0, 3, 6)]
    assert len(block.states) == 2 and all(to_numpy(state).any() for state in block.states)
    block.reset_state()
    np.testing.assert_allclose(np.concatenate(pieces, 1), to_numpy(model(inputs)), **CLOSE)


def test_backwards_is_the_flipped_sequence(layer):
    inputs, mask = random_inputs(*SHAPE), ops.convert_to_tensor(MASK)
    config = layer.get_config() | {"go_backwards": True, "name": "backwards"}
    backwards = type(layer).from_config(config)
    backwards.build(SHAPE)
    backwards.set_weights(layer.get_weights())
    expected = layer(inputs[:, ::-1].copy(), mask=ops.flip(mask, axis=1))
    actual = backwards(inputs, mask=mask)
    np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), **CLOSE)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16", "float64"])
def test_dtypes(policy):
    with precision(policy):
        layer = randomized(Block(MambaMixer(3, dtype=policy), dtype=policy, return_state=True), DIM)
        outputs, *states = layer(random_inputs(*SHAPE))
        wide = "float64" if policy == "float64" else "float32"
        dtypes = [keras.backend.standardize_dtype(x.dtype) for x in (outputs, *states)]
        assert dtypes == [layer.compute_dtype, wide, wide]
        assert np.isfinite(to_numpy(ops.cast(outputs, "float32"))).all()


@pytest.mark.parametrize("around", [Block, lambda mixer: MambaMixer(mixer=mixer, expand=1)])
def test_a_mixer_in_double_precision_keeps_its_states_in_it(around):
    with precision("float64"):
        layer = randomized(around(CoffeeLayer(2, dtype="float64")), DIM)
        state = layer.get_initial_state(BATCH)
        _, state = layer.advance(random_inputs(*SHAPE), state if len(state) > 1 else state[0])
        last = state[-1] if isinstance(state, (list, tuple)) else state
        assert keras.backend.standardize_dtype(last.dtype) == "float64"
        assert (to_numpy(last) != np.float32(to_numpy(last))).any()


def test_starts_are_mambas():
    layer = MambaMixer(n=5)
    layer.build((None, None, 64))
    w = weights_of(layer)
    assert w["step_projection"].shape == (4, 128) and w["input_projection"].shape == (64, 256)
    np.testing.assert_allclose(np.exp(w["log_transition"][7]), np.arange(1, 6), rtol=1e-6)
    delta = np.log1p(np.exp(w["step_bias"]))
    assert 0.0009 < delta.min() < 0.005 and 0.02 < delta.max() < 0.11
    assert (w["skip"] == 1).all() and abs(w["step_projection"]).max() <= 0.5
    assert abs(w["convolution/kernel"]).max() <= 0.5 and not w["convolution/bias"].any()


def test_no_more_weights_than_are_used():
    plain = randomized(MambaMixer(mixer=CoffeeLayer(2), kernel_size=None), DIM)
    names = ["input_projection", "output_projection"]
    assert [w.name for w in plain.weights] == [*names, "transition", "gate", "readout"]
    assert plain.state_size == [(12, 2)]


@pytest.mark.parametrize("make_layer", [Block, lambda mixer: MambaMixer(mixer=mixer)])
def test_mixers_that_are_refused(make_layer):
    with pytest.raises(TypeError, match=r"received <class .*Call it, as in MinGRU\(\.\.\.\)"):
        make_layer(MinGRU)
    with pytest.raises(TypeError, match="`mixer` must be a recurrent layer of keras_coffee.*GRU"):
        make_layer(keras.layers.GRU(3))
    flags = dict.fromkeys(
        ("go_backwards", "stateful", "return_state", "zero_output_for_mask"), True
    )
    for flag, value in {**flags, "return_sequences": False}.items():
        with pytest.raises(ValueError, match=f"`mixer` must not have {flag}={value}.*around it"):
            make_layer(CoffeeLayer(2, **{flag: value}))
    with pytest.raises(ValueError, match="not have an activity_regularizer.*layer around it"):
        make_layer(CoffeeLayer(2, activity_regularizer="l2"))
    mixer = CoffeeLayer(2, name="coffee")
    mixer.build((None, None, 5))
    with pytest.raises(ValueError, match="'coffee' was built for 5 features, but gets (6|12) here"):
        make_layer(mixer).build((None, None, DIM))


def test_a_configuration_may_leave_out_what_has_a_default():
    layer = MambaMixer.from_config({"n": 4})
    assert (layer.n, layer.mixer) == (4, None)


def test_unfit_arguments():
    with pytest.raises(ValueError, match="must have as many outputs as inputs, 6 here.*has 4"):
        Block(MinGRU(4)).build((None, None, DIM))
    others = {"n": "", "expand": "", "kernel_size": " or None", "step_rank": ' or "auto"'}
    for name, other in others.items():
        message = f"`{name}` must be a positive integer{other}, received 0"
        with pytest.raises(ValueError, match=message):
            MambaMixer(**{name: 0})
    with pytest.raises(ValueError, match='integer or "auto" or None, received 0'):
        S6Layer(2, step_rank=0)
    with pytest.raises(ValueError, match="`kernel_size` must be a positive integer"):
        CausalConv1D(0)


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ({"recompute": True}, "recompute=True"),
        ({"solver": "newton"}, "solver='newton'"),
        ({"solver": Sequential()}, r"solver=Sequential\(.*\)"),
    ],
)
def test_what_a_layer_without_a_recurrence_would_ignore_is_refused(given, received):
    for make in (Block, lambda mixer, **given: MambaMixer(mixer=mixer, **given)):
        message = (
            f"must not have {received}: its mixer is what runs. Give {received} to the mixer.$"
        )
        with pytest.raises(ValueError, match=message):
            make(MinGRU(DIM), **given)
    message = (
        f"^CausalConv1D must not have {received}: there is nothing to solve or to rec.*Leave it"
    )
    with pytest.raises(ValueError, match=message):
        CausalConv1D(3, **given)


def test_a_solver_of_the_mixer_alone_is_refused_with_the_same_words():
    # A block counts as linear, and would say that "newton" is for others.
    with pytest.raises(ValueError, match="^Block must not have solver='newton': its mixer"):
        Block(CoffeeLayer(2), solver="newton")
    assert Block(CoffeeLayer(2, solver="newton")).solver == "auto"


@pytest.mark.parametrize("layer", [Block(MinGRU(DIM)), CausalConv1D(3)])
def test_configurations_with_the_defaults_of_what_is_refused_are_loaded(layer):
    config = layer.get_config()
    assert (config["solver"], config["recompute"]) == ("auto", False)
    assert type(layer).from_config(config).get_config() == config
