"""A million steps in parallel, a window at a time: how long it takes and what it holds.

    KERAS_BACKEND=torch python benchmarks/million_steps.py

COFFEE with λ = -1, one sequence, inference. What it holds is the most resident memory of the
process while it computes, less what was resident before, so it is measured on Linux only. On JAX
and TensorFlow that includes what compiling takes; the second call does not compile.
"""

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import arguments


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser(__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=1_000_000)
    add("--dim", type=int, default=4)
    add("--n", type=int, default=1)
    add("--window", type=int, default=32)
    add("--gate-std", type=float, default=0.5)
    add("--calls", type=int, default=2)
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import measuring
import numpy as np


def main(given: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(given)
    where, _, reference = measuring.prepare(options.core)
    shape = (1, options.steps, options.dim, options.n)
    tensors = example(shape, options.gate_std)
    solver = importlib.import_module("keras_coffee.solvers").Newton(window=options.window)
    run = reference.inference(scan_by(solver))
    print(*measuring.environment(reference, where), f"{shape}, {solver}", sep="\n")
    sizes = 4e-6 * options.steps * options.dim
    print(f"inputs {sizes:.3g} MB, outputs the same, all states {sizes * options.n:.3g} MB")
    # A short sequence, so that what a framework sets up once does not count.
    short = [tensors[0][:, : 2 * options.window], *tensors[1:]]
    reference.inference(scan_by(solver))(*short)
    for call in range(1, options.calls + 1):
        (_, seconds), outputs, held = measuring.watched(lambda: run(*tensors))
        memory = "" if held is None else f", at most {held:.0f} MB more than before"
        print(f"call {call}: {seconds:.1f} s{memory}", flush=True)
    expected = reference.inference(scan_by("sequential"))(*tensors)
    (difference,) = measuring.differences(outputs, expected)
    print(f"largest difference to the sequential outputs {difference:.1e} of the largest output")
    if difference > measuring.TOLERANCE:
        raise SystemExit("These are not the outputs.")


def example(shape: tuple[int, ...], gate_std: float) -> list[Any]:
    """Inputs, transition, gate, readout and initial state."""
    batch, length, dim, n = shape
    random = np.random.default_rng(0)
    inputs = random.normal(size=(batch, length, dim))
    gate, readout = random.normal(size=(2, dim, n))
    arrays = inputs, -np.ones((dim, n)), gate_std * gate, readout, np.zeros((batch, dim, n))
    convert = importlib.import_module("keras").ops.convert_to_tensor
    return [convert(x.astype("float32")) for x in arrays]


def scan_by(solver: Any) -> Callable[..., Any]:
    scan = importlib.import_module("keras_coffee.ops").coffee_scan

    def outputs(inputs, transition, gate, readout, initial_state):
        options = {"initial_state": initial_state, "solver": solver}
        return scan(inputs, transition, gate, readout, **options)[:1]

    return outputs


if __name__ == "__main__":
    main()
