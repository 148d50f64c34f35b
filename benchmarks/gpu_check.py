"""Runs the tests of the kernels on one NVIDIA GPU, then times the scans. README.md explains it.

    python benchmarks/gpu_check.py
    python benchmarks/gpu_check.py --dry-run            # tiny, without a GPU, Triton interpreted
    python benchmarks/gpu_check.py --show FILE          # the table of what an earlier run found

Takes PyTorch for CUDA, Triton, JAX for CUDA and pytest, and no network. PyTorch and JAX run one
after the other. What there is no time for is left out and says so. A table comes last.
"""

import argparse
import functools
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from gpu_parts import table  # noqa: E402
from gpu_parts.log import FAILED, LEFT_OUT, OK, Log, Rehearsal, read  # noqa: E402

BACKENDS = ("torch", "jax")
TESTS = ROOT / "tests/backend", ROOT / "tests/ops"
# Of the time of a backend: when its tests must have ended, and the compiling.
TESTED, COMPILED = 0.35, 0.55
# Of the time that PyTorch then has: when its rows must be timed, so that the crossover can be.
TIMED = 0.6
# The exit status of pytest if a file has no tests for this backend.
NO_TESTS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.times:
        times(options)
        return 0
    if not options.show:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("")
        end = time.time() + options.seconds
        for done, backend in enumerate(options.backends):
            left = (end - time.time()) / (len(options.backends) - done)
            run_backend(backend, time.time(), left, options)
    records = read(options.show or options.output)
    print("", table.table(records), sep="\n")
    return int(any(x["status"] == FAILED for x in records))


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--seconds", type=float, default=540, help="for all; what does not fit is left out")
    add("--output", type=Path, default=ROOT / "outputs/benchmarks/gpu.jsonl", metavar="FILE")
    add("--show", type=Path, metavar="FILE", help="print the table of FILE, and run nothing")
    add("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    add(
        "--tests",
        type=Path,
        nargs="*",
        default=TESTS,
        metavar="PATH",
        help="folders or files for pytest",
    )
    add("--only", nargs="+", metavar="TEXT", help="only what has one of these in its name")
    add("--workers", type=int, default=min(12, os.cpu_count() or 1), help="that compile for Triton")
    add("--dry-run", action="store_true", help="tiny shapes on the CPU; times say nothing")
    add("--times", choices=BACKENDS, help=argparse.SUPPRESS)
    add("--until", type=float, help=argparse.SUPPRESS)
    add("--worker", type=int, help=argparse.SUPPRESS)
    return made


def run_backend(backend: str, start: float, seconds: float, options: argparse.Namespace) -> None:
    """Tests, compiles and times, each in processes of their own."""
    log, end = Log(options.output, backend), start + seconds
    variables = environment(backend, options.dry_run)
    run_tests(log, start + TESTED * seconds, variables, options)
    command = [sys.executable, str(HERE / "gpu_check.py"), "--times", backend, "--until", str(end)]
    command += ["--output", str(options.output), "--workers", str(options.workers)]
    command += ["--dry-run"] if options.dry_run else []
    command += ["--only", *options.only] if options.only else []
    # Triton keeps what it compiled on the disk, so that many processes compile for one that times.
    if backend == "torch":
        commands = [[*command, "--worker", str(i)] for i in range(options.workers)]
        run_all(commands, start + COMPILED * seconds, variables, options.workers)
    status = run(command, end + 5, variables)
    if status != 0:
        error = "was stopped" if status is None else f"ended with status {status}"
        log.write({"name": f"process of {backend}", "status": FAILED, "error": error})


def environment(backend: str, is_dry: bool) -> dict[str, str]:
    paths = [os.environ.get("PYTHONPATH"), str(ROOT)]
    found = os.environ | {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if is_dry:
        found |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1"}
    return found


def run_tests(log: Log, until: float, variables: dict, options: argparse.Namespace) -> None:
    """Runs pytest on each file, many at once: most of the time goes into compiling."""
    files = [y for x in options.tests for y in sorted(x.glob("test_*.py")) or [x]]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider"]
    results = run_all([[*command, str(x)] for x in files], until, variables, options.workers)
    for file, (status, text) in zip(files, results, strict=True):
        lines = text.strip().splitlines() or [""]
        found = {None: LEFT_OUT, 0: OK, NO_TESTS: LEFT_OUT}.get(status, FAILED)
        about = {"section": "tests", "status": found}
        about["error"] = "no time left" if status is None else lines[-1].strip("= ")
        failures = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
        name = f"tests, {os.path.relpath(file, ROOT)}, {log.backend}"
        log.write({"name": name, "backend": log.backend, "failures": failures} | about)


def run_all(
    commands: Sequence[Sequence[str]], until: float, variables: dict, workers: int
) -> list[tuple[int | None, str]]:
    """Status and output of each; the status is None if time was up."""
    work = functools.partial(run_quietly, until=until, variables=variables)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        return list(pool.map(work, commands))


def run_quietly(command: Sequence[str], until: float, variables: dict) -> tuple[int | None, str]:
    # Not a pipe, which grandchildren of a stopped process would hold open.
    with tempfile.TemporaryFile("w+") as output:
        status = run(command, until, variables, stdout=output, stderr=output)
        output.seek(0)
        return status, output.read()


def run(command: Sequence[str], until: float, variables: dict, **streams: Any) -> int | None:
    left = until - time.time()
    try:
        if left > 0:
            done = subprocess.run(command, env=variables, cwd=ROOT, timeout=left, **streams)
            return done.returncode
    except subprocess.TimeoutExpired:
        pass
    return None


def times(options: argparse.Namespace) -> None:
    """Times everything of a backend, in this process."""
    start, backend, only = time.time(), options.times, options.only
    log = Log(options.output, backend, only)
    if options.worker is not None:
        log = Rehearsal(options.worker, options.workers, options.output, backend, only)
    clock, scans = (importlib.import_module(f"gpu_parts.{x}") for x in ("clock", "scans"))
    if not (clock.HAS_GPU or options.dry_run):
        raise SystemExit(f"{backend} finds no GPU. With --dry-run none is needed.")
    if options.worker is not None:
        clock.is_rehearsal = True
    log.run("versions", clock.versions, options.until, section="versions")
    if backend == "torch":
        ceilings = importlib.import_module("gpu_parts.ceilings")
        ceilings.run(log, options.dry_run, options.until)
    shapes = scans.DRY_SHAPES if options.dry_run else scans.SHAPES
    share = TIMED if backend == "torch" else 1
    scans.run(log, shapes, start + share * (options.until - start))
    if backend == "torch":
        crossover = importlib.import_module("gpu_parts.crossover")
        crossover.run(log, options.dry_run, options.until)


if __name__ == "__main__":
    sys.exit(main())
