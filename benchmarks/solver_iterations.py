"""Counts the iterations that each parallel solver needs for COFFEE.

    KERAS_BACKEND=torch python benchmarks/solver_iterations.py

λ = -1, D = 64, n = 1, four sequences, float32, inputs and gates normal with mean 0. A cell of the
table is the median over the sequences and, in parentheses, the most; a sequence counts the
iterations of the window that took most. "fails (k of 4)": k sequences had a window that was not
solved within its budget, 300 iterations for all steps at once and 100 for smaller windows, and was
run one step after another. The counts do not depend on how fast the machine is.
"""

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import arguments


def _parser() -> argparse.ArgumentParser:
    made = arguments.parser(__doc__)
    add = made.add_argument
    add("--gate-stds", type=float, nargs="+", default=[0.5, 1, 2, 4, 10])
    add("--lengths", type=int, nargs="+", default=[1024, 8192], metavar="T")
    add("--input-std", type=float, default=1)
    add(
        "--newton-windows",
        type=arguments.window,
        nargs="*",
        default=[16, 32, 64, 128, None],
        metavar="W",
    )
    add("--elk-windows", type=arguments.window, nargs="*", default=[32, None], metavar="W")
    return made


if __name__ == "__main__":
    _parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import numpy as np
from measuring import line, prepare

BATCH, DIM = 4, 64


def main(given: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(given)
    _, _, reference = prepare(options.core)
    columns = solvers(options.newton_windows, options.elk_windows)
    heading = ["gate std", "T", "Lyapunov exponent", *columns]
    print(f"{reference.VERSION}, input std {options.input_std:g}", "", sep="\n")
    print(line(heading), line(["---"] * len(heading)), sep="\n", flush=True)
    for gate_std in options.gate_stds:
        for length in options.lengths:
            cell, inputs, state = example(gate_std, options.input_std, length)
            exponent = f"{lyapunov(cell, inputs, state):+.3f}"
            counts = [
                count(reference.inference, solver, cell, inputs, state)
                for solver in columns.values()
            ]
            print(line([f"{gate_std:g}", str(length), exponent, *counts]), flush=True)


def solvers(newton_windows: Sequence[int | None], elk_windows: Sequence[int | None]) -> dict:
    """Solvers by the heading of their columns."""
    package = importlib.import_module("keras_coffee.solvers")
    return {
        f"{kind.__name__}, {width or 'all'}": kind(
            window=width, max_iterations=300 if width is None else 100
        )
        for kind, widths in ((package.Newton, newton_windows), (package.Elk, elk_windows))
        for width in widths
    }


def example(gate_std: float, input_std: float, length: int) -> tuple[Any, Any, Any]:
    """A cell, inputs, and the state to start from; the same inputs whatever the gates."""
    convert = importlib.import_module("keras").ops.convert_to_tensor
    random = np.random.default_rng(0)
    gate = gate_std * random.normal(size=(DIM, 1))
    inputs = input_std * random.normal(size=(BATCH, length, DIM))
    arrays = -np.ones((DIM, 1)), gate, inputs, np.zeros((BATCH, DIM, 1))
    transition, gate, inputs, state = (convert(x.astype("float32")) for x in arrays)
    cell = importlib.import_module("keras_coffee.cells").CoffeeCell(transition, gate)
    return cell, inputs, state


def lyapunov(cell: Any, inputs: Any, state: Any) -> float:
    diagnostics = importlib.import_module("keras_coffee.diagnostics")
    return diagnostics.lyapunov_exponent(cell, inputs, state)


def count(compiled: Callable, solver: Any, cell: Any, inputs: Any, state: Any) -> str:
    """How many iterations a solver takes, in words."""
    scan = importlib.import_module("keras_coffee.ops").nonlinear_scan

    def solve(inputs, state):
        return scan(cell, inputs, state, solver=solver)[1:]

    found = compiled(solve)(inputs, state)
    convert = importlib.import_module("keras").ops.convert_to_numpy
    return describe(*map(convert, found))


def describe(iterations: np.ndarray, residual: np.ndarray, converged: np.ndarray) -> str:
    # A sequence that did not converge ran step by step, which leaves a residual of rounding.
    if not np.all(residual < 1e-4):
        raise SystemExit(f"Not the states of the recurrence: residuals {residual}.")
    failed = int((~converged).sum())
    if failed:
        return f"fails ({failed} of {len(converged)})"
    return f"{np.median(iterations):g} ({iterations.max()})"


if __name__ == "__main__":
    main()
