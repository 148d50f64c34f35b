"""A million steps in parallel, a window at a time: how long it takes and what it holds.

    KERAS_BACKEND=torch python benchmarks/million_steps.py

COFFEE with λ = -1, one sequence, inference. What it holds is the most resident memory of the
process while it computes, less what was resident before, so it is measured on Linux only. On JAX
and TensorFlow that includes what compiling takes; the second call does not compile.
"""

import argparse
import importlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scan_floor

# Of the largest output.
TOLERANCE = 1e-4


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    core, _, reference = scan_floor.prepare(options.core)
    keras = importlib.import_module("keras")
    shape = (1, options.steps, options.dim, options.n)
    tensors = example(shape, options.gate_std)
    solver = importlib.import_module("keras_coffee.solvers").Newton(window=options.window)
    run = reference.inference(scan_by(solver), tensors, None)
    print(f"{reference.VERSION}, {scan_floor.processor()}, core {core}, {shape}, {solver}")
    sizes = 4e-6 * options.steps * options.dim
    print(f"inputs {sizes:.3g} MB, outputs the same, all states {sizes * options.n:.3g} MB")
    # A short sequence, so that what a framework sets up once does not count.
    short = [tensors[0][:, : 2 * options.window], *tensors[1:]]
    reference.inference(scan_by(solver), short, None)()
    for call in range(1, options.calls + 1):
        outputs, seconds, held = watched(run)
        print(f"call {call}: {seconds:.1f} s, at most {held:.0f} MB more than before", flush=True)
    expected = reference.inference(scan_by("sequential"), tensors, None)()
    outputs, expected = map(keras.ops.convert_to_numpy, (outputs, expected))
    difference = np.abs(outputs - expected).max() / np.abs(expected).max()
    print(f"largest difference to the sequential outputs {difference:.1e} of the largest output")
    # Not `difference > TOLERANCE`, which is false for NaN.
    if not difference <= TOLERANCE:
        raise SystemExit("These are not the outputs.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--steps", type=int, default=1_000_000)
    add("--dim", type=int, default=4)
    add("--n", type=int, default=1)
    add("--window", type=int, default=32)
    add("--gate-std", type=float, default=0.5)
    add("--calls", type=int, default=2)
    add("--core", type=int, help="number of the core; default: the last one allowed")
    return parser


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
        return scan(inputs, transition, gate, readout, **options)[0]

    return outputs


def watched(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call returns, its seconds, and the most megabytes it held."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, start = resident("VmRSS"), time.perf_counter()
    outputs = run()
    return outputs, time.perf_counter() - start, resident("VmHWM") - before


def resident(name: str) -> float:
    """Megabytes of a line of /proc/self/status."""
    text = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(kilobytes) * 1024 / 1e6


if __name__ == "__main__":
    main()
