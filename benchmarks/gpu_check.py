"""Checks all kernels for GPUs on one NVIDIA card, then times them. README.md says how to read it.

    python benchmarks/gpu_check.py --json gpu.json
    python benchmarks/gpu_check.py --dry-run            # tiny, without a card, interpreted

Takes PyTorch for CUDA, Triton and JAX for CUDA, and no network. PyTorch and JAX run one after the
other, each in a process of its own; if one breaks the device, a new process goes on. What time does
not suffice for is left out and says so. One table comes last.
"""

import argparse
import importlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from gpu_parts import journal, table  # noqa: E402

PARTS = ("torch", "jax")
# Of the time that is left when a part starts.
SHARES = {"torch": 0.62, "jax": 1.0}
# At most so much of it for compiling, by several processes at once.
PREPARATION = 0.35
# A process that says nothing for so long hangs, and is stopped.
SILENCE = 90
# What is done when all else is: the table, and the end of a process.
REST = 8


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.part:
        return run_here(options)
    end = time.time() + options.seconds - REST
    records, paths = [], [str(HERE.parent)]
    with tempfile.TemporaryDirectory() as folder:
        if options.wheels:
            paths.append(unpacked(options.wheels, Path(folder) / "wheels"))
        for part in options.parts:
            left = (end - time.time()) * (SHARES[part] if len(options.parts) > 1 else 1)
            path, stop = Path(folder) / f"{part}.jsonl", time.time() + left
            variables = environment(part, paths, folder, options)
            if part == "torch":
                prepare(time.time() + PREPARATION * left, variables, options)
            run_part(part, path, stop, variables, options)
            records += records_of(part, path)
    heading = about_machine(records, options)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": heading, "dry_run": options.dry_run, "records": records}
        options.json.write_text(json.dumps(content, indent=1))
    print("", *heading, "", table.table(records), sep="\n")
    return int(any(x["status"] == "FAILED" for x in records))


def run_here(options: argparse.Namespace) -> int:
    """A part, in this process."""
    lost = {"name": f"device of {options.part}", "status": journal.FAILED}
    try:
        part = importlib.import_module(f"gpu_parts.{options.part}_part")
    except Exception as error:
        lost["error"] = journal.last_lines(error)
    else:
        if options.worker is not None:
            part.prepare(options.worker, options.workers, options.only)
            return 0
        if options.dry_run or not part.DRY:
            part.run(options.journal, options.seconds, options.only)
            return 0
        lost["error"] = f"{options.part} finds no GPU; --dry-run needs none"
    if options.worker is None:
        journal.append(options.journal, lost)
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--seconds", type=float, default=450, help="for all; what does not fit is left out")
    add("--wheels", type=Path, metavar="DIR", help="wheels of what is not installed here")
    add("--json", type=Path, metavar="FILE", help="write all that was found to FILE")
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--only", nargs="+", metavar="TEXT", help="only what has one of these in its name")
    add("--dry-run", action="store_true", help="tiny shapes, interpreted on the CPU, by a clock")
    add("--workers", type=int, help="that compile; default: one for each core but at most 12")
    add("--worker", type=int, help=argparse.SUPPRESS)
    add("--part", choices=PARTS, help=argparse.SUPPRESS)
    add("--journal", type=Path, help=argparse.SUPPRESS)
    return made


def unpacked(wheels: Path, target: Path) -> str:
    """A folder with what is in the wheels, those left out whose distributions are installed.

    So nothing replaces what PyTorch and JAX were installed with.
    """
    target.mkdir(parents=True)
    for wheel in sorted(wheels.glob("*.whl")):
        try:
            metadata.version(wheel.name.split("-")[0])
        except metadata.PackageNotFoundError:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
    return str(target)


def environment(
    part: str, paths: list[str], home: str, options: argparse.Namespace
) -> dict[str, str]:
    """Of the process of a part."""
    before = [x for x in os.environ.get("PYTHONPATH", "").split(os.pathsep) if x]
    found = os.environ | {
        "KERAS_BACKEND": part,
        "PYTHONPATH": os.pathsep.join([*before, *paths]),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Keras' own settings in the home directory shall not count.
        "KERAS_HOME": home,
    }
    if options.dry_run:
        found |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1"}
        # NumPy, in the interpreter, says where numbers overflow in branches that are not taken.
        found["PYTHONWARNINGS"] = "ignore::RuntimeWarning"
    return found


def command_of(part: str, options: argparse.Namespace, *more) -> list[str]:
    """Of a process of a part."""
    found = [sys.executable, str(HERE / "gpu_check.py"), "--part", part, *map(str, more)]
    found += ["--dry-run"] if options.dry_run else []
    return found + (["--only", *options.only] if options.only else [])


def prepare(end: float, variables: dict[str, str], options: argparse.Namespace) -> None:
    """Has Triton compile on all cores what one process would compile for minutes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = options.workers
    if workers is None:
        # The interpreter compiles nothing.
        workers = 0 if options.dry_run else min(12, cores or 1)
    start = time.time()
    command = command_of("torch", options, "--workers", workers)
    processes = [
        subprocess.Popen([*command, "--worker", str(worker)], env=variables)
        for worker in range(workers)
    ]
    while any(x.poll() is None for x in processes) and time.time() < end:
        time.sleep(0.1)
    stopped = [x for x in processes if x.poll() is None]
    for process in stopped:
        process.kill()
    for process in processes:
        process.wait()
    if workers:
        late = f", {len(stopped)} of them stopped before their end" if stopped else ""
        print(f"compiled by {workers} processes in {time.time() - start:.0f} s{late}", flush=True)


def run_part(
    part: str, path: Path, end: float, variables: dict[str, str], options: argparse.Namespace
) -> None:
    """Runs a part in new processes until one ends well, nothing more gets done, or time is up."""
    while True:
        size = path.stat().st_size if path.exists() else 0
        left = end - time.time()
        command = command_of(part, options, "--journal", path, "--seconds", left)
        process = subprocess.Popen(command, env=variables)
        try:
            status = wait(process, path, end + REST / 2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        gained = path.exists() and path.stat().st_size > size
        if status == 0 or not gained or time.time() > end - 5:
            break
    if status != 0:
        reason = f"ended with status {status}" if status is not None else "was stopped"
        record = {"name": f"process of {part}", "status": "FAILED", "error": reason}
        journal.append(path, record)


def wait(process: subprocess.Popen, path: Path, end: float) -> int | None:
    """The status of the process; None if it takes too long or writes nothing for too long."""
    heard, size = time.time(), -1
    while process.poll() is None:
        now = path.stat().st_size if path.exists() else 0
        if now != size:
            heard, size = time.time(), now
        if time.time() > min(end, heard + SILENCE):
            return None
        time.sleep(0.1)
    return process.returncode


def records_of(part: str, path: Path) -> list[dict]:
    records = journal.read(path)
    error = {"status": journal.FAILED, "error": "the process ended, or was stopped"}
    return [{"part": part, **x, **(error if x["status"] is None else {})} for x in records]


def about_machine(records: list[dict], options: argparse.Namespace) -> list[str]:
    """What ran where."""
    found: dict[str, str] = {}
    for record in records:
        found |= record.get("versions", {})
    card = found.pop("card", "no card")
    lines = [f"{card}; {driver()}" if card != "no card" else card]
    lines.append(", ".join(f"{name} {version}" for name, version in found.items()))
    lines[-1] += f", python {platform.python_version()}"
    if options.dry_run:
        lines.append("DRY RUN on the CPU, interpreted: times say nothing, tiny shapes.")
    return lines


def driver() -> str:
    """What the driver says of the card."""
    program = shutil.which("nvidia-smi")
    if not program:
        return "driver unknown"
    query = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    command = [program, f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"driver unknown: {error}"
    return f"nvidia-smi ({query}): {done.stdout.strip() or done.stderr.strip()}"


if __name__ == "__main__":
    sys.exit(main())
