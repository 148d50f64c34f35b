"""Masks of the scans: a row with masked steps is the row without these steps."""

import numpy as np
import pytest
from keras import ops
from nightly import IS_THOROUGH
from scans import coffee_arrays, cotangents_of, differentiate, selective_arrays

from keras_coffee.ops import coffee_scan, selective_scan

BATCH, LENGTH, DIM, N = SHAPE = (2, 9, 3, 2)
MASK = np.ones((BATCH, LENGTH), bool)
MASK[0, 4:6] = MASK[0, 8] = MASK[1, :3] = False
# The same arithmetic, in programs that are compiled apart.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def scans():
    gentle = {"gate_scale": 0.5, "input_scale": 1.0}
    for feedback in ("sigmoid", None):
        options = {"feedback": feedback}
        yield f"coffee-{feedback}", coffee_scan, coffee_arrays(SHAPE, **gentle), options
    gated = coffee_arrays(SHAPE, **gentle, gated=True)
    yield "coffee-gated", coffee_scan, gated, {"feedback": "sigmoid"}
    linear = coffee_arrays(SHAPE, gate_scale=0.05, input_scale=1.0)
    linear |= {name: abs(linear[name]) for name in ("gate", "initial_state")}
    yield "coffee-linear", coffee_scan, linear, {"feedback": "linear"}
    for varying in ((True, True), (False, False)):
        yield f"selective-{varying}", selective_scan, selective_arrays(SHAPE, varying=varying), {}
    for delta_softplus in (False, True):
        arrays = selective_arrays(SHAPE, skip=True, delta_bias=True, delta_softplus=delta_softplus)
        options = {"discretization": "mamba", "delta_softplus": delta_softplus}
        yield f"mamba-{delta_softplus}", selective_scan, arrays, options


CASES = {name: case for name, *case in scans()}


def without_masked_steps(arrays):
    """Both rows have as many steps that count, so they stay one batch."""

    def kept(name, array):
        is_sequence = array.ndim == 3 and name != "initial_state"
        return array[MASK].reshape(BATCH, -1, array.shape[-1]) if is_sequence else array

    return {name: kept(name, array) for name, array in arrays.items()}


def spoiled(arrays):
    """With NaN in everything that stands at a masked step."""
    sequences = [k for k, a in arrays.items() if a.ndim == 3 and k != "initial_state"]
    nan = {k: np.where(MASK[..., None], arrays[k], np.float32(np.nan)) for k in sequences}
    return arrays | nan


# One loop computes again, whatever the options of a recurrence.
RECOMPUTED = CASES if IS_THOROUGH else ("coffee-gated", "selective-(True, True)", "mamba-True")


@pytest.mark.parametrize(
    ("case", "recompute"),
    [*((case, False) for case in CASES), *((case, True) for case in RECOMPUTED)],
)
def test_values_and_gradients_are_those_without_the_masked_steps(case, recompute):
    scan, arrays, options = CASES[case]
    options = options | {"recompute": recompute}
    by_outputs, by_final = cotangents_of(arrays)
    own_cotangents = [by_outputs[MASK].reshape(BATCH, -1, DIM), by_final]
    exact, exact_gradients = differentiate(
        lambda **tensors: scan(**tensors, **options), without_masked_steps(arrays), own_cotangents
    )
    # The cotangent of a repeated output would belong to the step that it repeats.
    (outputs, final_state), gradients = differentiate(
        lambda **tensors: scan(**tensors, mask=MASK, **options),
        spoiled(arrays),
        [by_outputs * MASK[..., None], by_final],
    )
    np.testing.assert_allclose(outputs[MASK].reshape(BATCH, -1, DIM), exact[0], **CLOSE)
    np.testing.assert_allclose(final_state, exact[1], **CLOSE)
    np.testing.assert_array_equal(outputs[0, 4:6], np.tile(outputs[0, 3], (2, 1)))
    np.testing.assert_array_equal(outputs[0, 8], outputs[0, 7])
    assert not outputs[1, :3].any()
    for name, gradient in without_masked_steps(gradients).items():
        scale = abs(exact_gradients[name]).max()
        difference = abs(gradient - exact_gradients[name]).max()
        assert difference <= 1e-5 * scale, f"gradient by {name}"
    for name, gradient in gradients.items():
        if gradient.ndim == 3 and name != "initial_state":
            assert not gradient[~MASK].any(), name


@pytest.mark.parametrize("delta_softplus", [False, True])
def test_mamba_with_a_mask_is_its_plain_loop(delta_softplus):
    _, arrays, options = CASES[f"mamba-{delta_softplus}"]
    wide = {name: array.astype("float64") for name, array in arrays.items()}
    state, output = wide["initial_state"], np.zeros((BATCH, DIM))
    outputs, seen = [], np.zeros((BATCH, 1), bool)
    for t in range(LENGTH):
        source, is_step = wide["inputs"][:, t], MASK[:, t, None]
        delta = wide["delta"][:, t] + wide["delta_bias"]
        delta = (np.log1p(np.exp(delta)) if delta_softplus else delta)[..., None]
        drive = delta * wide["input_matrix"][:, t, None] * source[..., None]
        new = np.exp(wide["transition"] * delta) * state + drive
        state = np.where(is_step[..., None], new, state)
        read = (wide["output_matrix"][:, t, None] * state).sum(-1) + wide["skip"] * source
        output, seen = np.where(is_step, read, output), seen | is_step
        outputs.append(output * seen)
    actual, final_state = selective_scan(**spoiled(arrays), mask=MASK, **options)
    np.testing.assert_allclose(ops.convert_to_numpy(actual), np.stack(outputs, 1), **CLOSE)
    np.testing.assert_allclose(ops.convert_to_numpy(final_state), state, **CLOSE)


def test_a_large_input_that_is_masked_does_not_reach_the_state():
    # Held by multiplying with zero, a state would take on inf · 0 = NaN.
    _, arrays, _ = CASES["coffee-sigmoid"]
    arrays = arrays | {"inputs": np.where(MASK[..., None], arrays["inputs"], np.float32(np.inf))}
    assert np.isfinite(ops.convert_to_numpy(coffee_scan(**arrays, mask=MASK)[1])).all()


@pytest.mark.parametrize("scan", [coffee_scan, selective_scan])
@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, LENGTH, 1), (BATCH, LENGTH + 1), (1, LENGTH)])
def test_a_mask_of_another_shape_is_an_error(scan, shape):
    arrays = coffee_arrays(SHAPE) if scan is coffee_scan else selective_arrays(SHAPE)
    with pytest.raises(
        ValueError, match=r"`mask` must have shape \(batch, time\) = \(2, 9\), received"
    ):
        scan(**arrays, mask=np.ones(shape, bool))


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("coffee")])
def test_an_infinite_state_is_held_too(case):
    scan, arrays, options = CASES[case]
    arrays = arrays | {"initial_state": np.full_like(arrays["initial_state"], np.inf)}
    _, final_state = scan(**arrays, mask=np.arange(BATCH)[:, None] + 0 * MASK, **options)
    assert np.isposinf(ops.convert_to_numpy(final_state[0])).all()
