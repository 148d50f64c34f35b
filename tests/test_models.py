"""Language models, and weights by the names of transformers, whose equations are a loop here."""

import itertools
import re
import types

import keras
import numpy as np
import pytest
from gradients import compiled, value_and_gradients
from keras import ops
from oracles import sigmoid
from recurrent import to_numpy

from keras_coffee import CoffeeLayer, Stream
from keras_coffee.layers import MambaMixer, MinGRU
from keras_coffee.models import from_transformers, language_model, to_transformers

VOCABULARY, PAD = 11, 3
CASES = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "no head": {},
    "biases": {"use_bias": True, "use_conv_bias": False, "expand": 3, "conv_kernel": 2},
}


class FakeTensor:
    """As little of a tensor as is needed to get at its array, in the order in which it works."""

    def __init__(self, array, *done):
        self.array, self.done = array, done

    def _after(self, step):
        return FakeTensor(self.array, *self.done, step)

    def detach(self):
        return self._after("detach")

    def cpu(self):
        return self._after("cpu")

    def float(self):
        return self._after("float")

    def numpy(self):
        assert self.done == ("detach", "cpu", "float")
        return self.array


class FakeMamba:
    def __init__(self, config, arrays):
        self.config, self.arrays = config, arrays

    def state_dict(self):
        return {name: FakeTensor(array) for name, array in self.arrays.items()}


def fake(case="tied", seed=0, **options):
    """A Mamba as transformers has it: its configuration and random arrays by its names."""
    c = types.SimpleNamespace(
        model_type="mamba",
        vocab_size=VOCABULARY,
        hidden_size=6,
        state_size=4,
        num_hidden_layers=2,
        expand=2,
        conv_kernel=4,
        time_step_rank=2,
        use_bias=False,
        use_conv_bias=True,
        layer_norm_epsilon=1e-3,
        hidden_act="silu",
        tie_word_embeddings=True,
        residual_in_fp32=True,
        pad_token_id=0,
    )
    vars(c).update(CASES[case] | options)
    c.intermediate_size = getattr(c, "intermediate_size", c.expand * c.hidden_size)
    inner, dim, n, rank = c.intermediate_size, c.hidden_size, c.state_size, c.time_step_rank
    shapes = {"embeddings.weight": (c.vocab_size, dim), "norm_f.weight": (dim,)}
    for k in range(c.num_hidden_layers):
        mixer = {
            "A_log": (inner, n),
            "D": (inner,),
            "conv1d.weight": (inner, 1, c.conv_kernel),
            "in_proj.weight": (2 * inner, dim),
            "x_proj.weight": (rank + 2 * n, inner),
            "dt_proj.weight": (inner, rank),
            "dt_proj.bias": (inner,),
            "out_proj.weight": (dim, inner),
        }
        mixer |= {"conv1d.bias": (inner,)} if c.use_conv_bias else {}
        mixer |= {"in_proj.bias": (2 * inner,), "out_proj.bias": (dim,)} if c.use_bias else {}
        shapes |= {f"layers.{k}.mixer.{name}": shape for name, shape in mixer.items()}
        shapes[f"layers.{k}.norm.weight"] = (dim,)
    generator = np.random.default_rng(seed)
    # Decays and step sizes of all kinds, and gates that are neither open nor closed.
    arrays = {
        name: generator.normal(size=shape, scale=1 if len(shape) == 1 else shape[-1] ** -0.5)
        for name, shape in shapes.items()
    }
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    if case != "no head":
        arrays = {f"backbone.{name}": array for name, array in arrays.items()}
        shape = (c.vocab_size, dim)
        arrays["lm_head.weight"] = arrays["backbone.embeddings.weight"].copy()
        if not c.tie_word_embeddings:
            arrays["lm_head.weight"] = generator.normal(size=shape).astype("float32")
    return FakeMamba(c, arrays)


def silu(x):
    return x * sigmoid(x)


def reference(config, arrays, tokens):
    """Logits, or what the last norm gives, one step after another in double precision."""
    w = {
        name.removeprefix("backbone."): np.asarray(a, np.result_type(a, "float64"))
        for name, a in arrays.items()
    }

    def norm(x, name):
        mean = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + config.layer_norm_epsilon) * w[f"{name}.weight"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def mixed(x, at):
        rank, n, kernel = config.time_step_rank, config.state_size, w[f"{at}.conv1d.weight"][:, 0]
        inner, size = kernel.shape
        window = np.zeros((len(x), inner, size), w[f"{at}.D"].dtype)
        state, outputs = np.zeros((len(x), inner, n), window.dtype), []
        for u in np.moveaxis(x, 1, 0):
            h, z = np.split(linear(u, f"{at}.in_proj"), 2, -1)
            window = np.concatenate([window[..., 1:], h[..., None]], -1)
            v = silu((window * kernel).sum(-1) + w.get(f"{at}.conv1d.bias", 0.0))
            d, b, c = np.split(linear(v, f"{at}.x_proj"), [rank, rank + n], -1)
            delta = np.log(1 + np.exp(linear(d, f"{at}.dt_proj")))[..., None]
            state = np.exp(-np.exp(w[f"{at}.A_log"]) * delta) * state
            state = state + delta * b[:, None] * v[..., None]
            y = (state * c[:, None]).sum(-1) + w[f"{at}.D"] * v
            outputs.append(linear(y * silu(z), f"{at}.out_proj"))
        return np.stack(outputs, 1)

    x = w["embeddings.weight"][tokens]
    for k in range(config.num_hidden_layers):
        x = x + mixed(norm(x, f"layers.{k}.norm"), f"layers.{k}.mixer")
    x = norm(x, "norm_f")
    return linear(x, "lm_head") if "lm_head.weight" in w else x


def some_tokens(batch, length, seed=1):
    return np.random.default_rng(seed).integers(VOCABULARY, size=(batch, length))


def assert_close(actual, expected, relative=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=relative * abs(expected).max())


@pytest.mark.parametrize(("case", "length"), [*itertools.product(CASES, (1, 7, 64)), ("tied", 500)])
def test_outputs_are_those_of_mambas_equations(case, length):
    theirs, tokens = fake(case), some_tokens(2, length)
    model = from_transformers(theirs)
    expected = reference(theirs.config, theirs.arrays, tokens)
    actual = to_numpy(compiled(model)(tokens))
    assert actual.dtype == "float32" and np.ptp(expected) > 1
    assert_close(actual, expected)


@pytest.mark.parametrize("case", ["tied", "biases"])
def test_gradients_are_those_of_mambas_equations(case):
    theirs, tokens = fake(case), some_tokens(2, 7)
    model = from_transformers(theirs)
    generator = np.random.default_rng(2)
    cotangent = generator.normal(size=(2, 7, VOCABULARY)).astype("float32")

    def loss(*weights):
        logits, _ = model.stateless_call(list(weights), [], tokens)
        return ops.sum(ops.multiply(logits, cotangent))

    variables = model.trainable_variables
    _, gradients = value_and_gradients(loss, *map(to_numpy, variables))

    # A derivative by the arrays of the other package, in random directions, by a complex step.
    def slope(name, direction):
        moved = theirs.arrays | {name: theirs.arrays[name] + 1e-30j * direction}
        if name == "backbone.embeddings.weight":  # a tied head moves with it
            moved["lm_head.weight"] = moved[name]
        return (reference(theirs.config, moved, tokens) * cotangent).sum().imag / 1e-30

    # The gradients by their names: what `to_transformers` says of a model that has them as weights.
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign(gradient)
    by_name = to_transformers(model)[1]
    assert set(by_name) == set(theirs.arrays)
    for name, gradient in by_name.items():
        if name == "lm_head.weight":
            continue
        for _ in range(3):
            direction = generator.normal(size=gradient.shape)
            actual, norm = (gradient * direction).sum(), np.linalg.norm(gradient)
            assert norm > 0
            assert abs(actual - slope(name, direction)) <= 1e-5 * norm, name


@pytest.mark.parametrize("case", CASES)
def test_weights_come_back_by_their_names(case, tmp_path):
    theirs = fake(case)
    model = from_transformers(theirs, pad_token_id=PAD)
    model.save(tmp_path / "model.keras")
    for ours in (model, keras.models.load_model(tmp_path / "model.keras")):
        config, weights = to_transformers(ours)
        assert set(weights) == set(theirs.arrays)
        for name, array in theirs.arrays.items():
            np.testing.assert_array_equal(weights[name], array, err_msg=name)
            assert weights[name].flags.c_contiguous and weights[name].flags.writeable
    # All that decides what the other package computes.
    left = {"model_type", "hidden_act", "intermediate_size", "residual_in_fp32", "pad_token_id"}
    assert config == {k: v for k, v in vars(theirs.config).items() if k not in left}
    tokens = some_tokens(2, 7)
    np.testing.assert_array_equal(to_numpy(ours(tokens)), to_numpy(model(tokens)))


def test_weights_are_copied():
    theirs, original = fake(), fake().arrays
    model = from_transformers(theirs)
    for array in theirs.arrays.values():
        array += 1
    for array in to_transformers(model)[1].values():
        array += 1
    for name, array in to_transformers(model)[1].items():
        np.testing.assert_array_equal(array, original[name], err_msg=name)


@pytest.mark.parametrize(("pad_token_id", "length"), [(None, 200), (PAD, 12)], ids=["", "masks"])
def test_a_stream_gives_the_logits_of_the_whole(pad_token_id, length):
    model = from_transformers(fake(), pad_token_id=pad_token_id)
    tokens = some_tokens(2, length)
    assert (tokens == PAD).any() and tokens[0, 0] != PAD
    whole = to_numpy(model(tokens))
    stream = Stream(model)
    step, state, logits = compiled(stream.step), stream.get_initial_state(2), []
    for t in range(tokens.shape[1]):
        outputs, state = step(tokens[:, t], state)
        logits.append(to_numpy(outputs))
    assert_close(np.stack(logits, 1), whole)
    _, state = stream(tokens[:, :5], stream.get_initial_state(2))
    assert_close(to_numpy(stream(tokens[:, 5:], state)[0]), whole[:, 5:])


def others():
    """Mixers of other kinds, beside Mamba's."""
    inner = MambaMixer(mixer=CoffeeLayer(2), kernel_size=2)
    return [MambaMixer(3), inner, CoffeeLayer(2), MinGRU(6)]


@pytest.mark.parametrize("kind", ["mamba", "others"])
def test_a_padded_row_is_the_row_alone(kind):
    model = language_model(VOCABULARY, 6, others(), pad_token_id=PAD)
    if kind == "mamba":
        model = from_transformers(fake(), pad_token_id=PAD)
    rows = [
        np.delete(row, np.flatnonzero(row == PAD))[:length]
        for row, length in zip(some_tokens(3, 30), (9, 2, 6), strict=True)
    ]
    run = compiled(model)
    alone = [to_numpy(run(row[None]))[0] for row in rows]
    for side in ("left", "right"):
        padded = np.full((3, 9), PAD)
        for k, row in enumerate(rows):
            padded[k, 9 - len(row) if side == "left" else 0 :][: len(row)] = row
        logits = to_numpy(run(padded))
        for k, expected in enumerate(alone):
            assert_close(logits[k][padded[k] != PAD], expected)


def test_any_recurrent_layer_may_be_the_mixer():
    model = language_model(VOCABULARY, 6, others(), head="untied")
    names = ["tokens", "embedding", *(f"block_{i}" for i in range(4)), "norm"]
    assert [layer.name for layer in model.layers] == names
    assert model.output_shape == (None, None, VOCABULARY)
    own = sum(mixer.count_params() for mixer in (layer.mixer for layer in model.layers[2:6]))
    assert model.count_params() == 2 * VOCABULARY * 6 + own + 5 * 6
    tokens = some_tokens(4, 9)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    model.fit(tokens[:, :-1], tokens[:, 1:], verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert (to_numpy(weight) != old).any(), weight.path
    stream = Stream(model)
    first, state = stream(tokens[:, :4], stream.get_initial_state(4))
    pieces = [to_numpy(first), to_numpy(stream(tokens[:, 4:], state)[0])]
    assert_close(np.concatenate(pieces, 1), to_numpy(model(tokens)))


def test_where_it_starts():
    embedding, *_ = language_model(500, 40, [MambaMixer(2)]).weights
    assert abs(to_numpy(embedding).std() - 0.02) < 0.001
    model = language_model(9, 4, [MambaMixer(2)], head=None, embeddings_initializer="ones")
    assert (to_numpy(model.weights[0]) == 1).all() and model.output_shape == (None, None, 4)


def test_an_untied_head_starts_with_numbers_of_its_own():
    def made():
        keras.utils.set_random_seed(3)
        return language_model(11, 8, [MambaMixer(2)], head="untied").get_layer("embedding")

    first, second = made(), made()
    tables = [to_numpy(w).ravel() for w in (*first.weights, *second.weights)]
    assert abs(np.corrcoef(tables[:2])[0, 1]) < 0.5
    np.testing.assert_array_equal(tables[:2], tables[2:])


def test_embeddings_start_by_a_name_of_the_package():
    model = language_model(50, 40, [MambaMixer(2)], embeddings_initializer="standard_normal")
    vectors = ops.convert_to_numpy(model.get_layer("embedding").embeddings)
    assert 0.9 < vectors.std() < 1.1


def test_policies():
    theirs = fake(residual_in_fp32=False)
    model = from_transformers(theirs, dtype="mixed_bfloat16")
    assert {layer.compute_dtype for layer in model.layers[2:]} == {"bfloat16"}
    tokens = some_tokens(2, 7)
    actual = to_numpy(ops.cast(model(tokens), "float32"))
    assert_close(actual, reference(theirs.config, theirs.arrays, tokens), 0.03)
    message = "residual_in_fp32=True, but with dtype='mixed_bfloat16' blocks hand on bfloat16"
    with pytest.raises(ValueError, match=message):
        from_transformers(fake(), dtype="mixed_bfloat16")


def test_arguments_that_are_refused():
    mixer = MambaMixer(2)
    for name, sizes in (("vocabulary_size", (0, 4)), ("dim", (9, 0))):
        with pytest.raises(ValueError, match=f"`{name}` must be a positive integer, received 0"):
            language_model(*sizes, [mixer])
    for mixers in ([], [mixer, mixer]):
        with pytest.raises(ValueError, match="a separate layer for each block, received"):
            language_model(9, 4, mixers)
    with pytest.raises(
        ValueError, match=r"`head` must be one of \('tied', 'untied', None\), received True"
    ):
        language_model(9, 4, [mixer], head=True)
    for token in (-1, 9, 1.0):
        with pytest.raises(
            ValueError, match=f"must be None or a token from 0 to 8, received {token}"
        ):
            language_model(9, 4, [mixer], pad_token_id=token)
    with pytest.raises(TypeError, match="`mixer` must be a recurrent layer of keras_coffee"):
        language_model(9, 4, [keras.layers.GRU(4)])
    with pytest.raises(TypeError, match="`mixers` must be a list of layers.*received <MambaMixer"):
        language_model(9, 4, mixer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "falcon_mamba"}, "must have model_type='mamba', received 'falcon_mamba'"),
        ({"hidden_act": "gelu"}, "must have hidden_act='silu', received 'gelu'"),
        ({"intermediate_size": 9}, "`intermediate_size` must be a multiple.*received 9 and 6"),
    ],
)
def test_configurations_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        from_transformers(fake(**options))


def test_weights_that_are_refused():
    for other in (None, np.ones(3), types.SimpleNamespace(config=None, state_dict=dict)):
        with pytest.raises(TypeError, match="a MambaModel of transformers, received"):
            from_transformers(other)
    theirs = fake()
    theirs.arrays["backbone.adapter"] = theirs.arrays.pop("backbone.layers.1.mixer.D")
    with pytest.raises(ValueError, match="Missing.*layers.1.mixer.D'.*known.*'backbone.adapter'"):
        from_transformers(theirs)
    for shape in ((12, 1, 5), (12, 2, 4), (12, 0, 4)):
        theirs = fake()
        theirs.arrays["backbone.layers.0.mixer.conv1d.weight"] = np.ones(shape)
        message = (
            rf"conv1d.weight` must have the shape \(12, 1, 4\).*received {re.escape(str(shape))}"
        )
        with pytest.raises(ValueError, match=message):
            from_transformers(theirs)
    theirs = fake()
    del theirs.arrays["backbone.embeddings.weight"]
    with pytest.raises(ValueError, match=r"Missing: \['backbone.embeddings.weight'\]"):
        from_transformers(theirs)
    theirs = fake()
    theirs.arrays["lm_head.weight"] += 1
    with pytest.raises(
        ValueError, match="tie_word_embeddings=True, but its `lm_head.weight` is not"
    ):
        from_transformers(theirs)


@pytest.mark.parametrize(
    "mixers",
    [lambda: [MambaMixer(mixer=CoffeeLayer(2))], lambda: [MambaMixer(2, kernel_size=None)], others],
    ids=["coffee", "no convolution", "others"],
)
def test_models_that_transformers_does_not_have(mixers):
    with pytest.raises(
        ValueError, match="must come from `language_model` with a MambaMixer.*MambaMixer"
    ):
        to_transformers(language_model(9, 6, mixers()))


@pytest.mark.parametrize("other", [3, None, MambaMixer])
def test_what_is_no_model(other):
    with pytest.raises(ValueError, match="`model` must come from `language_model`.*received"):
        to_transformers(other)


def test_models_with_blocks_of_other_sizes():
    model = language_model(9, 4, [MambaMixer(2), MambaMixer(3)])
    with pytest.raises(ValueError, match="one configuration for all blocks, but 'block_1' has"):
        to_transformers(model)
    sequential = keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"must come from `language_model`.*\['Dense'\]"):
        to_transformers(sequential)
