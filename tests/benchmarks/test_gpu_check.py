"""The check for a card, on the CPU: its own parts, and a dry run of the part of this backend."""

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
SHAPE = (2, 7, 3, 2)


@pytest.fixture(scope="module")
def parts(benchmark):
    """Its modules, by name, those that need no framework."""
    names = ("checking", "crossover", "journal", "problems", "table")
    modules = {name: benchmark(f"gpu_parts.{name}") for name in names}
    return argparse.Namespace(gpu_check=benchmark("gpu_check"), **modules)


# Checks, and what follows from them.


def fake_kernels(parts, wrong_by=0.0):
    """The reference as if it were kernels, one gradient of it wrong."""

    def run(kernels, case, problem):
        answers = [np.array(x) for x in parts.problems.expected(case, SHAPE)]
        answers[3].flat[-1] += wrong_by * np.abs(answers[3]).max()
        return answers

    cases = [parts.problems.Case("COFFEE", "here", keep) for keep in (1, 0)]
    return parts.checking.Kernels("kernels", "here", {}, cases), run


@pytest.mark.parametrize("wrong_by", [0.0, 0.01, math.nan, math.inf])
def test_what_is_wrong_is_not_timed(parts, tmp_path, wrong_by):
    kernels, run = fake_kernels(parts, wrong_by)
    journal = parts.journal.Journal(tmp_path / "journal")
    later = time.time() + 100
    parts.checking.check_all(journal, "torch", [kernels], run, {"here": SHAPE}, later)
    first, second = journal.records
    assert (first["status"] == second["status"] == "ok") == (wrong_by == 0)

    def timed():
        parts.checking.must_be_right(journal, "torch", kernels, "COFFEE", "training")
        return {"called_ms": 1.0}

    journal.run("time", timed, later)
    if wrong_by:
        size = "1.0e-02" if wrong_by == 0.01 else "inf"
        text = f"off, of the largest element: gradient by weights {size}"
        assert first["error"] == text
        assert journal.records[-1]["status"] == "left out"
        assert "its check did not pass" in journal.records[-1]["error"]
    else:
        assert journal.is_ok("time") and first["difference"] == 0


def test_rows_that_answer_otherwise_are_not_timed(parts):
    def largest(x, unit):
        return float(np.abs(x).max() / np.abs(unit).max())

    same, first, names = parts.checking.same_as_first, [], ("outputs", "final state")
    with pytest.raises(parts.journal.LeftOut, match="nothing that was checked has answered"):
        same(first, [np.ones(2)], names, largest, False)
    assert same(first, [np.ones(2)], names, largest, True) is None
    assert same(first, [np.ones(2) + 1e-4, np.ones(3)], names, largest, True) < 2e-4
    for wrong in (1.1, math.nan):
        with pytest.raises(parts.journal.Wrong, match="not timed: final state off by"):
            same(first, [np.ones(2), np.full(3, wrong)], names, largest, False)


def test_a_failure_ends_nothing_and_no_unit_is_done_twice(parts, tmp_path):
    path, done = tmp_path / "journal", []
    journal = parts.journal.Journal(path)
    later = time.time() + 100
    journal.run("first", lambda: 1 / 0, later)
    journal.run("second", lambda: {"found": done.append(1)}, later)
    journal.run("second", lambda: {"found": done.append(1)}, later)
    journal.run("third", lambda: {}, time.time() - 1)
    assert [x["status"] for x in journal.records] == ["FAILED", "ok", "left out"] and done == [1]
    assert journal.records[0]["error"].startswith("ZeroDivisionError: division by zero (test_gpu")
    # A new process knows all this; what was under way when the last one died has failed.
    parts.journal.append(path, {"name": "fourth", "status": None})
    path.write_text(path.read_text() + '{"name": "fif')
    again = parts.journal.Journal(path)
    again.run("second", lambda: {"found": done.append(1)}, later)
    again.run("fourth", lambda: {"found": done.append(1)}, later)
    again.run("fifth", lambda: {}, later)
    statuses = {x["name"]: x["status"] for x in parts.journal.read(path)}
    assert statuses["fourth"] == "FAILED" and statuses["fifth"] == "ok" and done == [1]


def test_a_broken_device_ends_the_process_after_the_record(parts, tmp_path):
    def lost():
        raise RuntimeError("an illegal memory access was encountered")

    journal = parts.journal.Journal(tmp_path / "journal", is_healthy=lost)
    with pytest.raises(SystemExit) as ended:
        journal.run("first", lost, time.time() + 100)
    assert ended.value.code == parts.journal.BROKEN
    (record,) = parts.journal.read(tmp_path / "journal")
    assert record["status"] == "FAILED" and "illegal memory access" in record["error"]


PROCESS = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
from gpu_parts.journal import Journal
path = Path(sys.argv[sys.argv.index("--journal") + 1])
journal, later = Journal(path), time.time() + 100
journal.run("first", dict, later)
journal.run("dies", lambda: os._exit(9), later)
journal.run("hangs", lambda: time.sleep(60), later)
journal.run("last", dict, later)
"""


def test_a_new_process_goes_on_where_one_died_or_hung(parts, tmp_path, monkeypatch):
    gpu_check, path = parts.gpu_check, tmp_path / "journal"
    (tmp_path / "gpu_check.py").write_text(PROCESS.format(folder=str(SCRIPT.parent)))
    monkeypatch.setattr(gpu_check, "HERE", tmp_path)
    monkeypatch.setattr(gpu_check, "SILENCE", 3)
    options = argparse.Namespace(dry_run=True, only=None)
    gpu_check.run_part("torch", path, time.time() + 30, {}, options)
    statuses = {x["name"]: x["status"] for x in gpu_check.records_of("torch", path)}
    assert statuses == {"first": "ok", "dies": "FAILED", "hangs": "FAILED", "last": "ok"}


# Bounds, limits and the table.


def test_bounds_are_those_that_lose_least(parts):
    crossover = parts.crossover
    points = [
        {"length": length, "pairs": pairs, "ms": dict.fromkeys(parts.problems.MODES[:2], times)}
        for length in (256, 1024, 4096)
        for pairs in (1, 64, 1024)
        for times in [[2.0, 1.0] if length >= 1024 and pairs <= 64 else [1.0, 3.0]]
    ]
    assert crossover.best_bounds(points, "pairs") == (1024, 64)
    assert crossover.loss(points, lambda x: x["length"] >= 1024 and x["pairs"] <= 64) == 0
    # Four of nine points twice as slow.
    assert crossover.loss(points, lambda x: False) == pytest.approx(2 ** (4 / 9) - 1)
    never = [point | {"ms": dict.fromkeys(parts.problems.MODES[:2], [1, 2])} for point in points]
    assert crossover.best_bounds(never, "pairs") == (0, 0)


def test_the_limit_is_the_larger_of_two_times(parts):
    problems, shape = parts.problems, (2, 16, 3, 4)
    features, states, kept = 96, 24, 16 * 24
    assert problems.least_bytes("COFFEE", shape, "inference") == 8 * features + 8 * states
    training = 20 * features + 4 * (4 * states + 2 * kept)
    assert problems.least_bytes("COFFEE", shape, "training") == training
    s6 = 4 * (3 * features + 2 * 128 + 2 * states)
    assert problems.least_bytes("S6", shape, "inference") == s6
    assert problems.special_functions("COFFEE", shape, "training, recompute") == 6 * 384
    row = {"bytes": 2e6, "special": 3e6}
    ceilings = {"bytes_per_second": 1e9, "special_per_second": 1e9}
    assert problems.limit(row, ceilings) == (pytest.approx(3), "special functions")
    assert problems.limit(row | {"bytes": 4e6}, ceilings) == (pytest.approx(4), "memory")
    assert problems.limit(row, {}) is None


def test_rows_are_compared_with_the_faster_of_ours(parts):
    about = {"part": "torch", "section": "time", "shape": [1, 2, 3, 4], "mode": "inference"}
    row = about | {"family": "COFFEE", "status": "ok", "bytes": 10, "special": 0}
    times = {"Triton, sequential": 3.0, "Triton, parallel": 2.0}
    rows = [row | {"row": name, "called_ms": ms, "ms": ms / 2} for name, ms in times.items()]
    rows += [row | {"row": x, "family": x, "bytes": None, "called_ms": 8} for x in ["torch.nn.GRU"]]
    failed = {"part": "torch", "name": "process of torch", "status": "FAILED", "error": "a | b"}
    ceilings = {"section": "ceiling", "name": "c", "part": "torch", "status": "ok"}
    measured = [ceilings | {"bytes_per_second": 1e4}, ceilings | {"special_per_second": 1.0}]
    lines = parts.table.table([*rows, failed, *measured]).splitlines()
    assert [x.count(" | ") for x in lines] == [7] * len(lines)
    assert "| 1.5 | 3 | 67 % of memory | 1.50 |" in lines[4]
    assert "| 1 | 2 | 100 % of memory | 1.00 |" in lines[5]
    assert lines[6].endswith("|  | 8 |  | 4.00 |")
    assert lines[-1].startswith("| process of torch |  |  | FAILED: a / b |")


def test_wheels_are_unpacked_unless_installed(parts, tmp_path):
    for name in ("some_thing-1.0", "numpy-9.9"):
        with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name.split('-')[0]}/__init__.py", "")
    target = parts.gpu_check.unpacked(tmp_path, tmp_path / "unpacked")
    assert [x.name for x in Path(target).iterdir()] == ["some_thing"]


# The whole, of this backend.

ONLY = {
    "torch": [
        *(
            "sequential, S6, zoh, B over time, C over time, keep 0",
            "parallel, COFFEE, feedback None",
        ),
        *(
            "ops, COFFEE, feedback sigmoid, mask",
            "time, torch, S6, Triton, sequential, (1, 3, 2, 2)",
        ),
        *("GRU", "ceiling"),
    ],
    "jax": ["COFFEE, feedback sigmoid, keep 0", "time, jax, COFFEE", "time, jax, S6, XLA"],
}
# Not all that is named so: what is timed must have been checked.
LEFT_OUT = {
    "torch": ["S6, Triton, sequential, (1, 3, 2, 2), training"],
    "jax": ["S6, XLA, lax.scan, (1, 3, 2, 2), inference", "COFFEE, Pallas, (1, 3, 2, 2), training"],
}


@pytest.mark.skipif(keras.config.backend() not in ONLY, reason="there is no part of this backend")
@pytest.mark.skipif(
    keras.config.backend() == "torch" and importlib.util.find_spec("triton") is None,
    reason="Triton is not installed",
)
def test_a_dry_run_ends_with_the_table(tmp_path):
    backend, file = keras.config.backend(), tmp_path / "found.json"
    command = [sys.executable, SCRIPT, "--dry-run", "--parts", backend, "--json", file]
    done = subprocess.run([*command, "--only", *ONLY[backend]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(file.read_text())
    found = {x["name"]: x for x in content["records"]}
    assert content["dry_run"] and backend in found[f"versions, {backend}"]["versions"]
    assert not [name for name, x in found.items() if x["status"] == "FAILED"]
    timed = [x for x in content["records"] if x.get("section") == "time"]
    assert any(x["status"] == "ok" and x["called_ms"] > 0 for x in timed)
    for name in LEFT_OUT[backend]:
        error = found[f"time, {backend}, {name}"]["error"]
        assert error == "not timed: its check did not pass, or was not made"
    lines = done.stdout.splitlines()
    start = max(i for i, line in enumerate(lines) if line.startswith("| --- |"))
    assert len(lines) - start == len(found)  # without the versions, all in the one table
    assert "DRY RUN" in done.stdout
