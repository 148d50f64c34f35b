"""Newton's method of pararnn-torch and ours, side by side."""

import keras
import pytest
from peers.mild import arrays_of, assert_same, cotangent_of, every_setting, mild, off, ours
from recurrences import residuals

if keras.config.backend() != "torch":
    pytest.skip("pararnn-torch computes in PyTorch", allow_module_level=True)
# It imports Triton on CPUs too. Its own pin of it is not the one of later PyTorch for GPUs.
pararnn = pytest.importorskip(
    "pararnn", reason="pip install --no-deps pararnn-torch safetensors 'triton>=3.6,<3.7'"
)
import torch  # noqa: E402

ENOUGH = {"max_iters": 20, "residual_atol": None}


class PeerCell(torch.nn.Module):
    """A cell under the protocol of pararnn, in which a state has one axis."""

    def __init__(self, case, dtype):
        super().__init__()
        tensors = {name: torch.tensor(w.astype(dtype)) for name, w in case.weights.items()}
        self.weights = torch.nn.ParameterDict(tensors)
        self.make, self.shape = case.cell, case.initial_state.shape[1:]
        self.d_h = self.hidden_size = case.initial_state[0].size
        self.jac_structure = {"diagonal": "diag", "dense": "dense"}[case.cell.structure]

    def step(self, h_prev, x):
        cell, state = self._at(h_prev)
        return cell.step(state, x).reshape(h_prev.shape)

    def step_with_jacobian(self, h_prev, x):
        cell, state = self._at(h_prev)
        jacobian = cell.jacobian(state, x)
        if self.jac_structure == "diag":
            jacobian = jacobian.reshape(h_prev.shape)
        return self.step(h_prev, x), jacobian

    def _at(self, h_prev):
        return self.make(**self.weights), h_prev.reshape(*h_prev.shape[:-1], *self.shape)


def theirs(case, dtype, **settings):
    """States, and gradients by name."""
    cell, arrays = PeerCell(case, dtype), arrays_of(case, dtype)
    inputs = torch.tensor(arrays["inputs"], requires_grad=True)
    initial_state = torch.tensor(arrays["initial_state"], requires_grad=True)
    config = pararnn.NewtonConfig(**settings)
    states = pararnn.newton_apply(cell, inputs, config, h0=initial_state.flatten(1))
    states = states.unflatten(-1, cell.shape)
    (states * torch.tensor(cotangent_of(case, dtype))).sum().backward()
    leaves = {"inputs": inputs, "initial_state": initial_state, **cell.weights}
    gradients = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
    return states.detach().numpy(), gradients


@every_setting
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("jacobian", ["analytic", "autograd"])
def test_states_and_gradients(name, gate, length, dtype, jacobian):
    case = mild(name, gate, length)
    result = theirs(case, dtype, jacobian=jacobian, **ENOUGH)
    assert_same(case, dtype, ours(case, dtype), result)


def test_three_iterations_and_no_word_that_more_are_needed(caplog):
    case = mild("diagonal GRU", 2, 257)
    assert off(case, theirs(case, "float32", **ENOUGH)[0]) < 1e-5
    states, _ = theirs(case, "float32")  # three, whatever the sequence
    assert not caplog.records
    assert off(case, states) > 1e-4
    assert off(case, ours(case, "float32")[0]) < 1e-5


def test_three_iterations_and_a_line_in_the_log(caplog):
    case = mild("Elman", 2, 33)
    states, _ = theirs(case, "float32")
    assert [record.message for record in caplog.records] == ["newton_residual_high"]
    assert off(case, states) > 0.1
    assert off(case, ours(case, "float32")[0]) < 1e-5


def test_three_iterations_and_an_exception():
    case = mild("coffee", 2, 257)
    with pytest.raises(pararnn.NewtonDivergenceError):
        theirs(case, "float32")
    # Without that check it returns what it has.
    states, _ = theirs(case, "float32", residual_fail=None)
    assert off(case, states) > 0.1
    # Where recurrences expand, steps are compared: see test_trajectories.py.
    assert residuals(case, ours(case, "float32")[0].astype("float64")).max() <= 16 * 2.0**-23
