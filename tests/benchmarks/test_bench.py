import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from nightly import IS_THOROUGH, by_night

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "bench.py"
OPTIONS = argparse.Namespace(limit=10, seconds=0.01, repeats=2, threads=1)
SHAPE = (3, 5, 4, 2)
COMPARED = "COFFEE", "S6", "S6 scan", "Mamba", "Mamba block", "linear"


@pytest.fixture(scope="module")
def bench(benchmark):
    return benchmark("bench")


@pytest.fixture(scope="module")
def rows(benchmark):
    return {(row.family, row.name): row for row in benchmark("rows").all_rows()}


def run(*arguments, backend=None):
    backend = backend or keras.config.backend()
    environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_all_rows_agree_and_are_timed(bench, rows, capsys):
    # Keras' own GRU and LSTM are compared with nothing, and compile for long.
    chosen = [row for row in rows.values() if IS_THOROUGH or row.family in COMPARED]
    cells = bench.measure(chosen, SHAPE, "training", OPTIONS)
    left_out = {cell.row for cell in cells if cell.skipped}
    assert left_out <= {"C, one core", "mambapy", "pararnn", "transformers"}
    said = capsys.readouterr().out
    assert all(f"{name}: " in said for name in left_out)
    for cell in cells:
        if cell.row in left_out:
            continue
        assert len(cell.times) in (1, 2) and min(*cell.first, *cell.second) > 0
        compared = cell.family in COMPARED and cell.row != "ours"
        assert (cell.difference is not None) == compared
        assert not compared or cell.difference < 1e-6
    timed = {(cell.family, cell.row) for cell in cells if cell.times}
    assert {("COFFEE", "ours"), ("COFFEE", "keras.layers.RNN"), ("S6", "loop")} <= timed


def wrong(row, position):
    """A row whose answers are off in one array."""

    def make(shape, mode):
        call = row.make(shape, mode)

        def run(*arguments):
            answers = [np.array(keras.ops.convert_to_numpy(x)) for x in call(*arguments)]
            answers[position].flat[-1] += 0.01 * np.abs(answers[position]).max()
            return answers

        return run

    return dataclasses.replace(row, name="another", make=make)


@pytest.mark.parametrize(
    "position, name", [(0, "outputs"), (1, "final state"), (6, "gradient by initial state")]
)
def test_other_answers_end_the_program(bench, rows, position, name):
    ours = rows["COFFEE", "ours"]
    with pytest.raises(
        SystemExit, match=f"nothing was timed. another has .* {name} off by 1.0e-02"
    ):
        bench.measure([ours, wrong(ours, position)], SHAPE, "training", OPTIONS)


def test_other_answers_of_a_row_that_may_miss_leave_it_out(bench, rows):
    ours = rows["COFFEE", "ours"]
    missing = dataclasses.replace(wrong(ours, 0), may_miss=True)
    first, second = bench.measure([ours, missing], SHAPE, "inference", OPTIONS)
    assert first.times and not second.times
    assert second.skipped.startswith("other answers than those of ours: outputs off by 1.0e-02")


def test_a_row_over_the_limit_is_left_out_and_says_why(bench, rows, monkeypatch, capsys):
    monkeypatch.setattr(bench, "TRIED_FROM", 4)
    monkeypatch.setattr(bench, "TRIED_STEPS", 2)
    ours, gru = rows["COFFEE", "ours"], rows["GRU", "keras.layers.GRU"]
    options = argparse.Namespace(**vars(OPTIONS) | {"limit": 0})
    first, second = bench.measure([ours, gru], SHAPE, "inference", options)
    assert first.times and not second.times
    text = "a call would take about 0 s, by 2 of its 5 steps; the limit is 0 s"
    assert second.skipped == text
    assert f"left out: GRU, keras.layers.GRU: {text}" in capsys.readouterr().out


def test_a_slow_row_that_must_be_there_is_called_once(bench, rows):
    ours, calls = rows["COFFEE", "ours"], []

    def make(shape, mode):
        call = ours.make(shape, mode)
        return lambda *tensors: calls.append(mode) or call(*tensors)

    slow = dataclasses.replace(ours, name="slow", make=make, once=True)
    options = argparse.Namespace(**vars(OPTIONS) | {"limit": 0})
    first, second = bench.measure([ours, slow], SHAPE, "inference", options)
    assert calls == ["inference"] and second.difference == 0
    assert second.times == {max(first.times): second.first}
    assert not bench.report.compiles_again(second, 0)
    bench.measure([ours, slow], SHAPE, "inference", OPTIONS)  # under its limit: as every other row
    assert len(calls) >= 4


def test_families_have_shapes_of_their_own(bench, rows):
    ours = [rows[family, "ours"] for family in ("COFFEE", "Mamba", "Mamba block")]
    found = bench.by_shape(ours, None)
    assert found[1, 2048, 256, 16] == [ours[1]] and found[1, 2048, 128, 16] == [ours[2]]
    assert found[8, 4096, 16, 8] == [ours[0]]
    assert bench.by_shape(ours, [SHAPE]) == {SHAPE: ours}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read on Linux")
def test_memory_that_was_kept_for_the_next_call_is_not_told(bench, rows):
    kept = np.ones(2_000_000, "float32")  # 8 MB
    found = []
    for call in (lambda *_: [kept], lambda *_: [kept.copy()]):
        row = dataclasses.replace(rows["GRU", "keras.layers.GRU"], make=lambda *_, run=call: run)
        (cell,) = bench.measure([row], SHAPE, "inference", OPTIONS)
        found.append(cell.megabytes)
    assert found[0] is None and 7.5 < found[1] < 9


@pytest.mark.skipif(keras.config.backend() != "torch", reason="peers compute in PyTorch")
@pytest.mark.parametrize(
    "family, name",
    [
        ("S6", "mambapy"),
        ("COFFEE", "pararnn"),
        ("Mamba", "transformers"),
        ("Mamba block", "mambapy"),
        ("Mamba block", "transformers"),
    ],
)
def test_a_peer_that_is_not_installed_says_how_to_get_it(bench, rows, monkeypatch, family, name):
    parts = "", ".pscan", ".mamba", ".models.mamba.modeling_mamba"
    for part in parts:
        monkeypatch.setitem(sys.modules, name + part, None)
    (cell,) = bench.measure([rows[family, name]], SHAPE, "inference", OPTIONS)
    assert cell.skipped.endswith("it comes with the extra `bench`") and name in cell.skipped


def test_the_example_has_the_shapes_of_the_layers(benchmark, rows):
    cases = benchmark("cases")
    for family in ("GRU", "LSTM"):
        layer = getattr(keras.layers, family)(8)
        layer.build((None, None, 4))
        (_, *weights), _ = cases.example(family, SHAPE, 0)
        assert [x.shape for x in weights] == [tuple(x.shape) for x in layer.weights]


@by_night
def test_files_and_tables(tmp_path):
    file, plot = tmp_path / "new" / "times.json", tmp_path / "new" / "times.png"
    options = [
        "--repeats",
        "2",
        "--shapes",
        "3,5,4,2",
        "--rows",
        "COFFEE, ours",
        "COFFEE, C, one core",
    ]
    done = run(*options, "--json", str(file), "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    content = json.loads(file.read_text())
    cells = [cell for cell in content["cells"] if not cell["skipped"]]
    modes = {cell["mode"] for cell in cells if cell["row"] == "ours"}
    assert modes == {"inference", "training"}
    assert content["backend"] == keras.config.backend() and content["sweep"] == {}
    for cell in cells:
        assert cell["shape"] == [3, 5, 4, 2]
        assert np.shape(list(cell["times"].values())) == (2, 2)
    # The table comes last, a line for each row; there is nothing to draw.
    for line, cell in zip(done.stdout.splitlines()[-len(cells) :], cells, strict=True):
        assert line.startswith(f"| (3, 5, 4, 2) | {cell['mode']} | COFFEE, {cell['row']} | 2 |")
    assert not plot.exists()


@pytest.mark.skipif(keras.config.backend() != "torch", reason="once is enough: NumPy runs here")
def test_a_backend_without_baseline_is_refused():
    done = run(backend="numpy")
    assert done.returncode == 1
    assert "No baseline for 'numpy': set KERAS_BACKEND to one of" in done.stderr
