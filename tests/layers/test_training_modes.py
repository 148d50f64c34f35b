"""Every way to train and every source of data gives the losses of plain `fit` on arrays."""

import itertools

import keras
import numpy as np
import pytest
from nightly import IS_NIGHTLY, IS_THOROUGH
from recurrent import WITH_LINEARIZED_S6, make, random_inputs

BACKEND = keras.config.backend()
BATCH, LENGTH, DIM = 2, 9, 3
# Four batches, which three steps at once do not divide.
INPUTS = random_inputs(4 * BATCH, LENGTH, DIM)
TARGETS = random_inputs(4 * BATCH, LENGTH, 1, seed=1)
# The same numbers by other compilers, over eight steps.
CLOSE = 1e-5


@pytest.fixture(params=WITH_LINEARIZED_S6)
def name(request):
    return request.param


def compiled(name, length=None, **options):
    """The same model at each call; a carried state shows whether any batch comes twice."""
    keras.utils.set_random_seed(0)
    layer = make(name, stateful=True)
    layers = [layer, keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, length, DIM)), *layers])
    model.compile(keras.optimizers.Adam(0.03), "mse", **options)
    return model


def losses(model, *data, epochs=2, **arguments):
    history = model.fit(*data, epochs=epochs, shuffle=False, verbose=0, **arguments).history["loss"]
    assert len(set(history)) == epochs
    return history


def on_arrays(name, **options):
    model = compiled(name, **options)
    history = losses(model, INPUTS, TARGETS, batch_size=BATCH)
    return [*history, model.predict(INPUTS, batch_size=BATCH, verbose=0)]


@pytest.fixture(scope="module")
def plain():
    return {name: on_arrays(name) for name in WITH_LINEARIZED_S6}


def assert_same(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        scale = np.abs(e).max()
        np.testing.assert_allclose(a / scale, e / scale, rtol=0, atol=CLOSE)


# Modes.


MODES = [
    {"jit_compile": True},
    {"jit_compile": False},
    {"run_eagerly": True},
    {"steps_per_execution": 3},
]
# COFFEE in every mode, another layer in the one that leaves most to a compiler.
PAIRS = [*((WITH_LINEARIZED_S6[0], mode) for mode in MODES), (WITH_LINEARIZED_S6[1], MODES[0])]


@pytest.mark.parametrize(
    ("name", "options"),
    list(itertools.product(WITH_LINEARIZED_S6, MODES)) if IS_THOROUGH else PAIRS,
    ids=str,
)
def test_modes_of_compilation(name, plain, options):
    if BACKEND == "torch" and options.get("jit_compile"):
        pytest.skip("takes long; test_torch_compile does it on short sequences")
    if BACKEND == "torch" and "steps_per_execution" in options:
        pytest.skip("Keras refuses more than one step on PyTorch")
    assert_same(on_arrays(name, **options), plain[name])


# PyTorch's compiler warns of what it does itself.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(BACKEND != "torch", reason="the others compile in test_modes_of_compilation")
def test_torch_compile(name):
    if name != "coffee-all" and not IS_NIGHTLY:
        pytest.skip("takes 40 seconds; --hypothesis-profile=nightly runs it")
    inputs, targets = INPUTS[:, :2], TARGETS[:, :2]
    histories = []
    for jit_compile in (False, True):
        model = compiled(name, jit_compile=jit_compile)
        histories.append(losses(model, inputs, targets, batch_size=BATCH))
    assert_same(*histories)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(BACKEND != "torch", reason="what PyTorch's compiler does with copies")
@pytest.mark.skipif(not IS_NIGHTLY, reason="takes 30 seconds each")
@pytest.mark.parametrize("linear", ["min-gru", "lru"])
def test_torch_compile_with_a_carried_state(linear):
    """Its compiler left out the copy of the state that an operator keeps for its gradient."""
    moved = []
    for jit_compile in (False, True):
        model = compiled(linear, jit_compile=jit_compile)
        model.fit(INPUTS[:, :2], TARGETS[:, :2], batch_size=BATCH, shuffle=False, verbose=0)
        moved.append([keras.ops.convert_to_numpy(w) for w in model.trainable_weights])
    assert_same(*moved)


# Data.


def batches():
    return [(INPUTS[i : i + BATCH], TARGETS[i : i + BATCH]) for i in range(0, 4 * BATCH, BATCH)]


class Batches(keras.utils.PyDataset):
    def __init__(self, pairs):
        super().__init__()
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def generator():
    while True:
        yield from batches()


def tensorflow_dataset():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS)).batch(BATCH, drop_remainder=True)


def torch_loader():
    import torch

    pairs = torch.utils.data.TensorDataset(torch.tensor(INPUTS), torch.tensor(TARGETS))
    return torch.utils.data.DataLoader(pairs, batch_size=BATCH)


def tensors():
    return keras.ops.convert_to_tensor(INPUTS), keras.ops.convert_to_tensor(TARGETS)


# Each framework's own data on its own backend: no test loads two frameworks.
SOURCES = {
    "tensors": lambda: (tensors(), {"batch_size": BATCH}),
    "generator": lambda: ((generator(),), {"steps_per_epoch": 4}),
    "PyDataset": lambda: ((Batches(batches()),), {}),
    "tf.data": lambda: ((tensorflow_dataset(),), {}),
    "DataLoader": lambda: ((torch_loader(),), {}),
}
OWN = {"tf.data": "tensorflow", "DataLoader": "torch"}


# What a source gives is the same for every layer.
@pytest.mark.parametrize("name", WITH_LINEARIZED_S6 if IS_THOROUGH else WITH_LINEARIZED_S6[:1])
@pytest.mark.parametrize("source", SOURCES)
def test_sources_of_data(name, plain, source):
    if OWN.get(source, BACKEND) != BACKEND:
        pytest.skip(f"for {OWN[source]}")
    data, arguments = SOURCES[source]()
    assert_same(losses(compiled(name), *data, **arguments), plain[name][:2])


def test_batches_of_varying_length(name):
    # An epoch over the dataset, and by hand, batch by batch.
    lengths = (LENGTH, 4, LENGTH, 4)
    pairs = [(x[:, :t], y[:, :t]) for (x, y), t in zip(batches(), lengths, strict=True)]
    by_dataset, by_hand = compiled(name), compiled(name)
    (loss,) = losses(by_dataset, Batches(pairs), epochs=1)
    assert_same([loss], [np.mean([by_hand.train_on_batch(*pair) for pair in pairs])])
    assert_same(by_dataset.get_weights(), by_hand.get_weights())
