"""Solvers as objects: by name, serialized, immutable, with arguments in their ranges."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_coffee import solvers
from keras_coffee.solvers import Associative, Elk, Newton, Sequential

OBJECTS = [
    ("linear", Sequential()),
    ("linear", Associative()),
    ("nonlinear", Sequential()),
    ("nonlinear", Newton("diagonal", 16, 1e-5, 7, "step")),
    ("nonlinear", Newton(window=None, tolerance=0)),
    ("nonlinear", Elk("diagonal", None, damping=0.5)),
]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("linear", "sequential", Sequential()),
        ("linear", "associative", Associative()),
        ("nonlinear", "sequential", Sequential()),
        ("nonlinear", "newton", Newton()),
        ("nonlinear", "elk", Elk()),
        ("linear", "auto", "auto"),
        ("nonlinear", "auto", "auto"),
    ],
)
def test_solver_by_name(kind, name, expected):
    assert solvers.get(name, kind) == expected


@pytest.mark.parametrize(("kind", "solver"), OBJECTS)
def test_solver_as_it_is_and_serialized(kind, solver):
    assert solvers.get(solver, kind) is solver
    config = keras.saving.serialize_keras_object(solver)
    assert config["registered_name"] == f"keras_coffee>{type(solver).__name__}"
    restored = solvers.get(config, kind)
    assert restored == solver
    assert hash(restored) == hash(solver)


@pytest.mark.parametrize(("kind", "solver"), OBJECTS)
def test_solvers_never_change(kind, solver):
    with pytest.raises(dataclasses.FrozenInstanceError):
        solver.window = 3


@pytest.mark.parametrize("kind", ["linear", "nonlinear"])
@pytest.mark.parametrize("identifier", ["deer", "Sequential", "", None, 7, Sequential, ["auto"]])
def test_unknown_solver(identifier, kind):
    message = rf"is {kind} in its state.*'auto', 'sequential'.*keras_coffee\.solvers, received"
    with pytest.raises(ValueError, match=message):
        solvers.get(identifier, kind)


@pytest.mark.parametrize(
    ("kind", "identifier"),
    [("linear", "newton"), ("linear", Elk()), ("nonlinear", "associative")],
)
def test_solver_of_the_other_kind(kind, identifier):
    with pytest.raises(ValueError, match=f"{kind} in its state takes .*, received"):
        solvers.get(identifier, kind)


def test_unknown_kind():
    with pytest.raises(ValueError, match="one of .*'linear', 'nonlinear'.*, received 'non-linear'"):
        solvers.get("auto", "non-linear")


def test_serialized_object_that_is_no_solver():
    config = keras.saving.serialize_keras_object(keras.initializers.Zeros())
    with pytest.raises(ValueError, match="of keras_coffee.solvers, received .*Zeros"):
        solvers.get(config)


@pytest.mark.parametrize("solver", ["newton", Elk()])
def test_parallel_solver_with_recompute(solver):
    assert solvers.get("auto", recompute=True) == "auto"
    assert solvers.get("sequential", recompute=True) == Sequential()
    with pytest.raises(ValueError, match="recompute=True .* (Newton|Elk) needs them all"):
        solvers.get(solver, recompute=True)


@pytest.mark.parametrize("solver", [Newton, Elk])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jacobian": "quasi"}, r"`jacobian` must be one of \('full', 'diagonal'\).*'quasi'"),
        ({"window": 0}, "`window` must be a positive integer or None.*received 0"),
        ({"window": -3}, "`window` must be a positive integer or None.*received -3"),
        ({"window": 2.0}, "`window` must be a positive integer or None.*received 2.0"),
        ({"window": True}, "`window` must be a positive integer or None.*received True"),
        ({"tolerance": -1e-9}, "`tolerance` must be a number of at least 0.*received -1e-09"),
        ({"tolerance": float("nan")}, "`tolerance` must be a number.*received nan"),
        ({"tolerance": float("inf")}, "`tolerance` must be a number.*received inf"),
        ({"tolerance": "small"}, "`tolerance` must be a number.*received 'small'"),
        ({"max_iterations": 0}, "`max_iterations` must be a positive integer, received 0"),
        ({"max_iterations": None}, "`max_iterations` must be a positive integer, received None"),
        ({"initial_guess": "random"}, "`initial_guess` must be one of .*received 'random'"),
    ],
)
def test_arguments_out_of_range(solver, arguments, message):
    with pytest.raises(ValueError, match=message):
        solver(**arguments)


@pytest.mark.parametrize("damping", [0, -1.0, float("nan"), float("inf"), None])
def test_damping_out_of_range(damping):
    with pytest.raises(ValueError, match="`damping` must be a positive number, received"):
        Elk(damping=damping)


def test_numbers_of_numpy_are_taken():
    assert Newton(window=np.int64(8), tolerance=np.float32(0.5)).window == 8
