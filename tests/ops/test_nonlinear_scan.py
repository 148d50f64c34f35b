"""A user's own recurrence: inputs of any structure, masks, gradients, and what is refused."""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import pytest
from gradients import compiled, value_and_gradients
from keras import ops

from keras_coffee.cells import Cell, ElmanCell
from keras_coffee.ops import cell_scan, coffee_scan, linear_scan, nonlinear_scan, selective_scan
from keras_coffee.solvers import Elk, Newton

SOLVERS = ["sequential", Newton(window=8), Elk(window=8)]


@dataclasses.dataclass(frozen=True)
class Leaky(Cell):
    """x ↦ x/2 + sin(w x) / 2 + u v, with inputs in a dictionary."""

    weight: Any
    structure: str = "diagonal"

    def step(self, state, inputs):
        return state / 2 + ops.sin(self.weight * state) / 2 + inputs["u"] * inputs["v"]

    def jacobian(self, state, inputs):
        return 0.5 + self.weight * ops.cos(self.weight * state) / 2


def arrays(length=19):
    generator = np.random.default_rng(0)
    shapes = {"u": (3, length, 2), "v": (3, length, 1), "state": (3, 2), "weight": (2,)}
    return {k: generator.normal(size=shape).astype("float32") for k, shape in shapes.items()}


def solve(u, v, state, weight, **options):
    cell = Leaky(ops.convert_to_tensor(weight))
    return nonlinear_scan(cell, {"u": u, "v": v}, state, **options)


def unrolled(u, v, state, weight, mask=None):
    """The same by a plain loop, which the framework differentiates."""
    cell, states = Leaky(weight), []
    for t in range(u.shape[1]):
        new = cell.step(state, {"u": u[:, t], "v": v[:, t]})
        state = new if mask is None else ops.where(mask[:, t, None], new, state)
        states.append(state)
    return ops.stack(states, axis=1)


@dataclasses.dataclass(frozen=True)
class CountedCell(Cell):
    """Tells how often its step is traced."""

    weight: Any
    structure = "diagonal"
    traces = []

    def step(self, state, inputs):
        self.traces.append(inputs.shape)
        return state / 2 + ops.sigmoid(self.weight * state) * inputs

    def jacobian(self, state, inputs):
        gate = ops.sigmoid(self.weight * state)
        return 0.5 + self.weight * gate * (1 - gate) * inputs


@pytest.mark.skipif(keras.config.backend() != "jax", reason="of JAX")
def test_eager_calls_compile_once_for_each_shape():
    inputs, state = np.ones((2, 6, 3), "float32"), np.zeros((2, 3), "float32")
    counts = []
    for weight in (0.0, 1.0):
        nonlinear_scan(CountedCell(ops.full((3,), weight)), inputs, state, solver="newton")
        counts.append(len(CountedCell.traces))
    assert counts[1] == counts[0] > 0
    nonlinear_scan(CountedCell(ops.ones(3)), inputs[:, :5], state, solver="newton")
    assert len(CountedCell.traces) > counts[1]


def differentiated(states_of):
    """Value and gradients of a sum of the states, each with a factor of its own."""
    data = arrays()
    factor = np.random.default_rng(2).normal(size=(3, 19, 2)).astype("float32")

    def loss(*tensors):
        states = states_of(**dict(zip(data, tensors, strict=True)))
        return ops.sum(states * ops.convert_to_tensor(factor))

    return value_and_gradients(loss, *data.values())


@functools.cache
def expected_with(masked):
    """What the plain loop gives, compiled once for all solvers."""
    return differentiated(functools.partial(unrolled, mask=random_mask() if masked else None))


def random_mask():
    return np.random.default_rng(1).uniform(size=(3, 19)) < 0.7


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
def test_values_and_gradients(solver, masked):
    mask = random_mask() if masked else None
    actual = differentiated(lambda **k: solve(**k, mask=mask, solver=solver).states)
    expected = expected_with(masked)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    for a, e in zip(actual[1], expected[1], strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * abs(e).max())


@pytest.mark.parametrize("solver", SOLVERS[:2], ids=repr)
def test_nothing_at_a_masked_step_matters(solver):
    data, mask = arrays(), random_mask()
    run = compiled(lambda **data: solve(**data, mask=mask, solver=solver))
    clean = run(**data)
    data["u"][~mask] = np.nan
    dirty = run(**data)
    for a, b in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(a), ops.convert_to_numpy(b))


def test_a_dense_gradient_is_right_though_the_states_were_found_with_the_diagonal():
    generator = np.random.default_rng(0)
    shapes = (4, 4), (2, 4), (4,), (3, 12, 2), (3, 4)
    data = [generator.normal(size=shape).astype("float32") for shape in shapes]

    def loss(solver):
        def function(*args):
            cell, inputs, state = ElmanCell(*args[:3]), *args[3:]
            return ops.sum(nonlinear_scan(cell, inputs, state, solver=solver).states[:, -1])

        return function

    _, expected = value_and_gradients(loss("sequential"), *data)
    _, actual = value_and_gradients(loss(Newton("diagonal")), *data)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * abs(e).max())


def test_scans_as_nonlinear_ones_agree():
    """The solvers of the public functions: associative and sequential, masks and output filters."""
    generator = np.random.default_rng(0)
    u, mask = generator.normal(size=(2, 9, 3)).astype("float32"), np.ones((2, 9), bool)
    mask[0, 3:5] = mask[1, :2] = mask[1, -1] = False
    weights = [generator.normal(size=(3, 2)).astype("float32") for _ in range(4)]
    matrix = generator.normal(size=(2, 9, 2)).astype("float32")
    cases = {
        coffee_scan: (
            ["newton", "elk"],
            {"transition": -abs(weights[0]), "gate": weights[1], "readout": weights[2]}
            | {"output_gate": weights[3], "mask": mask},
        ),
        selective_scan: (
            ["associative"],
            {"delta": abs(u), "transition": -abs(weights[0]), "input_matrix": matrix}
            | {"output_matrix": matrix, "mask": mask},
        ),
    }
    for function, (solvers, options) in cases.items():

        def run(solver, function=function, options=options):
            return compiled(lambda u: function(u, **options, solver=solver))(u)

        for solver in solvers:
            for a, e in zip(run(solver), run("sequential"), strict=True):
                np.testing.assert_allclose(
                    ops.convert_to_numpy(a), ops.convert_to_numpy(e), rtol=1e-5, atol=1e-6
                )
    decay = generator.uniform(size=u.shape).astype("float32")
    for reverse in (False, True):

        def run(solver, reverse=reverse):
            states, _ = compiled(lambda u: linear_scan(decay, u, reverse=reverse, solver=solver))(u)
            return ops.convert_to_numpy(states)

        a, e = run("associative"), run("auto")
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"u": np.zeros((3, 0, 2)), "v": np.zeros((3, 0, 1))}, "`inputs` has no steps"),
        ({"u": np.zeros(3)}, r"`inputs` must have shape \(batch, time, \.\.\.\), received \(3,\)"),
        ({"v": np.zeros((3, 18, 1))}, r"`inputs` must have shape \(3, 19, \.\.\.\).*\(3, 18, 1\)"),
        ({"state": np.zeros((2, 2))}, r"`inputs` must have shape \(2, 19, \.\.\.\)"),
        ({"state": np.zeros(2)}, r"`initial_state` must have shape \(batch, \.\.\.\).*\(2,\)"),
        (
            {"mask": np.ones((3, 18))},
            r"`mask` must have shape \(batch, time\) = \(3, 19\), received \(3, 18\)",
        ),
        ({"solver": "associative"}, "nonlinear in its state .*, received 'associative'"),
    ],
)
def test_unfit_arguments(changed, message):
    changed = {k: v.astype("float32") if hasattr(v, "astype") else v for k, v in changed.items()}
    with pytest.raises(ValueError, match=message):
        solve(**arrays() | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"state": np.zeros((3, 2), "float16")},
            "must be one of float32, float64, received.*16",
        ),
        (
            {"state": np.zeros((3, 2), int)},
            "must be one of float32, float64, received.*int",
        ),
        ({"u": keras.KerasTensor((3, 19, 2))}, "`inputs` is a symbolic KerasTensor"),
        ({"state": None}, "`initial_state` is required, received None"),
    ],
)
def test_arguments_of_unfit_type(changed, message):
    with pytest.raises(TypeError, match=message):
        solve(**arrays() | changed)


@pytest.mark.parametrize("structure", ["triangular", None])
def test_unknown_structure(structure):
    data = arrays()
    cell = Leaky(data["weight"], structure)
    for scan in (nonlinear_scan, cell_scan):
        with pytest.raises(
            ValueError, match=r"`Leaky\.structure` must be one of \('diagonal', 'den"
        ):
            scan(cell, {"u": data["u"], "v": data["v"]}, data["state"])
