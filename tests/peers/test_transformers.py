"""The Mamba of transformers and ours with its weights, in float32.

`make test-peers ARGS="-k transformers -s"` also prints each difference.
"""

import sys

import keras
import numpy as np
import pytest
from gradients import compiled, value_and_gradients
from keras import ops

from keras_coffee import Stream
from keras_coffee.models import from_transformers, to_transformers

if "tensorflow" in sys.modules and "triton" not in sys.modules:
    # transformers imports it through PyTorch. Loaded after TensorFlow, it ends the process.
    pytest.skip("needs pytest -p triton", allow_module_level=True)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="make test-peers installs it")
# Loaded now: a test of another file may load TensorFlow.
MambaForCausalLM = transformers.MambaForCausalLM

VOCABULARY, PAD = 97, 0
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 3}
LARGE = {"vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 24}
every_length = pytest.mark.parametrize("length", [1, 7, 64, 500])


def mamba(**sizes):
    torch.manual_seed(0)
    config = transformers.MambaConfig(eos_token_id=None, pad_token_id=PAD, **sizes)
    return MambaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def theirs():
    return mamba(**SMALL)


@pytest.fixture(scope="module")
def ours(theirs):
    return from_transformers(theirs)


def their_logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens), use_cache=False).logits.numpy()


def our_logits(model, tokens):
    return ops.convert_to_numpy(compiled(model)(tokens))


def assert_near(found, expected, bound=1e-5):
    difference, largest = np.abs(found - expected).max(), np.abs(expected).max()
    print(f"{keras.config.backend()}: {difference:.1e} of {largest:.1e}")
    assert difference <= bound * largest


def tokens_of(*shape):
    return np.random.default_rng(0).integers(1, VOCABULARY, size=shape)


@every_length
def test_logits(theirs, ours, length):
    tokens = tokens_of(2, length)
    assert_near(our_logits(ours, tokens), their_logits(theirs, tokens))


@every_length
def test_gradients_of_all_weights(theirs, ours, length):
    tokens = tokens_of(2, length)
    by_logits = np.random.default_rng(1).normal(size=(2, length, VOCABULARY)).astype("float32")
    theirs.zero_grad()
    logits = theirs(torch.tensor(tokens), use_cache=False).logits
    (logits * torch.tensor(by_logits)).sum().backward()

    def loss(*weights):
        logits = ours.stateless_call(weights, [], tokens)[0]
        return ops.sum(ops.multiply(logits, by_logits))

    weights = ours.get_weights()
    _, gradients = value_and_gradients(loss, *weights)
    # By their names: what `to_transformers` says of a model that has the gradients as weights.
    ours.set_weights(gradients)
    found = to_transformers(ours)[1]
    ours.set_weights(weights)
    for name, parameter in theirs.named_parameters():
        assert_near(found[name], parameter.grad.numpy(), 1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_padded_batch_equal_each_alone(theirs, side):
    rows = [tokens_of(length) for length in (64, 3, 17)]
    padded = np.full((3, 64), PAD)
    for k, row in enumerate(rows):
        start = 64 - len(row) if side == "left" else 0
        padded[k, start : start + len(row)] = row
    found = our_logits(from_transformers(theirs, pad_token_id=PAD), padded)
    for logits, tokens, row in zip(found, padded, rows, strict=True):
        assert_near(logits[tokens != PAD], their_logits(theirs, row[None])[0])


def test_two_hundred_tokens_from_the_cached_state(theirs, ours):
    stream = Stream(ours)
    step, state = compiled(stream.step), stream.get_initial_state(1)
    # Drawn, since the likeliest tokens of random weights soon repeat themselves.
    tokens, logits = tokens_of(1, 200), []
    for k in range(tokens.shape[1]):
        one, state = step(tokens[:, k], state)
        logits.append(ops.convert_to_numpy(one))
    assert_near(np.stack(logits, 1), their_logits(theirs, tokens))


def test_likeliest_tokens_are_those_of_generate(theirs, ours):
    stream = Stream(ours)
    step, state = compiled(stream.step), stream.get_initial_state(1)
    token, found = np.array([5]), [5]
    for _ in range(199):
        logits, state = step(token, state)
        token = np.argmax(ops.convert_to_numpy(logits), -1)
        found.append(int(token[0]))
    expected = theirs.generate(torch.tensor([[5]]), max_new_tokens=199, do_sample=False)
    assert found == expected[0].tolist()


# Weights of the default `initializer_range`, 0.1, amplify rounding over 24 layers: each package is
# about as far from float64 as from the other.
@pytest.mark.parametrize(("initializer_range", "bound"), [(0.02, 1e-5), (0.1, 1e-3)])
def test_logits_in_the_shape_of_130m(initializer_range, bound):
    theirs = mamba(**LARGE, initializer_range=initializer_range)
    tokens = np.random.default_rng(0).integers(0, LARGE["vocab_size"], size=(1, 64))
    expected = their_logits(theirs, tokens)
    assert_near(our_logits(from_transformers(theirs), tokens), expected, bound)
