"""How a trajectory is found, given a recurrence."""

from keras_coffee.solvers.associative import Associative as Associative
from keras_coffee.solvers.choice import Kind as Kind
from keras_coffee.solvers.choice import choose as choose
from keras_coffee.solvers.choice import get as get
from keras_coffee.solvers.elk import Elk as Elk
from keras_coffee.solvers.newton import Newton as Newton
from keras_coffee.solvers.sequential import Sequential as Sequential
from keras_coffee.solvers.solution import Solution as Solution
from keras_coffee.solvers.solver import Solver as Solver
