"""What holds for the committed notebooks without running them; `make notebooks` runs them."""

import json
import re
from pathlib import Path

import pytest
from nightly import once

pytestmark = once
FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MACHINE = re.compile(r"(?<![\w.:/])/(?:home|root|Users|work|tmp|usr|opt|var|private)/|[A-Z]:\\\\")

for_each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind="code"):
    notebook = json.loads(path.read_text("utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def test_the_index_names_all_notebooks_and_no_other():
    linked = re.findall(r"\((\w+\.ipynb)\)", (FOLDER / "README.md").read_text("utf-8"))
    assert len(NOTEBOOKS) == 7
    assert sorted(linked) == [path.name for path in NOTEBOOKS]


@for_each_notebook
def test_it_says_how_long_it_takes_and_opens_with_the_cell_that_installs_everything(path):
    notebook = json.loads(path.read_text("utf-8"))
    assert [cell["cell_type"] for cell in notebook["cells"][:2]] == ["markdown", "code"]
    text, first = map(source, notebook["cells"][:2])
    assert re.match(r"# \w.*\n\n\w", text)
    assert re.search(r"^\*\*Takes (about|less than) .+ minutes?\*\* on one core", text, re.M)
    lines = [line for line in first.splitlines() if line]
    (extras,) = re.findall(r'^%pip install --quiet "keras-coffee\[([\w,]+)\]"', lines[0])
    assert f'pip install -e ".[{extras}]"' in text
    retina = '%config InlineBackend.figure_format = "retina"'
    assert lines[1:-2] == ([retina] if "plots" in extras else [])
    assert lines[-2] == "import os"
    assert re.fullmatch(r'os\.environ\["KERAS_BACKEND"\] = "(jax|tensorflow|torch)"', lines[-1])


@for_each_notebook
def test_every_cell_was_run_once_in_order_and_none_failed(path):
    counts = [cell["execution_count"] for cell in cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {output["output_type"] for cell in cells(path) for output in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert kinds


@for_each_notebook
def test_outputs_hold_no_warnings_no_bars_and_no_paths_of_a_machine(path):
    assert cells(path)[0]["outputs"] == []
    for cell in cells(path):
        for output in cell["outputs"]:
            assert output.get("name") != "stderr", source(cell)
            data = {k: v for k, v in output.get("data", {}).items() if k.startswith("text/")}
            text = json.dumps([output.get("text"), data])
            assert not re.search(r"[Ww]arning|\\r|\\b|Traceback", text), source(cell)
            assert not MACHINE.search(text), source(cell)


@for_each_notebook
def test_it_is_small_and_has_no_traces_of_the_run(path):
    assert path.stat().st_size < 500_000
    notebook = json.loads(path.read_text("utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert all(set(cell["metadata"]) <= {"nbmake"} for cell in notebook["cells"])


@for_each_notebook
def test_small_settings_replace_what_their_cell_sets(path):
    for cell in cells(path):
        for name in cell["metadata"].get("nbmake", {}).get("mock", {}):
            assert re.search(rf"\b{name}\b.*=", source(cell)), f"{name} is not set in this cell"


@for_each_notebook
def test_linked_files_exist(path):
    for cell in cells(path, "markdown"):
        for link in re.findall(r"\]\((?!http)([^)#]+)", source(cell)):
            assert (FOLDER / link).is_file()


def test_the_quick_start_takes_twelve_lines_to_a_plot():
    lines = []
    for cell in cells(FOLDER / "quick_start.ipynb"):
        code = source(cell).splitlines()
        lines += [line for line in code if line and not line.startswith("%config")]
        if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
            break
    assert "plot" in lines[-1]
    assert any(".fit(" in line for line in lines)
    assert len(lines) <= 12
