import keras
import pytest

from keras_coffee import solvers
from keras_coffee.solvers import Sequential


@pytest.mark.parametrize("identifier", ["auto", "sequential", Sequential()], ids=str)
def test_solver_by_name_or_as_it_is(identifier):
    assert solvers.get(identifier) == Sequential()


def test_serialized_solver():
    config = keras.saving.serialize_keras_object(Sequential())
    assert config["registered_name"] == "keras_coffee>Sequential"
    assert solvers.get(config) == Sequential()
    assert Sequential.from_config(Sequential().get_config()) == Sequential()


@pytest.mark.parametrize("identifier", ["newton", "Sequential", "", None, 7, Sequential, ["auto"]])
def test_unknown_solver(identifier):
    with pytest.raises(ValueError, match=r"Unknown solver: .*'auto', 'sequential'.*solvers"):
        solvers.get(identifier)


def test_serialized_object_that_is_no_solver():
    config = keras.saving.serialize_keras_object(keras.initializers.Zeros())
    with pytest.raises(ValueError, match="Unknown solver: .*Zeros.*keras_coffee.solvers"):
        solvers.get(config)
