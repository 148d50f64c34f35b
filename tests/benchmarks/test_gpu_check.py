"""The check for a card, on the CPU: its own parts, and a dry run on this backend."""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import oracles
import pytest
from keras import ops
from nightly import by_night
from rounding import Rounded, assert_agrees

BACKEND = keras.config.backend()
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
HAS_PART = pytest.mark.skipif(
    BACKEND == "tensorflow" or (BACKEND == "torch" and importlib.util.find_spec("triton") is None),
    reason="nothing to time on a GPU with this backend",
)


@pytest.fixture(scope="module")
def parts(benchmark):
    names = ("limits", "log", "table")
    return argparse.Namespace(**{name: benchmark(f"gpu_parts.{name}") for name in names})


def test_a_failure_ends_nothing_and_every_record_is_written_at_once(parts, tmp_path):
    path, later = tmp_path / "log", time.time() + 100
    log = parts.log.Log(path, "torch")
    log.run("first", lambda: 1 / 0, later)
    log.run("second", lambda: {"found": len(parts.log.read(path))}, later)
    log.run("third", dict, time.time() - 1)
    path.write_text(path.read_text() + '{"name": "cut o')
    first, second, third = parts.log.read(path)
    assert first["status"] == "FAILED" and first["error"] == "ZeroDivisionError: division by zero"
    assert second == {"name": "second, torch", "backend": "torch", "status": "ok", "found": 1}
    assert third["status"] == "left out" and third["error"] == "no time left"


def test_rehearsals_share_the_units_and_write_nothing(parts, tmp_path):
    done = []
    for which in range(3):
        log = parts.log.Rehearsal(which, 3, tmp_path / "log", "torch", ["unit"])
        for unit in range(7):
            log.run(f"unit {unit}", lambda unit=unit: done.append(unit) or {}, time.time() + 100)
        log.run("another", lambda: done.append("another") or {}, time.time() + 100)
    assert sorted(done) == list(range(7)) and not (tmp_path / "log").exists()


def test_the_limit_is_the_larger_of_two_times(parts):
    limits, shape = parts.limits, (2, 16, 3, 4)
    features, states, kept = 96, 24, 16 * 24
    assert limits.least_bytes("COFFEE", shape, "inference") == 8 * features + 8 * states
    training = 20 * features + 4 * (4 * states + 2 * kept)
    assert limits.least_bytes("COFFEE", shape, "training") == training
    s6 = 4 * (3 * features + 2 * 128 + 2 * states)
    assert limits.least_bytes("S6", shape, "inference") == s6
    assert limits.least_bytes("linear", shape, "training") == 4 * (8 * 4 * features + 4 * states)
    assert limits.special_functions("COFFEE", shape, "training, recompute") == 6 * 384
    record = {"family": "COFFEE", "shape": shape, "mode": "inference"}
    ceilings = {"bytes_per_second": 1e6, "special_per_second": 256e3}
    assert limits.limit(record, ceilings) == (pytest.approx(3), "special functions")
    ceilings["bytes_per_second"] = 96e3
    assert limits.limit(record, ceilings) == (pytest.approx(10), "memory")
    assert limits.limit(record, {}) is None


def test_the_table_compares_with_the_limit_and_with_ours(parts):
    about = {"backend": "torch", "status": "ok", "shape": [2, 16, 3, 4], "mode": "inference"}
    about |= {"section": "time", "called_ms": 20.0, "ms": None}
    ours = about | {"name": "ours", "row": "keras_coffee.ops", "family": "COFFEE", "ms": 15.0}
    gru = about | {"name": "gru", "row": "torch.nn.GRU", "family": "GRU", "called_ms": 80.0}
    layer = ours | {"name": "layer", "row": "layer", "called_ms": 30.0}
    rates = {"bytes_per_second": 96e3}, {"special_per_second": 256e3}
    ceilings = [{"name": "top", "section": "ceiling", "status": "ok", **x} for x in rates]
    failed = {"name": "process of torch", "status": "FAILED", "error": "a | b"}
    lines = parts.table.table([ours, gru, layer, failed, *ceilings]).splitlines()[2:]
    assert lines[0] == "| ours | ok | 15 | 20 | 67 % of memory | 1.00 |"
    assert lines[1] == "| gru | ok |  | 80 |  | 4.00 |"
    assert lines[2] == "| layer | ok | 15 | 30 |  | 1.50 |"
    assert lines[3] == "| process of torch | FAILED: a / b |  |  |  |  |"


@HAS_PART
def test_the_best_bounds_lose_least(benchmark):
    crossover = benchmark("gpu_parts.crossover")
    points = [
        {"length": length, "pairs": pairs, "ms": dict.fromkeys(crossover.MODES, times)}
        for length in (256, 1024, 4096)
        for pairs in (1, 64, 1024)
        for times in [[2.0, 1.0] if length >= 1024 and pairs <= 64 else [1.0, 3.0]]
    ]
    assert crossover.best_bounds(points, "pairs") == (1024, 64)
    assert crossover.loss(points, lambda x: x["length"] >= 1024 and x["pairs"] <= 64) == 0
    # Four of nine points twice as slow.
    assert crossover.loss(points, lambda x: False) == pytest.approx(2 ** (4 / 9) - 1)
    never = [point | {"ms": dict.fromkeys(crossover.MODES, [1, 2])} for point in points]
    assert crossover.best_bounds(never, "pairs") == (0, 0)


@HAS_PART
@pytest.mark.parametrize("family", ["COFFEE", "S6", "linear"])
def test_what_is_timed_has_the_gradients_of_the_recurrence(benchmark, family):
    scans = benchmark("gpu_parts.scans")
    arrays = scans.arrays(family, (2, 7, 3, 2))
    found = [
        ops.convert_to_numpy(x) for x in scans.bound(scans.public(family), arrays, "training")()
    ]
    names = {
        "COFFEE": ("inputs", "transition", "gate", "readout", "initial_state"),
        "S6": ("inputs", "delta", "transition", "input_matrix", "output_matrix", "initial_state"),
        "linear": ("decay", "inputs", "initial_state"),
    }[family]
    given = {n: Rounded(x.astype("float64")) for n, x in zip(names, arrays, strict=True)}
    oracle = {"COFFEE": oracles.coffee, "S6": oracles.selective, "linear": oracles.linear}[family]
    ones = [Rounded(np.ones(x.shape)) for x in found[: len(found) - len(names)]]
    results, gradients = oracle(given, ones)
    for x, right in zip(found, (*results, *(gradients[n] for n in names)), strict=True):
        assert_agrees(x, right, family)


ONLY = [
    "versions",
    "ceiling",
    "COFFEE, keras",
    "S6, lax",
    "linear, assoc",
    "GRU",
    "S6, n 1",
    "rule",
]


@HAS_PART
@by_night
def test_a_dry_run_ends_with_the_table(tmp_path):
    (tmp_path / "test_some.py").write_text("def test_a(): pass\n\n\ndef test_b(): assert False\n")
    (tmp_path / "test_none.py").write_text("")
    file = tmp_path / "found.jsonl"
    command = [sys.executable, SCRIPT, "--dry-run", "--backends", BACKEND, "--workers", "2"]
    command += ["--tests", tmp_path, "--output", file, "--only", *ONLY]
    done = subprocess.run(command, capture_output=True, text=True)
    records = {x["name"]: x for x in map(json.loads, file.read_text().splitlines())}
    failed = [x for x in records.values() if x["status"] == "FAILED"]
    assert done.returncode == 1 and len(failed) == 1, done.stdout + done.stderr
    assert failed[0]["section"] == "tests" and "1 failed, 1 passed" in failed[0]["error"]
    assert "test_b" in failed[0]["failures"][0]
    (left_out,) = (x for x in records.values() if x["status"] == "left out")
    assert "test_none.py" in left_out["name"]
    timed = [x for x in records.values() if x.get("section") == "time"]
    assert timed and all(x["called_ms"] > 0 for x in timed)
    assert (f"rule, S6, {BACKEND}" in records) == (BACKEND == "torch")
    shown = subprocess.run([*command[:2], "--show", file], capture_output=True, text=True)
    table = shown.stdout.strip().splitlines()
    assert len(table) == 2 + len(records) and done.stdout.strip().endswith(shown.stdout.strip())


@HAS_PART
def test_without_a_gpu_nothing_is_timed(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark("gpu_parts.clock"), "HAS_GPU", False)
    options = ["--times", BACKEND, "--until", "0", "--output", str(tmp_path / "log")]
    with pytest.raises(SystemExit, match=f"{BACKEND} finds no GPU. With --dry-run none is needed."):
        benchmark("gpu_check").main(options)
