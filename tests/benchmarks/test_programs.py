import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import programs
import pytest
from nightly import IS_NIGHTLY

# The scripts compile each solver. PyTorch does without, and sees them by day.
compiles_for_long = pytest.mark.skipif(
    keras.config.backend() != "torch" and not IS_NIGHTLY, reason="compiles for long: nightly"
)

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def run(script, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, BENCHMARKS / script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


@compiles_for_long
def test_iterations_per_solver():
    options = "--lengths 64 --gate-stds 0.5 --newton-windows 16 all --elk-windows 16"
    heading, _, row = map(cells, run("solver_iterations.py", *options.split())[-3:])
    assert heading == [
        *("gate std", "T", "Lyapunov exponent"),
        *("Newton, 16", "Newton, all", "Elk, 16"),
    ]
    assert row[:2] == ["0.5", "64"]
    # Gates around a half and λ = -1: a difference about halves at each step.
    assert -0.75 < float(row[2]) < -0.6
    medians = [float(cell.split(" (")[0]) for cell in row[3:]]
    assert all(2 <= median <= 16 for median in medians)


@compiles_for_long
def test_crossover_compares_times_and_counts():
    options = "--shapes 2,16,3,2 --windows 8 --repeats 2 --seconds 0"
    lines = run("solver_crossover.py", *options.split())
    heading, _, *rows = [cells(line) for line in lines if line.startswith("|")]
    assert [row[:3] for row in rows] == [
        ["(2, 16, 3, 2)", mode, solver]
        for solver in ("newton, 8", "associative")
        for mode in ("inference", "training")
    ]
    for row in rows:
        named = dict(zip(heading, row, strict=True))
        assert float(named["sequential, ms"]) > 0 and float(named["parallel, ms"]) > 0
        assert float(named["difference"]) < 1e-4
        if row[2] == "newton, 8":
            assert 1 <= int(named["iterations"]) <= 8
    if keras.config.backend() == "torch":
        # One kernel, and the shapes for it; Newton waits to see whether it has converged.
        inference = dict(zip(heading, rows[2], strict=True))
        assert 1 <= int(inference["operations"].split(" / ")[0]) < 8
        assert inference["waits"].startswith("0 / ")
        newton = dict(zip(heading, rows[0], strict=True))
        assert int(newton["waits"].split(" / ")[1]) >= 2 * int(newton["iterations"])


@pytest.mark.parametrize("wrong", [1.01, np.nan])
def test_crossover_refuses_other_answers(wrong):
    crossover = load("solver_crossover.py")
    expected = np.ones(3, "float32"), np.arange(3, dtype="float32")
    other = expected[0], expected[1] * np.float32([1, 1, wrong])
    case = crossover.Case("newton, 32", None, None, [], None)
    with pytest.raises(SystemExit, match="newton, 32: answers differ by .*, so nothing was timed"):
        crossover.measure(case, [lambda: expected, lambda: other], None)


def test_failures_are_shown_as_failures():
    describe = load("solver_iterations.py").describe
    iterations, residual = np.array([3, 8, 4, 5]), np.zeros(4)
    assert describe(iterations, residual, np.array([True] * 4)) == "4.5 (8)"
    assert describe(iterations, residual, np.array([True, False, True, False])) == "fails (2 of 4)"
    with pytest.raises(SystemExit, match="Not the states"):
        describe(iterations, residual * np.nan, np.array([True] * 4))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read on Linux")
@compiles_for_long
def test_many_steps():
    lines = run("million_steps.py", "--steps", "1000", "--calls", "1", "--n", "2")
    assert "inputs 0.016 MB, outputs the same, all states 0.032 MB" in lines
    assert any(line.startswith("call 1: ") for line in lines)
    assert lines[-1].startswith("largest difference to the sequential outputs")


@compiles_for_long
def test_training_steps():
    lines = run("training_step.py", *"--lengths 3 --steps 1 --repeats 1".split())
    forecaster, _, step, kernels, _, demo = [cells(line) for line in lines if line.startswith("|")]
    assert forecaster == ["T", "COFFEE", "GRU", "GRU / COFFEE"]
    assert kernels == ["with kernels", "without", "without / with"]
    assert step[0] == "3"
    for first, second, ratio in (map(float, step[1:]), map(float, demo)):
        assert first > 0 and abs(second / first - ratio) < 0.1 * ratio


@compiles_for_long
def test_first_calls_in_three_processes():
    lines = run("first_call.py", "--repeats", "1")
    heading, _, *rows = [cells(line) for line in lines if line.startswith("|")]
    kinds = "first call, s", "first training step, s", "second training step, s"
    assert heading == ["", *kinds]
    assert [row[0] for row in rows] == [
        *("empty kernel cache", "kept kernels", "KERAS_COFFEE_KERNELS=0")
    ]
    assert all(float(seconds) >= 0 for row in rows for seconds in row[1:])


def load(script):
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return programs.load(BENCHMARKS / script)
    finally:
        sys.path.remove(str(BENCHMARKS))
