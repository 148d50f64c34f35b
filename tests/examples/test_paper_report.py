"""docs/results.md: made from the files in results/, and from nothing else."""

import dataclasses
import json
import re
import statistics
from pathlib import Path

import programs
import pytest

ROOT = Path(__file__).parents[2]
reproduce = programs.load_with_siblings(ROOT / "examples" / "paper" / "reproduce.py")
report, records = reproduce.report, reproduce.records
FOLDER = ROOT / "results" / "paper"
PAGE = ROOT / "docs" / "results.md"
FILES = sorted(FOLDER.rglob("*.json"))
BY_NAME = {row.name: row for row in reproduce.KNOWN}


def run(accuracy, row="table1-coffee", backend="jax", seed=0, stopped_by="epochs", loss=0.5):
    return {
        "row": row,
        "backend": backend,
        "seed": seed,
        "accuracy": accuracy,
        "loss": loss,
        "parameters": 512,
        "epochs": 3,
        "seconds": 90.0,
        "stopped_by": stopped_by,
        "history": {"loss": [loss]},
    }


def row(accuracy):
    paper = dataclasses.replace(BY_NAME["table1-coffee"].paper, accuracy=accuracy)
    return dataclasses.replace(BY_NAME["table1-coffee"], paper=paper)


@pytest.mark.parametrize(
    "paper, ours, stopped_by, verdict",
    [
        ("0.99+", [0.99], "target", "reproduced"),
        ("0.99+", [1.0], "epochs", "reproduced"),
        ("0.99+", [0.989], "epochs", "different"),
        ("0.99+", [0.989], "budget", "not reached in the budget given"),
        ("0.68", [0.671], "budget", "reproduced"),
        ("0.68", [0.669], "budget", "not reached in the budget given"),
        ("0.68", [0.669], "epochs", "different"),
        ("0.68", [0.689], "epochs", "reproduced"),
        ("0.68", [0.691], "budget", "better"),
        ("0.68", [0.6, 0.76], "epochs", "reproduced"),
        ("96.6%", [0.9615], "epochs", "reproduced"),
        ("96.6%", [0.9605], "epochs", "different"),
        ("28.2%", [0.9], "epochs", "better"),
    ],
)
def test_verdicts(paper, ours, stopped_by, verdict):
    runs = [run(accuracy, stopped_by=stopped_by) for accuracy in ours]
    assert report.verdict(row(paper), runs) == verdict


def test_a_line_has_mean_and_standard_deviation_over_the_seeds():
    runs = [run(0.99, loss=0.1), run(0.97, loss=0.3, seed=1)]
    line = report.line(row("0.99+"), runs)
    assert (line[3], line[4], line[6]) == ("0.980 ± 0.014", "0.990, 0.970", "0.200 ± 0.141")


def test_a_row_without_runs_says_so():
    line = report.line(row("0.99+"), [])
    assert line[3] == "not run" and len(line) == len(report.COLUMNS)
    assert len(report.line(row("0.99+"), [run(0.9)])) == len(report.COLUMNS)


def test_seeds_are_those_of_one_backend():
    runs = [run(0.9, backend=name, seed=seed) for name, seed in (("torch", 0), ("jax", 0))]
    assert {r["backend"] for r in records.main_runs(runs)} == {"jax"}
    runs.append(run(0.9, backend="torch", seed=1))
    assert [r["seed"] for r in records.main_runs(runs)] == [0, 1]
    assert records.main_runs([]) == []


def test_a_repetition_that_differs_is_shown():
    first, again = {"a": [run(0.9, row="a")]}, {"a": [run(0.9, row="a")]}
    assert "| the same |" in report.twice(first, again)
    again["a"][0]["history"] = {"loss": [0.5000001]}
    assert "| **not the same** |" in report.twice(first, again)


def test_a_row_that_ran_on_several_backends_is_compared():
    runs = {"table1-coffee": [run(0.9), run(0.8, seed=1), run(0.95, backend="torch")]}
    table = report.backends([BY_NAME["table1-coffee"]], {**dict.fromkeys(BY_NAME, []), **runs})
    assert "| COFFEE | jax | 0.850 ± 0.071 | 2 |" in table
    assert "| COFFEE | torch | 0.950 | 1 |" in table


def test_the_page_is_what_the_files_say():
    page = report.page(reproduce.ROWS, records.read(FOLDER), records.read(FOLDER / "again"))
    assert PAGE.read_text() == page, "Run `python examples/paper/reproduce.py report`."


def test_the_page_has_no_number_that_is_in_no_file():
    """Counted without the code that wrote the page."""
    runs = [json.loads(file.read_text()) for file in FILES]
    known = {0.99, 0.995, 0.01, 0.5}  # the rules, at its head
    for row in reproduce.KNOWN:
        if row.paper is not None:
            known |= decimals(f"{row.paper}")
    known |= decimals(str(report.IH0_PAPER))
    for name in BY_NAME:
        own = [r for r in runs if r["row"] == name]
        for backend in {r["backend"] for r in own}:
            seeds = [r for r in own if r["backend"] == backend]
            # A repetition is a file too; it is no further seed.
            seeds = list({r["seed"]: r for r in seeds}.values())
            known |= statistics_of(seeds)
    page = re.sub(r"\]\([^)]*\)", "]", PAGE.read_text())
    for number in re.findall(r"\d+\.\d+", page):
        digits = len(number.partition(".")[2])
        close = 0.5000001 * 10.0**-digits
        assert any(abs(float(number) - value) <= close for value in known), number


def decimals(text):
    return {float(number) for number in re.findall(r"\d+\.\d+", text)}


def statistics_of(runs):
    values = {entry for r in runs for vector in r.get("vectors", []) for entry in map(abs, vector)}
    for key in ("accuracy", "loss"):
        series = [r[key] for r in runs]
        figures = {*series, statistics.mean(series)}
        figures |= {statistics.stdev(series)} if len(series) > 1 else set()
        values |= figures | {100 * figure for figure in figures}
    return values | {statistics.mean(r["seconds"] for r in runs) / 60}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_a_committed_run_is_of_its_row_as_it_stands(file):
    result = json.loads(file.read_text())
    row = BY_NAME[result["row"]]
    assert result["settings"] == dataclasses.asdict(row.experiment)
    assert file.name == f"{row.name}.{result['backend']}.seed{result['seed']}.json"
    assert row.paper is None or result["parameters"] == row.paper.parameters
    assert result["epochs"] == len(result["history"]["loss"]) <= row.experiment.epochs
    losses = result["history"]["val_loss"]
    assert losses[result["best_epoch"] - 1] == min(losses)
    assert result["stopped_by"] != "budget" or result["seconds"] >= 60 * result["budget_minutes"]
