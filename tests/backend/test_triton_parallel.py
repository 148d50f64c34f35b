"""The kernels that are parallel in time: on a card if there is one, else in Triton's interpreter.

The interpreter takes milliseconds for a step of a lane, so windows are made short here.
"""

import functools

import keras
import numpy as np
import oracles
import pytest
from interpreter import start_once
from rounding import Rounded, assert_agrees
from scans import coffee_arrays, cotangents_of, selective_arrays, widened

if keras.backend.backend() != "torch":
    pytest.skip("Triton kernels belong to PyTorch", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed")

import torch  # noqa: E402

from keras_coffee.backend.torch import (  # noqa: E402
    triton_coffee,
    triton_parallel,
    triton_selective,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    start_once()
SEQUENCES = ("inputs", "gate_inputs", "mask", "reset")
WEIGHTS = ("transition", "gate", "readout", "input_matrix", "output_gate", "gate_bias")
MATRICES = ("input_matrix", "output_matrix")

# The interpreter computes with NumPy, which warns of what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def buffers_of_nan():
    # What a kernel forgets to write is then NaN.
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def short_windows(monkeypatch):
    """Windows of 16 steps: eight lanes of two."""
    monkeypatch.setattr(triton_parallel, "_tiling", lambda *_: (8, 1, 2))


def tensor(array, dtype):
    return torch.tensor(array, dtype=getattr(torch, dtype), device=DEVICE)


def run_coffee(arrays, *, mask=None, **options):
    """Outputs, final state, and gradients by name."""
    arrays = arrays if mask is None else arrays | {"mask": mask}
    options = {"feedback": "sigmoid"} | options
    return run(triton_coffee.RECURRENCE, arrays, SEQUENCES, WEIGHTS, **options)


def run_selective(arrays, **options):
    """Outputs, final state, and gradients by name."""
    over_time = [name if arrays[name].ndim == 3 else None for name in MATRICES]
    fixed = [name if arrays[name].ndim == 2 else None for name in MATRICES]
    names = ("inputs", "delta", *over_time, "reset"), ("transition", *fixed, "skip")
    options = {"discretization": "zoh", "delta_softplus": False} | options
    return run(triton_selective.RECURRENCE, arrays, *names, **options)


def run(
    recurrence,
    arrays,
    sequences,
    weights,
    *,
    keep=1,
    dtype="float32",
    cotangents=None,
    **options,
):
    """Outputs, final state, and gradients by name, of sequences and weights of these names."""
    tensors = {name: tensor(array, dtype) for name, array in arrays.items()}
    if "skip" in tensors:
        tensors["skip"] = tensors["skip"][:, None]
    arguments = [[tensors.get(name) for name in names] for names in (sequences, weights)]
    options["keep"] = keep
    state = tensors["initial_state"]
    cotangents = cotangents_of(arrays) if cotangents is None else cotangents
    outputs, final, kept = triton_parallel.forward(recurrence, *arguments, state, **options)
    count = -(-tensors["inputs"].shape[1] // keep) if keep else 0
    assert kept.shape == (count * state.numel(),)
    if not keep:
        return outputs, final, {}
    by_sequences, by_weights, by_state = triton_parallel.backward(
        recurrence, *(tensor(x, dtype) for x in cotangents), kept, *arguments, **options
    )
    named = zip((*sequences, *weights), (*by_sequences, *by_weights), strict=True)
    gradients = {name: gradient for name, gradient in named if gradient is not None}
    if "skip" in gradients:
        gradients["skip"] = gradients["skip"][:, 0]
    assert set(gradients) == set(arrays) - {"initial_state", "mask", "reset"}
    return outputs, final, gradients | {"initial_state": by_state}


def assert_matches(run, oracle, arrays, dtype="float32", **options):
    wide = {name: Rounded(widened(array)) for name, array in arrays.items()}
    expected, gradients = oracle(wide, [Rounded(widened(c)) for c in cotangents_of(arrays)])
    outputs, final, actual = run(arrays, dtype=dtype, **options)
    for name, x, e in zip(("outputs", "final"), (outputs, final), expected, strict=True):
        assert_agrees(x.cpu().numpy(), e, name)
    for name, gradient in actual.items():
        assert_agrees(gradient.cpu().numpy(), gradients[name], f"gradient by {name}")


def check_coffee(arrays, dtype="float32", feedback="sigmoid", **options):
    oracle = functools.partial(oracles.coffee, feedback=feedback)
    assert_matches(run_coffee, oracle, arrays, dtype, feedback=feedback, **options)


def check_selective(arrays, dtype="float32", discretization="zoh", delta_softplus=False, **options):
    if discretization == "euler":
        arrays["delta"] /= arrays["delta"].max()
    chosen = {"discretization": discretization, "delta_softplus": delta_softplus}
    oracle = functools.partial(oracles.selective, **chosen)
    assert_matches(run_selective, oracle, arrays, dtype, **chosen, **options)


# A window has 16 steps.
LENGTHS = [1, 16, 17, 39]


@pytest.mark.parametrize("length", LENGTHS)
def test_coffee_of_every_length(short_windows, length):
    check_coffee(coffee_arrays((1, length, 1, 3), gate_scale=0.5, input_scale=1.0))


@pytest.mark.parametrize(("gate_scale", "input_scale"), [(2.0, 3.0), (5.0, 3.0)])
def test_hard_coffee(gate_scale, input_scale):
    shape = (1, 70, 1, 1)
    arrays = coffee_arrays(shape, gate_scale=gate_scale, input_scale=input_scale, optional=False)
    check_coffee(arrays, "float64")


@pytest.mark.parametrize(
    ("feedback", "input_matrix", "output_gate"),
    [("linear", True, False), (None, True, True), (None, False, False)],
)
def test_coffee_of_every_option(feedback, input_matrix, output_gate):
    arrays = coffee_arrays((1, 9, 1, 2), gate_scale=0.05, input_scale=1.0)
    arrays = arrays | {name: abs(arrays[name]) for name in ("gate", "initial_state")}
    for name, is_there in (("input_matrix", input_matrix), ("output_gate", output_gate)):
        if not is_there:
            del arrays[name]
    check_coffee(arrays, "float64", feedback)


@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_coffee_whose_gate_sees_more(short_windows, feedback):
    arrays = coffee_arrays((1, 19, 2, 3), gate_scale=0.05, input_scale=1.0, gated=True)
    arrays = arrays | {name: abs(arrays[name]) for name in ("gate", "initial_state")}
    check_coffee(arrays, "float64", feedback)


def test_coffee_computes_again_what_was_not_kept():
    arrays = coffee_arrays((1, 22, 1, 2), gate_scale=0.5, input_scale=1.0, gated=True)
    check_coffee(arrays, keep=4)


def test_without_gradients_nothing_is_kept():
    for run, arrays in (
        (run_coffee, coffee_arrays((1, 5, 1, 2))),
        (run_selective, selective_arrays((1, 5, 1, 2))),
    ):
        for actual, expected in zip(run(arrays, keep=0)[:2], run(arrays)[:2], strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_each_step_of_coffee_follows_from_the_one_before():
    # With n = 1 and C = 1 outputs are states.
    arrays = coffee_arrays((1, 200, 1, 1), gate_scale=5.0, optional=False)
    arrays["readout"][:] = 1
    outputs, final, _ = run_coffee(arrays, keep=0)
    outputs = outputs.cpu().numpy().astype("float64")
    np.testing.assert_array_equal(final.cpu().numpy()[..., 0], outputs[:, -1])
    states = np.concatenate([arrays["initial_state"][:, None], outputs[..., None]], 1)
    wide = {name: widened(array) for name, array in arrays.items()}
    expected = oracles.coffee_step(wide, states[:, :-1], wide["inputs"][..., None])
    error = abs(states[:, 1:] - expected) / np.maximum(1, abs(expected))
    assert error.max() <= 16 * 2.0**-23


def test_masked_steps_of_coffee_are_left_out(short_windows):
    arrays = coffee_arrays((1, 23, 1, 2), gate_scale=0.5, input_scale=1.0, gated=True)
    mask = np.ones((1, 23))
    mask[0, [0, 5, 6, 15, 16, 22]] = 0
    taken = mask[0] == 1
    _, final, gradients = run_coffee(arrays, mask=mask, dtype="float64")
    short = arrays | {name: arrays[name][:, taken] for name in ("inputs", "gate_inputs")}
    _, expected_final, _ = run_coffee(short, dtype="float64")
    torch.testing.assert_close(final, expected_final, rtol=1e-13, atol=0)
    for name in ("inputs", "gate_inputs"):
        by_inputs = gradients[name][0, :, 0].cpu().numpy()
        np.testing.assert_array_equal(by_inputs[~taken], 0)
        assert (by_inputs[taken] != 0).all()


def test_an_infinite_state_is_held_at_masked_steps(short_windows):
    arrays = coffee_arrays((1, 23, 1, 2), optional=False)
    arrays["initial_state"][:] = np.inf
    _, final, _ = run_coffee(arrays, mask=np.zeros((1, 23)), keep=0)
    assert final.isposinf().all()


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("run_scan", [run_coffee, run_selective])
def test_resets_cut_a_row_into_pieces(short_windows, run_scan, keep):
    # The lanes have two steps each, so resets are at both of them, and at ends of windows.
    arrays = RESET_ARRAYS[run_scan]((1, 38, 2, 2))
    starts = [0, 3, 4, 16, 31]
    reset = np.zeros((1, 38))
    reset[0, starts[1:]] = 1
    options = {"keep": keep, "dtype": "float64"}
    outputs, final, gradients = run_scan(arrays | {"reset": reset}, **options)
    cotangents, zeros = cotangents_of(arrays), np.zeros_like(arrays["initial_state"])
    totals = {}
    for start, stop in zip(starts, [*starts[1:], 38], strict=True):
        own = {k: x[:, start:stop] if x.ndim == 3 else x for k, x in arrays.items()}
        own["initial_state"] = zeros if start else arrays["initial_state"]
        own_cotangents = cotangents[0][:, start:stop], cotangents[1] if stop == 38 else zeros
        piece, end, grads = run_scan(own, cotangents=own_cotangents, **options)
        close(outputs[:, start:stop], piece)
        for name, grad in grads.items():
            if arrays[name].ndim == 3 and name != "initial_state":
                close(gradients[name][:, start:stop], grad)
            elif name != "initial_state":
                totals[name] = totals.get(name, 0) + grad
            elif not start:
                close(gradients[name], grad)
    close(final, end)
    for name, total in totals.items():
        close(gradients[name], total)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


RESET_ARRAYS = {
    run_coffee: functools.partial(coffee_arrays, gate_scale=0.5, input_scale=1.0, gated=True),
    run_selective: functools.partial(selective_arrays, skip=True),
}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_in_coffee_stays_in_its_sequence(short_windows, value):
    arrays = coffee_arrays((2, 12, 1, 2), gate_scale=0.5, input_scale=1.0)
    clean_outputs, clean_final, clean = run_coffee(arrays)
    arrays["inputs"][1, 9] = value
    outputs, final, gradients = run_coffee(arrays)
    torch.testing.assert_close(outputs[0], clean_outputs[0], rtol=0, atol=0)
    torch.testing.assert_close(final[0], clean_final[0], rtol=0, atol=0)
    torch.testing.assert_close(gradients["inputs"][0], clean["inputs"][0], rtol=0, atol=0)
    torch.testing.assert_close(outputs[1, :9], clean_outputs[1, :9])
    assert not outputs[1, 9:].isfinite().any()
    assert not final[1].isfinite().any()
    assert not gradients["inputs"][1, :8].isfinite().any()


def test_coffee_is_right_where_iterates_leave_the_range(short_windows):
    # Held at 1, which the guess does, states grow a thousandfold each step, and their product is
    # infinite. In truth the first step throws them below zero, where the gate is shut.
    arrays = coffee_arrays((1, 39, 1, 1), optional=False)
    for name, value in (("initial_state", 1), ("gate", 50), ("transition", 1e3), ("readout", 1)):
        arrays[name][:] = value
    arrays["inputs"][:, 0] = -3e3
    outputs, final, _ = run_coffee(arrays, keep=0)
    np.testing.assert_array_equal(outputs.cpu().numpy(), np.full((1, 39, 1), -1999))
    np.testing.assert_array_equal(final.cpu().numpy(), np.full((1, 1, 1), -1999))


@pytest.mark.parametrize("length", LENGTHS)
def test_selective_scan_of_every_length(short_windows, length):
    check_selective(selective_arrays((1, length, 3, 2)))


@pytest.mark.parametrize(
    ("discretization", "varying"),
    [("zoh", (True, False)), ("zoh", (False, True)), ("euler", (False, False))],
)
def test_selective_scan_of_every_option(discretization, varying):
    arrays = selective_arrays((2, 9, 1, 2), varying=varying)
    check_selective(arrays, "float64", discretization)


# Three windows, the last one short; five features are two programs, and states fill no tile.
@pytest.mark.parametrize("keep", [1, 4])
@pytest.mark.parametrize(
    ("discretization", "delta_softplus"), [("zoh", True), ("mamba", True), ("mamba", False)]
)
def test_selective_scan_with_skip_and_softplus(short_windows, discretization, delta_softplus, keep):
    arrays = selective_arrays((1, 35, 5, 3), skip=True, delta_softplus=delta_softplus)
    check_selective(arrays, "float64", discretization, delta_softplus, keep=keep)


def test_selective_scan_of_many_features_and_one_state():
    check_selective(selective_arrays((1, 3, 5, 1)))


def test_selective_scan_computes_again_what_was_not_kept():
    check_selective(selective_arrays((1, 22, 2, 2)), keep=4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_in_a_selective_scan_stays_in_its_feature(short_windows, value):
    arrays = selective_arrays((1, 12, 2, 2))
    clean = run_selective(arrays)
    arrays["inputs"][0, 9, 1] = value
    outputs, final, gradients = run_selective(arrays)
    torch.testing.assert_close(outputs[..., 0], clean[0][..., 0], rtol=0, atol=0)
    torch.testing.assert_close(outputs[:, :9], clean[0][:, :9], rtol=1e-5, atol=1e-5)
    assert not outputs[0, 9:, 1].isfinite().any()
    assert not final[0, 1].isfinite().any()
    by_inputs, expected = gradients["inputs"][..., 0], clean[2]["inputs"][..., 0]
    torch.testing.assert_close(by_inputs, expected, rtol=1e-5, atol=1e-5)


def test_products_that_leave_the_range_do_not_reach_the_result(short_windows):
    # Decays of e^50 while the states are zero: infinity times zero in a scan of products.
    arrays = selective_arrays((1, 39, 1, 1), varying=(False, True))
    for name in ("inputs", "initial_state"):
        arrays[name][:] = 0
    arrays["transition"][0] = 1
    arrays["delta"][:] = 50.0
    arrays["delta"][:, 20:, 0] = 0.5
    arrays["inputs"][:, 30:] = 1
    outputs, final, _ = run_selective(arrays, keep=0)
    wide = {name: widened(array) for name, array in arrays.items()}
    (expected, last), _ = oracles.selective(wide, map(widened, cotangents_of(arrays)))
    np.testing.assert_allclose(outputs[..., 0].cpu(), expected[..., 0], rtol=1e-4)
    np.testing.assert_allclose(final[:, 0].cpu(), last[:, 0], rtol=1e-4)


def test_no_sequences():
    for run, arrays in (
        (run_coffee, coffee_arrays((0, 5, 2, 2))),
        (run_selective, selective_arrays((0, 5, 2, 2))),
    ):
        outputs, final, gradients = run(arrays)
        assert outputs.shape == (0, 5, 2)
        assert final.shape == (0, 2, 2)
        for name, gradient in gradients.items():
            assert gradient.shape == arrays[name].shape
            assert not gradient.any()
