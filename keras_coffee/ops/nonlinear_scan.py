"""A user's recurrence, and how it was solved."""

from typing import Any

import keras

from keras_coffee import solvers
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell
from keras_coffee.ops.cell_scan import prepared
from keras_coffee.solvers import trajectory


def nonlinear_scan(
    cell: Cell,
    inputs: Any,
    initial_state: Tensor,
    *,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
    solver: str | solvers.Solver = "auto",
) -> solvers.Solution:
    """All states of x(k) = f(x(k-1), u(k)), and how they were found.

    Differentiable once, in reverse, by the inputs, the initial state and the weights of the cell,
    which are its attributes. The gradient comes from one reversed linear recurrence with the cell's
    Jacobian and one derivative of its step; no iteration and no loop is differentiated.

    On JAX it compiles itself, once for each shape.

    Args:
        cell: The recurrence: a `keras_coffee.cells.Cell` with `step`, `jacobian` and `structure`.
            It must take the states and inputs of one step, `(B, ...)`, and those of all steps,
            `(B, T, ...)`. Its weights are tensors of the state's dtype. With a wrong Jacobian the
            states are right and the gradients wrong: check it with
            `keras_coffee.diagnostics.check_jacobian`.
        inputs: u, `(B, T, ...)`, T ≥ 1: a tensor, or a tuple, list or dictionary of them.
        initial_state: x(0), `(B, ...)`, float32 or float64.
        mask: `(B, T)`, False or 0 at steps to skip: the state is held there. Floating-point inputs
            at such a step have no effect, not even NaN. None: every step counts.
        reset: `(B, T)`, True or 1 where a new sequence begins: the state is zero before the step,
            whatever came before it, and no gradient goes back past it. None: nowhere.
        solver: `"auto"`, the default, `"sequential"`, `"newton"`, `"elk"`, or a `Sequential`,
            `Newton` or `Elk` of `keras_coffee.solvers`. `"auto"` is sequential for any cell.

    Returns:
        A `Solution`: states `(B, T, ...)`, iterations, residual, converged.

    Raises:
        ValueError: if a shape does not fit, T is 0, the structure or `solver` is unknown.
        TypeError: if the initial state is not float32 or float64, or a tensor is symbolic.

    Example:
        >>> from keras_coffee.cells import ElmanCell
        >>> weights = 0.5 * np.eye(2), np.ones((1, 2)), np.zeros(2)
        >>> cell = ElmanCell(*(keras.ops.convert_to_tensor(w, "float32") for w in weights))
        >>> u = np.ones((3, 100, 1), "float32")
        >>> solution = nonlinear_scan(cell, u, np.zeros((3, 2), "float32"), solver="newton")
        >>> solution.states.shape, bool(solution.converged.all())
        ((3, 100, 2), True)

    Reference:
        Y. H. Lim et al., "Parallelizing non-linear sequential models over the sequence length",
        2024.
    """
    inputs, initial_state, *marks = prepared(inputs, initial_state, mask, reset, is_real=True)
    found = solvers.choose(solver, "nonlinear", keras.tree.flatten(inputs)[0], None)
    return trajectory.solve(found, cell, initial_state, inputs, *marks)
