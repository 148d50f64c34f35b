"""Times `coffee_scan`, forward and backward, beside a simple scan written for the framework.

One thread on one core, in one run, the two sides taking turns; README.md says how to read it. Run
it once for each backend:

    KERAS_BACKEND=jax python benchmarks/scan_floor.py
"""

import argparse
import dataclasses
import gc
import importlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BACKENDS = ("jax", "tensorflow", "torch")
SHAPES = ((512, 16, 16, 8), (8, 4096, 16, 8), (32, 784, 32, 1), (64, 256, 16, 8))
NAMES = (
    "outputs",
    *(f"gradient by {x}" for x in ("inputs", "transition", "gate", "readout", "initial state")),
)
# Of the largest element: float32 sums over up to B·T = 32,768 terms, added in another order.
TOLERANCE = 1e-4


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    core, backend, reference = prepare(options.core)
    heading = _environment(reference, core)
    rows = []
    for shape in options.shapes:
        for mode in reference.MODES:
            print(f"{backend}: {shape}, {mode}", flush=True)
            limit = bar(backend, shape, mode)
            rows.append(measure(reference, shape, mode, limit, options))
    if options.json:
        report = {"environment": heading, "rows": [row.as_dict() for row in rows]}
        options.json.write_text(json.dumps(report, indent=1))
    print("", *heading, table(rows), sep="\n")


def prepare(core: int | None) -> tuple[int | None, str, Any]:
    """Takes one core and one thread: the core, the backend's name and its `reference_` module."""
    core = use_one_core(core)
    # Only now, because frameworks count the cores when they are imported.
    backend = importlib.import_module("keras").config.backend()
    if backend not in BACKENDS:
        raise SystemExit(f"No baseline for {backend!r}: set KERAS_BACKEND to one of {BACKENDS}.")
    reference = importlib.import_module(f"reference_{backend}")
    reference.use_one_thread()
    return core, backend, reference


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", type=shape_of, nargs="+", default=SHAPES, metavar="B,T,D,n")
    add("--repeats", type=int, default=30, help="timed runs of each side")
    add("--seconds", type=float, default=30, help="a row takes no longer, or has 5 repeats only")
    add("--core", type=int, help="number of the core; default: the last one allowed")
    add("--json", type=Path, metavar="FILE", help="write every single time to FILE")
    return parser


def shape_of(text: str) -> tuple[int, ...]:
    batch, length, dim, n = map(int, text.split(","))
    return batch, length, dim, n


def use_one_core(core: int | None) -> int | None:
    """Restricts this process to one core and one thread, and the frameworks to the CPU.

    Returns:
        The core, or None where the operating system does not offer this.
    """
    os.environ.update(
        CUDA_VISIBLE_DEVICES="",
        JAX_PLATFORMS="cpu",
        OMP_NUM_THREADS="1",
        TF_CPP_MIN_LOG_LEVEL="2",
        XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    )
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0)) if core is None else core
    os.sched_setaffinity(0, {core})
    return core


def _environment(reference: Any, core: int | None) -> list[str]:
    keras = importlib.import_module("keras")
    pinned = "not pinned" if core is None else f"core {core}"
    return [
        f"{reference.VERSION}, keras {keras.__version__}, numpy {np.__version__}, "
        f"python {platform.python_version()}",
        f"{processor()}, one thread, {pinned}",
        f"baseline: {reference.BASELINE}",
    ]


def processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@dataclasses.dataclass(frozen=True)
class Row:
    """Times of one shape and mode; a time is (seconds of the processor, seconds on the clock)."""

    shape: tuple[int, ...]
    mode: str
    first_calls: tuple[float, float]
    ours: list[tuple[float, float]]
    baseline: list[tuple[float, float]]
    bar: float | None

    @property
    def ratios(self) -> dict[str, float]:
        ours, baseline = np.array(self.ours), np.array(self.baseline)
        medians = np.median(ours, 0) / np.median(baseline, 0)
        pairs = float(np.median(ours[:, 0] / baseline[:, 0]))
        return {"processor": float(medians[0]), "pairs": pairs, "clock": float(medians[1])}

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return "none"
        return "met" if self.ratios["processor"] <= self.bar else "NOT MET"

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"ratios": self.ratios, "verdict": self.verdict}


def bar(backend: str, shape: tuple[int, ...], mode: str) -> float | None:
    """How many times as long as the baseline the scan may take; None: no matter how long."""
    if not mode.startswith("training"):
        return None
    if backend == "torch":
        return 1 / 5 if shape[1] >= 4096 else None
    return 1.1


def measure(
    reference: Any,
    shape: tuple[int, ...],
    mode: str,
    limit: float | None,
    options: argparse.Namespace,
) -> Row:
    """Compares the answers of both sides, then times them."""
    runs = _runs(reference, shape, mode)
    (first_calls, (answers, expected)) = zip(*map(timed, runs), strict=True)
    check_same(answers, expected, f"{shape}, {mode}")
    pair = sum(timed(run)[0][1] for run in runs)
    repeats = min(options.repeats, max(5, int(options.seconds / pair)))
    clock = tuple(seconds for _, seconds in first_calls)
    return Row(shape, mode, clock, *take_turns(runs, repeats), limit)


def _runs(reference: Any, shape: tuple[int, ...], mode: str) -> list[Callable[[], Any]]:
    convert = importlib.import_module("keras").ops.convert_to_tensor
    scan = importlib.import_module("keras_coffee.ops").coffee_scan
    tensors, grad_outputs = example(shape)
    tensors, grad_outputs = [convert(x) for x in tensors], convert(grad_outputs)

    def ours(inputs, transition, gate, readout, initial_state):
        options = {"initial_state": initial_state, "recompute": mode == "recompute"}
        return scan(inputs, transition, gate, readout, **options)[0]

    make = reference.MODES[mode]
    return [make(scan, tensors, grad_outputs) for scan in (ours, reference.coffee_scan)]


def example(shape: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs, transition, gate, readout and initial state; the gradient of the outputs."""
    batch, length, dim, n = shape
    random = np.random.default_rng(0)
    inputs, grad_outputs = random.normal(size=(2, batch, length, dim)).astype("float32")
    gate, readout = random.normal(size=(2, dim, n)).astype("float32")
    transition = random.uniform(-1, 0, size=(dim, n)).astype("float32")
    initial_state = random.normal(size=(batch, dim, n)).astype("float32")
    return [inputs, transition, gate, readout, initial_state], grad_outputs


def timed(run: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    processor, clock = time.process_time(), time.perf_counter()
    answers = run()
    return (time.process_time() - processor, time.perf_counter() - clock), answers


def take_turns(runs: Sequence[Callable[[], Any]], repeats: int) -> tuple[list, list]:
    """Both sides' times, run after run in turn, so that what disturbs one disturbs the other."""
    times: tuple[list, list] = [], []
    gc.collect()
    gc.disable()
    for repeat in range(repeats):
        # Which side goes first alternates too.
        for side in (repeat % 2, 1 - repeat % 2):
            times[side].append(timed(runs[side])[0])
    gc.enable()
    return times


def check_same(answers: Any, expected: Any, where: str) -> None:
    """Ends the program unless outputs and gradients agree."""
    convert = importlib.import_module("keras").ops.convert_to_numpy
    answers, expected = ([convert(x) for x in listed(y)] for y in (answers, expected))
    for name, ours, baseline in zip(NAMES, answers, expected, strict=False):
        same_shape = ours.shape == baseline.shape
        error = np.abs(ours - baseline).max() / np.abs(baseline).max() if same_shape else np.inf
        # Not `error > TOLERANCE`, which is false for NaN.
        if not error <= TOLERANCE:
            raise SystemExit(
                f"{where}: not the baseline's answer, so nothing was timed. {name.capitalize()}: "
                f"off by {error:.1e} of the largest element, allowed {TOLERANCE:.0e}."
            )


def listed(answers: Any) -> Sequence[Any]:
    return answers if isinstance(answers, tuple) else [answers]


def table(rows: Sequence[Row]) -> str:
    lines = [
        "milliseconds of the processor: median (quartiles)",
        "ratio: of the medians; of the pairs, median; of the medians by the clock",
        "",
        "| (B, T, D, n) | mode | runs | keras_coffee | baseline | ratio | bar | first calls, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, rows)])


def _line(row: Row) -> str:
    cells = [
        str(row.shape),
        row.mode,
        str(len(row.ours)),
        _spread(row.ours),
        _spread(row.baseline),
        ", ".join(f"{ratio:.2f}" for ratio in row.ratios.values()),
        row.verdict if row.bar is None else f"≤ {row.bar:g}: {row.verdict}",
        ", ".join(f"{seconds:.1f}" for seconds in row.first_calls),
    ]
    return f"| {' | '.join(cells)} |"


def _spread(times: Sequence[tuple[float, float]]) -> str:
    low, middle, high = np.quantile([x for x, _ in times], (0.25, 0.5, 0.75)) * 1e3
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


if __name__ == "__main__":
    main()
