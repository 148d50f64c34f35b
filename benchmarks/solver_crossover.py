"""Times parallel solvers beside the sequential one.

    KERAS_BACKEND=jax python benchmarks/solver_crossover.py

`newton` solves COFFEE with λ = -1, where it needs few iterations unless the gates are large
(solver_iterations.py), and `associative` a linear recurrence with decays between 0.5 and 1. One
thread on one core; each solver takes turns with the sequential one. Answers, outputs and all
gradients, are compared before anything is timed.

On PyTorch, where every operation is a kernel of its own, operations are counted as well: on an
accelerator each costs some microseconds however small. So is what passes between them and memory,
which bounds them when they are large, and how often the host waits for a value.
"""

import argparse
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import arguments

SHAPES = ((1, 1024, 4, 1), (1, 8192, 4, 1), (4, 4096, 32, 1), (32, 784, 32, 1), (8, 4096, 16, 8))


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser(__doc__)
    add = parser.add_argument
    add("--shapes", type=arguments.shape_of, nargs="+", default=SHAPES, metavar="B,T,D,n")
    add(
        "--windows",
        type=arguments.window,
        nargs="*",
        default=[32, 64, None],
        metavar="W",
        help="or `all`",
    )
    add("--modes", nargs="+", default=arguments.MODES, choices=arguments.MODES)
    add("--gate-std", type=float, default=0.5)
    add("--repeats", type=int, default=20, help="timed runs of each side")
    add("--seconds", type=float, default=5, help="a row takes no longer, or has 3 repeats only")
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import measuring
import numpy as np
from measuring import TOLERANCE, line


def main(given: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(given)
    where, backend, reference = measuring.prepare(options.core)
    counts = backend == "torch"
    print(*measuring.environment(reference, where), sep="\n")
    print(*LEGEND[: 3 if counts else 2], "", sep="\n")
    heading = ["(B, T, D, n)", "mode", "solver", "iterations", "sequential, ms", "parallel, ms"]
    heading += ["ratio", "difference"]
    heading += ["operations", "MB", "waits"] if counts else []
    print(line(heading), line(["---"] * len(heading)), sep="\n", flush=True)
    for shape in options.shapes:
        for case in cases(shape, options):
            for mode in options.modes:
                runs = case.runs(reference, mode)
                cells = measure(case, runs, options)
                cells += counted(runs) if counts else []
                print(line([str(shape), mode, case.name, *cells]), flush=True)


LEGEND = (
    "milliseconds of the processor: medians; ratio: parallel to sequential, median of the pairs",
    "difference: of outputs and gradients, relative to the largest element of each",
    "operations, MB that they read and write, waits of the host: sequential / parallel",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A scan that takes a solver, what to call it with, and a parallel solver for it."""

    name: str
    scan: Callable[..., Any]
    solver: Any
    tensors: list[Any]
    grad_outputs: Any
    iterations: str = ""

    def runs(self, reference: Any, mode: str) -> list[Callable[[], Any]]:
        """The sequential solver, then the parallel one, each ready to be called."""
        return [self.run(reference, mode, solver) for solver in ("sequential", self.solver)]

    def run(self, reference: Any, mode: str, solver: Any) -> Callable[[], Any]:
        compiled = getattr(reference, mode)(lambda *tensors: (self.scan(*tensors, solver),))
        first = ((self.grad_outputs,),) if mode == "training" else ()
        return lambda: compiled(*first, *self.tensors)


def cases(shape: tuple[int, ...], options: argparse.Namespace) -> list[Case]:
    newton = importlib.import_module("keras_coffee.solvers").Newton
    tensors, linear_tensors, grad_outputs, grad_states = example(shape, options.gate_std)
    coffee, linear = scans()
    found = []
    for width in options.windows:
        solver = newton(window=width)
        name = f"newton, {width or 'all'}"
        count = iterations(solver, tensors)
        found.append(Case(name, coffee, solver, tensors, grad_outputs, count))
    return [*found, Case("associative", linear, "associative", linear_tensors, grad_states)]


def scans() -> list[Callable[..., Any]]:
    """COFFEE and the linear recurrence, as functions of their tensors and a solver."""
    ops = importlib.import_module("keras_coffee.ops")

    def coffee(inputs, transition, gate, readout, initial_state, solver):
        options = {"initial_state": initial_state, "solver": solver}
        return ops.coffee_scan(inputs, transition, gate, readout, **options)[0]

    def linear(decay, inputs, initial_state, solver):
        return ops.linear_scan(decay, inputs, initial_state=initial_state, solver=solver)[0]

    return [coffee, linear]


def example(shape: tuple[int, ...], gate_std: float) -> list[Any]:
    """What the two scans are called with, and gradients of their outputs."""
    batch, length, dim, n = shape
    random = np.random.default_rng(0)
    inputs, grad_outputs = random.normal(size=(2, batch, length, dim))
    gate, readout = random.normal(size=(2, dim, n))
    # Zeros, as layers start: from other states Newton may leave the range of numbers.
    initial_state = np.zeros((batch, dim, n))
    decay = random.uniform(0.5, 1, size=(batch, length, dim, n))
    drive, grad_states = random.normal(size=(2, batch, length, dim, n))
    tensors = [inputs, -np.ones((dim, n)), gate_std * gate, readout, initial_state]
    linear_tensors = [decay, drive, initial_state]
    keras = importlib.import_module("keras")
    return keras.tree.map_structure(
        lambda x: keras.ops.convert_to_tensor(x.astype("float32")),
        [tensors, linear_tensors, grad_outputs, grad_states],
    )


def iterations(solver: Any, tensors: list[Any]) -> str:
    """The most that a window of a sequence takes; ends the program if it does not get there."""
    keras = importlib.import_module("keras")
    cells = importlib.import_module("keras_coffee.cells")
    scan = importlib.import_module("keras_coffee.ops").nonlinear_scan
    reference = importlib.import_module(f"reference_{keras.config.backend()}")

    def solve(inputs, transition, gate, readout, initial_state):
        cell = cells.CoffeeCell(transition, gate)
        return scan(cell, inputs, initial_state, solver=solver)[1:]

    found = reference.inference(solve)(*tensors)
    taken, _, converged = map(keras.ops.convert_to_numpy, found)
    if not converged.all():
        raise SystemExit(f"{solver} does not converge here, so nothing was timed.")
    return str(taken.max())


def measure(case: Case, runs: list[Callable], options: argparse.Namespace) -> list[str]:
    """Compares the answers of both solvers, then times them."""
    expected, answers = (run() for run in runs)
    difference = max(measuring.differences(answers, expected))
    if difference > TOLERANCE:
        raise SystemExit(f"{case.name}: answers differ by {difference:.1e}, so nothing was timed.")
    pair = sum(measuring.timed(run)[0][1] for run in runs)
    repeats = min(options.repeats, max(3, int(options.seconds / pair)))
    sequential, parallel = (
        np.array([processor for processor, _ in side.values()])
        for side in measuring.take_turns(runs, [repeats] * 2)
    )
    ratio = np.median(parallel / sequential)
    times = [f"{1e3 * np.median(side):.3g}" for side in (sequential, parallel)]
    return [case.iterations, *times, f"{ratio:.3g}", f"{difference:.0e}"]


def counted(runs: list[Callable]) -> list[str]:
    """Operations, megabytes and waits of each side."""
    pairs = zip(*map(operations, runs), strict=True)
    return [f"{sequential:,} / {parallel:,}" for sequential, parallel in pairs]


def operations(run: Callable[[], Any]) -> tuple[int, int, int]:
    """How many operations compute something, what they read and write, how often the host waits."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        launches = bytes = waits = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs, name = kwargs or {}, function.name()
            if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
                with self:  # its parts
                    return function.decompose(*args, **kwargs)
            result = function(*args, **kwargs)
            if name == "aten::_local_scalar_dense":
                self.waits += 1
            elif not (function.is_view or name.startswith("aten::empty")):
                self.launches += 1
                tensors = torch.utils._pytree.tree_leaves([args, kwargs, result])
                self.bytes += sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))
            return result

    with Counter() as counter:
        run()
    return counter.launches, round(counter.bytes / 1e6), counter.waits


if __name__ == "__main__":
    main()
