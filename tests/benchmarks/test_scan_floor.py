import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import programs
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "scan_floor.py"


@pytest.fixture(scope="module")
def scan_floor():
    return programs.load(SCRIPT)


def run(*arguments, backend=None):
    backend = backend or keras.config.backend()
    environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_compares_and_times_every_mode(tmp_path):
    file = tmp_path / "times.json"
    done = run("--shapes", "3,5,2,4", "--repeats", "3", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    modes = [row["mode"] for row in rows]
    expected = {"training", "recompute", "inference"}
    if keras.config.backend() == "tensorflow":
        expected.add("training, jit_compile")
    assert len(modes) == len(expected) and set(modes) == expected
    for row in rows:
        assert row["shape"] == [3, 5, 2, 4]
        assert np.shape(row["ours"]) == np.shape(row["baseline"]) == (3, 2)
    # The table comes last, a line for each row.
    lines = done.stdout.splitlines()[-len(rows) :]
    for line, mode in zip(lines, modes, strict=True):
        assert line.startswith(f"| (3, 5, 2, 4) | {mode} | 3 |")


def test_a_backend_without_baseline_is_refused():
    done = run(backend="numpy")
    assert done.returncode == 1
    assert "No baseline for 'numpy': set KERAS_BACKEND to one of" in done.stderr


def answers():
    return tuple(np.arange(1, 7, dtype="float32").reshape(2, 3) for _ in range(6))


def test_the_same_answers_pass(scan_floor):
    close = tuple(x * np.float32(1 + 1e-6) for x in answers())
    scan_floor.check_same(close, answers(), "here")
    scan_floor.check_same(close[0], answers()[0], "here")


@pytest.mark.parametrize("wrong", [6.01, np.nan, np.inf])
@pytest.mark.parametrize("position, name", [(0, "Outputs"), (5, "Gradient by initial state")])
def test_other_answers_end_the_program(scan_floor, wrong, position, name):
    other = answers()
    other[position][1, 2] = wrong
    with pytest.raises(SystemExit, match=f"here: not the baseline's answer.* {name}: off by"):
        scan_floor.check_same(other, answers(), "here")


def test_other_shapes_end_the_program(scan_floor):
    with pytest.raises(SystemExit, match="off by inf"):
        scan_floor.check_same(answers()[0][:1], answers()[0], "here")


def test_sides_take_turns_and_alternate_who_is_first(scan_floor):
    calls = []
    runs = [lambda: calls.append("ours"), lambda: calls.append("baseline")]
    ours, baseline = scan_floor.take_turns(runs, 3)
    assert calls == ["ours", "baseline", "baseline", "ours", "ours", "baseline"]
    assert len(ours) == len(baseline) == 3


@pytest.mark.parametrize(
    "backend, shape, mode, expected",
    [
        ("jax", (512, 16, 16, 8), "training", 1.1),
        ("tensorflow", (8, 4096, 16, 8), "training, jit_compile", 1.1),
        ("torch", (8, 4096, 16, 8), "training", 0.2),
        ("torch", (512, 16, 16, 8), "training", None),
        ("jax", (512, 16, 16, 8), "recompute", None),
        ("torch", (8, 4096, 16, 8), "inference", None),
    ],
)
def test_bars(scan_floor, backend, shape, mode, expected):
    assert scan_floor.bar(backend, shape, mode) == expected


@pytest.mark.parametrize("bar, verdict", [(1.6, "met"), (1.4, "NOT MET"), (None, "none")])
def test_ratios_and_verdict(scan_floor, bar, verdict):
    ours = [(3.0, 1.0), (1.0, 7.0), (9.0, 8.0)]
    baseline = [(2.0, 14.0), (1.0, 1.0), (9.0, 28.0)]
    row = scan_floor.Row((1, 1, 1, 1), "training", (0.0, 0.0), ours, baseline, bar)
    assert row.ratios == {"processor": 1.5, "pairs": 1.0, "clock": 0.5}
    assert row.verdict == row.as_dict()["verdict"] == verdict
