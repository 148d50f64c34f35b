import numpy as np
import oracles
import pytest
from nightly import once
from scans import coffee_arrays, cotangents_of, selective_arrays

pytestmark = once


@pytest.fixture(scope="module")
def c_reference(benchmark):
    module = benchmark("c_reference")
    if module.compiler() is None:
        pytest.skip("no C compiler")
    return module


NAMES = "inputs", "transition", "gate", "readout", "initial_state"


def arrays_of(shape, *, gate_scale=0.5):
    """Arguments of the forward pass; gradients of the outputs and of the final state."""
    arrays = coffee_arrays(shape, gate_scale=gate_scale, input_scale=1, optional=False)
    random = np.random.default_rng(1)
    sizes = shape[:3], (shape[0], *shape[2:])
    grads = [random.normal(size=size).astype("float32") for size in sizes]
    return [arrays[name] for name in NAMES], grads


def expected(tensors, grads):
    """What the definition gives in float64, and its gradients."""
    arrays = {name: x.astype("float64") for name, x in zip(NAMES, tensors, strict=True)}
    results, gradients = oracles.coffee(arrays, [x.astype("float64") for x in grads])
    return *results, *(gradients[name] for name in NAMES)


def assert_close(answers, right, tolerance):
    """Relative to the largest element of each."""
    for x, y in zip(answers, right, strict=True):
        assert np.abs(x - y).max() <= tolerance * np.abs(y).max()


SHAPES = [
    (3, 7, 5, 3),  # nothing fills a vector
    (7, 9, 25, 2),  # groups of five sequences, then two
    (9, 33, 32, 1),  # groups of four sequences, then one
    (2, 4, 300, 1),  # a sequence has more lanes than a group
    (1, 1, 1, 1),
    (2, 2000, 16, 8),
]
TOLERANCE = 5e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(c_reference, shape):
    tensors, grads = arrays_of(shape)
    right = expected(tensors, grads)
    answers = c_reference.Coffee(shape, keeps=True).training(grads, *tensors)
    assert_close(answers, right, TOLERANCE)
    inference = c_reference.Coffee(shape, keeps=False)
    assert_close(inference.forward(*tensors), right[:2], TOLERANCE)


@pytest.mark.parametrize("shape", [(3, 7, 5), (1, 1, 1), (2, 2000, 131)], ids=str)
def test_linear_against_float64(c_reference, shape):
    random = np.random.default_rng(0)
    batch, _, width = shape
    tensors = [
        random.uniform(-1, 1, size=shape),
        random.normal(size=shape),
        random.normal(size=(batch, width)),
    ]
    names = "decay", "inputs", "initial_state"
    grads = [random.normal(size=shape)]
    results, gradients = oracles.linear(dict(zip(names, tensors, strict=True)), grads)
    right = [x.value for x in (*results, *(gradients[name] for name in names))]
    tensors, grads = ([x.astype("float32") for x in y] for y in (tensors, grads))
    linear = c_reference.Linear(shape, keeps=True)
    for _ in range(2):  # a second call adds nothing to the first
        assert_close(linear.training(grads, *tensors), right, TOLERANCE)
    assert linear.nbytes == 4 * (3 * np.prod(shape) + batch * width)
    inference = c_reference.Linear(shape, keeps=False)
    assert_close(inference.forward(*tensors), right[:1], TOLERANCE)
    assert inference.nbytes == 4 * np.prod(shape)


@pytest.mark.parametrize("discretization", ["mamba", "zoh"])
@pytest.mark.parametrize(
    "shape",
    [
        (3, 7, 5, 3),  # nothing fills a vector
        (2, 9, 150, 7),  # a block of 144 features, then one of six
        (2, 3, 20, 100),  # a block of 16 features, then one of four
        (1, 1, 1, 1),
        (2, 1000, 64, 16),
    ],
    ids=str,
)
def test_selective_against_float64(c_reference, shape, discretization):
    arrays = selective_arrays(shape, skip=True)
    grads, names = cotangents_of(arrays), [name for name in arrays if name != "initial_state"]
    wide = {name: x.astype("float64") for name, x in arrays.items()}
    wide["initial_state"][:] = 0
    results, gradients = oracles.selective(
        wide, [x.astype("float64") for x in grads], discretization
    )
    right = [*results, *(gradients[name] for name in names)]
    tensors = [arrays[name] for name in names]
    selective = c_reference.Selective(shape, True, discretization)
    for _ in range(2):  # a second call adds nothing to the first
        assert_close(selective.training(grads, *tensors), right, TOLERANCE)
    inference = c_reference.Selective(shape, False, discretization)
    assert_close(inference.forward(*tensors), right[:2], TOLERANCE)
    batch, length, dim, n = shape
    outputs = 4 * (batch * length * dim + batch * dim * n)
    assert inference.nbytes == outputs
    if dim % 16 == 0:
        weights, states = dim * n + dim, batch * length * n * (dim + 2)
        assert selective.nbytes == outputs + 4 * (2 * batch * length * dim + weights + states)


def test_exponential_of_the_selective_loop(c_reference):
    # The first step puts 1 into the state, the second keeps e^λ of it.
    count = 8192
    inputs = np.stack([np.ones(count), np.zeros(count)])[None].astype("float32")
    transition = np.linspace(-86, 0, count, dtype="float32")[:, None]
    ones = np.ones((1, 2, 1), "float32")
    tensors = inputs, np.ones_like(inputs), transition, ones, ones, np.zeros(count, "float32")
    outputs, _ = c_reference.Selective((1, 2, count, 1), keeps=False).forward(*tensors)
    assert np.abs(outputs[0, 1] / np.exp(transition[:, 0].astype("float64")) - 1).max() < 2e-7


@pytest.mark.parametrize("gate_scale", [0, 1000])
def test_gates_of_a_half_and_saturated_ones(c_reference, gate_scale):
    shape = (3, 40, 5, 3)
    tensors, grads = arrays_of(shape, gate_scale=gate_scale)
    answers = c_reference.Coffee(shape, keeps=True).training(grads, *tensors)
    assert_close(answers, expected(tensors, grads), TOLERANCE)


def test_one_step_is_as_exact_as_float32(c_reference):
    # From x = 1 with λ = 0 the outputs are 1 + σ(w): every w is a test of σ.
    count = 4096
    gate = np.linspace(-15, 15, count, dtype="float32")[:, None]
    ones, zeros = np.ones((count, 1), "float32"), np.zeros((count, 1), "float32")
    inputs, state = np.full((1, 1, count), 1e3, "float32"), np.ones((1, count, 1), "float32")
    coffee = c_reference.Coffee((1, 1, count, 1), keeps=False)
    outputs, _ = coffee.forward(inputs, zeros, gate, ones, state)
    right = 1 + 1e3 / (1 + np.exp(-gate[:, 0].astype("float64")))
    assert np.abs(outputs[0, 0] / right - 1).max() < 1e-6


def test_a_second_call_adds_nothing_to_the_first(c_reference):
    shape = (7, 9, 25, 2)
    tensors, grads = arrays_of(shape)
    coffee = c_reference.Coffee(shape, keeps=True)
    first = [x.copy() for x in coffee.training(grads, *tensors)]
    for actual, right in zip(coffee.training(grads, *tensors), first, strict=True):
        np.testing.assert_array_equal(actual, right)


def test_other_arrays_are_refused(c_reference):
    shape = (2, 3, 4, 5)
    tensors, _ = arrays_of(shape)
    coffee = c_reference.Coffee(shape, keeps=False)
    with pytest.raises(TypeError, match="float32 in C order, received float64"):
        coffee.forward(*tensors[:4], tensors[4].astype("float64"))
    with pytest.raises(TypeError, match="float32 in C order"):
        coffee.forward(np.asfortranarray(tensors[0]), *tensors[1:])


def test_denormal_numbers_stay_what_they_are(c_reference):
    for name in ("coffee", "linear", "selective"):
        c_reference.library(name)
    assert np.float32(1e-40) * np.float32(0.5) > 0


def test_bytes_that_it_holds(c_reference):
    batch, length, dim, n = shape = (4, 100, 32, 8)
    states = batch * dim * n
    kept = 4 * (2 * batch * length * dim + 2 * states + 3 * dim * n + states * length)
    assert c_reference.Coffee(shape, keeps=True).nbytes == kept
    outputs = 4 * (batch * length * dim + states)
    assert c_reference.Coffee(shape, keeps=False).nbytes == outputs


def test_without_a_compiler_it_says_so(c_reference, monkeypatch):
    monkeypatch.setattr(c_reference, "compiler", lambda: None)
    with pytest.raises(RuntimeError, match="no C compiler"):
        c_reference.library.__wrapped__("coffee")


def test_what_the_compiler_says_is_passed_on(c_reference, monkeypatch, tmp_path):
    source = tmp_path / "coffee.c"
    source.write_text("this is no C")
    monkeypatch.setattr(c_reference, "FOLDER", tmp_path)
    with pytest.raises(RuntimeError, match="coffee.c.*error"):
        c_reference.library.__wrapped__("coffee")
