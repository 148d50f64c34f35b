"""`seq1d` of machine-discovery/deer, by the authors of DEER, and our Newton's method, side by side.

It is on no registry: `deer` on PyPI is a framework for reinforcement learning.
"""

import keras
import numpy as np
import pytest
from peers.mild import arrays_of, assert_same, every_setting, mild, off, ours, solved
from scans import precision

if keras.config.backend() != "jax":
    pytest.skip("deer computes in JAX", allow_module_level=True)
fseq1d = pytest.importorskip(
    "deer.fseq1d",
    reason="git clone https://github.com/machine-discovery/deer, that folder on PYTHONPATH, and "
    "pip install optimistix; `deer` on PyPI is something else",
)
import jax  # noqa: E402

# It stops when a correction is small, and not a residual. Its gradients have the Jacobians of the
# iterate before the last, which are as far off as that correction is large: 1e-3 by default.
TOLERANCE = {"float32": 1e-6, "float64": 1e-14}


def seq1d(case, **settings):
    """The states as `seq1d` finds them, and whether it says that it succeeded."""
    shape, method = case.initial_state.shape[1:], fseq1d.seq1d.DEER(**settings)

    def step(state, inputs, weights):
        return case.cell(**weights).step(state.reshape(shape), inputs).reshape(-1)

    def scan(inputs, initial_state, **weights):
        def solve(inputs, state):
            result = fseq1d.seq1d(step, state.reshape(-1), inputs, weights, method)
            return result.value.reshape(-1, *shape), result.success

        return jax.vmap(solve)(inputs, initial_state)

    return scan


@every_setting
def test_states_and_gradients(name, gate, length, dtype):
    case = mild(name, gate, length)
    scan = seq1d(case, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], max_iter=100)
    with precision(dtype):
        their = solved(case, dtype, lambda **arrays: scan(**arrays)[0])
        assert_same(case, dtype, ours(case, dtype), their)


def test_states_past_1e8_are_clipped_and_called_a_success():
    case = mild("coffee", 1, 33)
    case = case._replace(inputs=case.inputs * 2.0**30)
    states, success = jax.jit(seq1d(case))(**arrays_of(case, "float32"))
    assert success.all()
    assert abs(states).max() == 1e8
    assert off(case, states) > 0.1
    assert off(case, ours(case, "float32")[0]) < 1e-5


def test_nan_becomes_zero_and_is_called_a_success():
    case = mild("coffee", 1, 33)
    case.inputs[:, 10] = np.nan
    states, success = jax.jit(seq1d(case))(**arrays_of(case, "float32"))
    assert success.all()
    assert (states[:, 10:] == 0).all()
    our_states, _ = ours(case, "float32")
    assert np.isfinite(our_states[:, :10]).all()
    assert np.isnan(our_states[:, 10:]).all()
