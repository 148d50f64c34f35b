"""The kernels of the linear recurrence for a CPU against a float64 loop."""

import functools
import importlib
import itertools

import keras
import numpy as np
import oracles
import pytest
from rounding import Rounded, assert_agrees
from scans import precision, widened

from keras_coffee.backend.cpu import blocks

BACKEND = keras.config.backend()
if BACKEND == "numpy":
    pytest.skip("without kernels", allow_module_level=True)

cpu_kernels = importlib.import_module(f"keras_coffee.backend.{BACKEND}.cpu_kernels")

REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
KINDS = pytest.mark.parametrize("kind", ["float32", "complex64"], ids=["real", "complex"])
NAMES = "decay", "inputs", "initial_state"


def run(arrays, cotangent, reverse):
    """States, and the gradients by the three arguments."""
    tensors = [arrays[name] for name in NAMES]
    if BACKEND == "tensorflow":
        return _run_operations(tensors, cotangent, reverse)
    with precision("float64" if cotangent.dtype in ("float64", "complex128") else "float32"):
        convert, forward, backward = _framework(reverse)
        decay, inputs, state, grads = map(convert, (*tensors, cotangent))
        states = forward(decay, inputs, state)
        return [np.asarray(x) for x in (states, *backward(grads, states, decay, state))]


def _run_operations(arrays, cotangent, reverse):
    tf = importlib.import_module("tensorflow")
    tensors = decay, *_ = [tf.constant(x) for x in arrays]
    varies = [size != 1 for size in decay.shape[:2]]
    operations = cpu_kernels.linear_operations(decay.dtype, reverse, *varies)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        states = cpu_kernels.linear_scan(operations, *tensors)
    return [x.numpy() for x in (states, *tape.gradient(states, tensors, tf.constant(cotangent)))]


@functools.cache
def _framework(reverse):
    """From an array to a tensor, and both kernels, compiled once for each shape."""
    kernels = cpu_kernels.linear_forward, cpu_kernels.linear_backward
    forward, backward = (functools.partial(kernel, reverse=reverse) for kernel in kernels)
    if BACKEND == "torch":
        return importlib.import_module("torch").from_numpy, forward, backward
    jax = importlib.import_module("jax")
    return jax.numpy.asarray, jax.jit(forward), jax.jit(backward)


@pytest.fixture(autouse=True)
def memory_that_is_not_written_is_nan(monkeypatch):
    if BACKEND != "torch":
        return
    torch = importlib.import_module("torch")
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda x, s: new_empty(x, s).fill_(np.nan))


def arrays_of(shape, kind="float32", broadcast=(), decay=None, seed=0):
    """Inputs of scale 3, and decays of sizes up to 1, or what `decay` makes of a shape."""
    generator = np.random.default_rng(seed)

    def normal(shape):
        parts = generator.normal(size=(2, *shape))
        return (parts[0] + 1j * parts[1] if kind == "complex64" else parts[0]).astype(kind)

    decay_shape = tuple(1 if axis in broadcast else size for axis, size in enumerate(shape))
    if decay is None:
        direction = normal(decay_shape)
        decays = direction / np.maximum(abs(direction), 1e-9)
        decays = decays * generator.uniform(0, 1, decay_shape)
    else:
        decays = decay(generator, decay_shape)
    state_shape = shape[0], *shape[2:]
    arrays = {
        "decay": decays.astype(kind),
        "inputs": 3 * normal(shape),
        "initial_state": normal(state_shape),
    }
    return arrays, normal(shape)


def check(arrays, cotangent, reverse=False, double=False):
    if double:
        arrays = {name: widened(x) for name, x in arrays.items()}
        cotangent = widened(cotangent)
    wide = {name: Rounded(widened(x)) for name, x in arrays.items()}
    (states,), gradients = oracles.linear(wide, [Rounded(widened(cotangent))], reverse)
    expected = [states, *(gradients[name] for name in NAMES)]
    results = run(arrays, cotangent, reverse)
    for name, actual, right in zip(("states", *NAMES), results, expected, strict=True):
        assert actual.dtype == cotangent.dtype
        assert_agrees(actual, right, name)


@REVERSE
@KINDS
@pytest.mark.parametrize("broadcast", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("double", [False, True], ids=["", "double"])
def test_values_and_gradients(broadcast, kind, double, reverse):
    # More sequences than there are parts of a sum, and the last part has fewer.
    check(*arrays_of((37, 9, 5), kind, broadcast), reverse, double)


@REVERSE
@KINDS
@pytest.mark.parametrize(
    "shape", [(3, 7, 1), (2, 5, 131), (2, 3, 1000), (1, 1, 16), (2, 9, 3, 2, 5), (4, 6)], ids=str
)
def test_every_width(shape, kind, reverse):
    for broadcast in ((), (0, 1)):
        check(*arrays_of(shape, kind, broadcast), reverse)


@pytest.mark.parametrize("broadcast", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 5, 0)], ids=str)
def test_nothing_has_gradients_of_zero(shape, broadcast):
    arrays, cotangent = arrays_of(shape, broadcast=broadcast)
    _, grad_decay, *others = run(arrays, cotangent, False)
    assert grad_decay.shape == arrays["decay"].shape and not grad_decay.any()
    assert [x.shape for x in others] == [shape, (shape[0], *shape[2:])]


def one_of(*values):
    return lambda generator, shape: generator.choice(values, shape)


def on_the_circle(generator, shape):
    """Of sizes around 1, both sides of it, and 1."""
    sizes = generator.choice([0.999, 1, 1.001], shape)
    return sizes * np.exp(1j * generator.uniform(-np.pi, np.pi, shape))


HARD = {
    "zero": one_of(0.0),
    "one": one_of(1.0),
    "minus one": one_of(-1.0),
    "zeros between": one_of(0.0, 1.0, -0.5),
    "near one": lambda generator, shape: 1 - generator.uniform(0, 2e-4, shape),
    "negative": lambda generator, shape: -generator.uniform(0, 1, shape),
    "growing": one_of(1.5, -1.2, 0.7),
}


@REVERSE
@pytest.mark.parametrize("decay", HARD.values(), ids=HARD)
def test_hard_decays(decay, reverse):
    for broadcast in ((), (0,), (1,), (0, 1)):
        check(*arrays_of((3, 40, 17), broadcast=broadcast, decay=decay), reverse)


@REVERSE
@pytest.mark.parametrize("broadcast", [(), (0, 1)], ids=str)
def test_complex_decays_near_the_unit_circle(broadcast, reverse):
    check(*arrays_of((2, 500, 9), "complex64", broadcast, on_the_circle), reverse)


@KINDS
@pytest.mark.parametrize("broadcast", [(), (0, 1)], ids=str)
@pytest.mark.parametrize("double", [False, True], ids=["", "double"])
def test_long_sequences(broadcast, kind, double):
    decay = on_the_circle if kind == "complex64" else HARD["near one"]
    check(*arrays_of((2, 4096, 3), kind, broadcast, decay), double=double)


@REVERSE
def test_bad_numbers_stay_in_their_element_and_go_on_from_their_step(reverse):
    for name, value in itertools.product(("decay", "inputs"), (np.nan, np.inf)):
        arrays, cotangent = arrays_of((3, 8, 20))
        arrays["decay"][:] = 0.5
        clean = run(arrays, cotangent, reverse)
        arrays[name][1, 5, 7] = value
        for x, y in zip(run(arrays, cotangent, reverse), clean, strict=True):
            element = np.zeros(x.shape, bool)
            element[1, ..., 7] = True
            np.testing.assert_array_equal(x[~element], y[~element])
        states = run(arrays, cotangent, reverse)[0]
        bad = slice(None, 6) if reverse else slice(5, None)
        assert np.isfinite(states[1, :, 7]).sum() == 8 - len(range(8)[bad])
        assert not np.isfinite(states[1, bad, 7]).any()


@pytest.mark.skipif(BACKEND != "torch", reason="XLA decides how many threads it has")
@KINDS
@pytest.mark.parametrize("broadcast", [(), (0,), (0, 1)], ids=str)
def test_threads_change_no_bit(broadcast, kind, monkeypatch):
    torch = importlib.import_module("torch")
    arrays, cotangent = arrays_of((37, 9, 131), kind, broadcast)
    alone = run(arrays, cotangent, False)
    monkeypatch.setattr(blocks, "_STATES_PER_THREAD", 1)
    try:
        torch.set_num_threads(3)
        for x, y in zip(run(arrays, cotangent, False), alone, strict=True):
            np.testing.assert_array_equal(x, y)
    finally:
        torch.set_num_threads(1)


@pytest.mark.skipif(BACKEND != "torch", reason="XLA sets the mode of its own threads")
def test_adjoints_fade_away_to_zero():
    # Half of it at every step: without flushing, the last ones before zero were subnormal.
    arrays, cotangent = arrays_of((1, 400, 3), decay=one_of(0.5))
    cotangent[:, :-1] = 0
    grad_inputs = run(arrays, cotangent, False)[2]
    tiny = np.finfo("float32").tiny
    fading = grad_inputs[abs(grad_inputs) < tiny]
    assert fading.size > 3 * 200 and not fading.any()
