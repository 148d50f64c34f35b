"""How a trajectory is found, given a recurrence."""

from keras_coffee.solvers.sequential import Sequential as Sequential
from keras_coffee.solvers.solver import get as get
