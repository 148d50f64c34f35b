"""docs/results.md: made from the files in results/ only."""

import dataclasses
import json
import re
import statistics
from pathlib import Path

import programs
import pytest
from nightly import once

pytestmark = once
ROOT = Path(__file__).parents[2]
reproduce = programs.load_with_siblings(ROOT / "examples" / "paper" / "reproduce.py")
report = programs.load_with_siblings(ROOT / "examples" / "paper" / "report.py")
records = report.records
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


def row(accuracy, is_failure=False):
    own = BY_NAME["table1-coffee"]
    paper = dataclasses.replace(own.paper, accuracy=accuracy, is_failure=is_failure)
    return dataclasses.replace(own, paper=paper)


@pytest.mark.parametrize(
    "paper, ours, stopped_by, verdict",
    [
        ("0.99+", [0.99], "target", "reproduced"),
        ("0.99+", [1.0], "epochs", "reproduced"),
        ("0.99+", [0.989], "epochs", "different"),
        ("0.99+", [0.989], "budget", "not reached in time"),
        ("0.99+", [0.9899, 0.998], "epochs", "reproduced (1 of 2 seeds reach it)"),
        ("0.99+", [0.8, 0.999], "epochs", "different (1 of 2 seeds reach it)"),
        ("0.68", [0.671], "budget", "reproduced"),
        ("0.68", [0.669], "budget", "not reached in time"),
        ("0.68", [0.669], "epochs", "different"),
        ("0.68", [0.689], "epochs", "reproduced"),
        ("0.68", [0.691], "budget", "better"),
        ("96.6%", [0.9615], "epochs", "reproduced"),
        ("96.6%", [0.9605], "epochs", "different"),
    ],
)
def test_verdicts(paper, ours, stopped_by, verdict):
    runs = [run(accuracy, stopped_by=stopped_by) for accuracy in ours]
    assert report.verdict(row(paper), runs) == verdict


def test_a_failure_that_is_none_here_is_not_called_better():
    assert report.verdict(row("28.2%", is_failure=True), [run(0.9)]) == "higher"


def test_a_row_has_mean_and_standard_deviation_over_the_seeds():
    runs = [run(0.99, loss=0.1), run(0.97, loss=0.3, seed=1)]
    line = report.line(row("0.99+"), runs)
    assert line[2:5] == ["0.9900, 0.9700", "0.200 ± 0.141", "0.000"]
    assert len(line) == len(report.DETAILS)
    table = report.verdicts([row("0.99+")], {"table1-coffee": runs}, with_table=True)
    word = "different (1 of 2 seeds reach it)"
    assert f"| Table 1: COFFEE | **{word}** | 0.99+ | 0.9800 ± 0.0141 |" in table


def test_a_row_without_runs_says_so():
    nothing = {"table1-coffee": []}
    assert "| COFFEE | not run yet | 0.99+ |  |" in report.verdicts([row("0.99+")], nothing)
    assert report.section([row("0.99+")], nothing)[0] == "Not run yet.\n\n"


def test_a_column_that_never_changes_is_a_sentence():
    runs = [report.line(row("0.99+"), [run(accuracy)]) for accuracy in (0.9, 0.8)]
    other = [*runs[1][:3], "0.700", *runs[1][4:]]
    table = report.details([runs[0], other])
    assert table.startswith("All rows: parameters: 512; epochs in the paper: 1.\n\n|  | loss |")
    assert "accuracy of each seed" not in table
    assert "| COFFEE | 0.700 |" in table


def test_a_row_names_a_backend_other_than_jax():
    assert report.line(row("0.99+"), [run(0.9, backend="torch")])[0] == "COFFEE, torch"


def test_seeds_are_those_of_one_backend():
    runs = [run(0.9, backend=name, seed=seed) for name, seed in (("torch", 0), ("jax", 0))]
    assert {r["backend"] for r in records.main_runs(runs)} == {"jax"}
    runs.append(run(0.9, backend="torch", seed=1))
    assert [r["seed"] for r in records.main_runs(runs)] == [0, 1]
    assert records.main_runs([]) == []


def test_the_summary_counts_rows_by_verdict():
    rows = [row("0.99+"), row("0.68"), row("28.2%", is_failure=True)]
    runs = {"table1-coffee": [run(1.0), run(0.99, seed=1)]}
    expected = "**Of 3 rows: 1 reproduced, 1 better, 1 higher.**\n\n"
    assert report.counts(rows, runs) == expected
    assert "1 not run yet" in report.counts(rows[:1], {"table1-coffee": []})


def test_a_repetition_that_differs_is_shown():
    first, again = {"a": [run(0.9, row="a")]}, {"a": [run(0.9, row="a")]}
    assert "| the same |" in report.twice(first, again)
    again["a"][0]["history"] = {"loss": [0.5000001]}
    assert "| **not the same** |" in report.twice(first, again)
    # A repetition of a run that is not there shows nothing.
    assert report.twice({"a": []}, again) == report.twice({}, {})


def test_a_row_that_ran_on_several_backends_is_compared_with_the_seeds():
    jax = [run(0.90), run(0.88, seed=1)]
    others = [run(0.87, backend="torch"), run(0.85, backend="tensorflow")]
    runs = dict.fromkeys(BY_NAME, []) | {"table1-coffee": jax + others}
    table = report.backends([BY_NAME["table1-coffee"]], runs)
    assert "| COFFEE | jax | 0.8900 ± 0.0141 | 2 |  |" in table
    assert "| COFFEE | torch | 0.8700 | 1 | yes |" in table
    assert "| COFFEE | tensorflow | 0.8500 | 1 | **no** |" in table


def test_the_page_is_what_the_files_say():
    page = report.page(reproduce.ROWS, records.read(FOLDER), records.read(FOLDER / "again"))
    assert PAGE.read_text() == page, "Run `python examples/paper/reproduce.py report`."


# Numbers that are parts of names: S6, Table 1, D=4, x(k-1).
NAMES = r"\bS6\b|\bTable \d|\b[Dn]=\d+|k-1"
RUNS = [json.loads(file.read_text()) for file in FILES]


def test_the_tables_have_no_number_that_is_in_no_file():
    """Counted without the code that wrote the page."""
    known = decimals(" ".join(f"{row.paper}" for row in reproduce.KNOWN))
    known |= decimals(str(report.IH0_PAPER))
    for name, backend in {(r["row"], r["backend"]) for r in RUNS}:
        own = [r for r in RUNS if (r["row"], r["backend"]) == (name, backend)]
        # A repetition is a file too, but no further seed.
        known |= statistics_of(list({r["seed"]: r for r in own}.values()))
    tables = "".join(line for line in PAGE.read_text().splitlines() if line.startswith("|"))
    for number in re.findall(r"\d+\.\d+", tables):
        assert is_one_of(number, known), number


@pytest.mark.parametrize("name", report.OF_ROWS)
def test_a_remark_has_no_number_that_is_not_of_its_row(name):
    row = BY_NAME[name]
    known = decimals(f"{row.paper}")
    for r in (r for r in RUNS if r["row"] == row.runs_of):
        figures = {r["epochs"], r["best_epoch"], r["seed"], r["accuracy"], r["loss"]}
        figures |= {entry for series in r["history"].values() for entry in series}
        known |= figures | {100 * figure for figure in figures}
    for number in re.findall(r"\d+(?:\.\d+)?", re.sub(NAMES, "", report.OF_ROWS[name])):
        assert is_one_of(number, known), number


def is_one_of(number, known):
    digits = len(number.partition(".")[2])
    return any(abs(float(number) - value) <= 0.5000001 * 10.0**-digits for value in known)


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
