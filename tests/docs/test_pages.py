"""What the pages in docs/ show works: Python is run, commands name what there is."""

import json
import re
import tomllib
from pathlib import Path

import keras
import pytest
from nightly import IS_THOROUGH

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/**/*.md"))
BLOCK = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = "\n".join(
    code
    for page in PAGES
    for _, language, code in BLOCK.findall(page.read_text())
    if language == "sh"
)


def python_blocks(page):
    """The line of each block, its comment and its code."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        comment, language, code = match.groups()
        if language == "python":
            yield text[: match.start(3)].count("\n"), comment or "", code


def names_this_backend(comment):
    kind, _, backends = comment.partition(": ")
    return kind == "run on" and keras.config.backend() in backends.split(", ")


def is_for_this_backend(comment):
    return not comment or names_this_backend(comment)


# What converters and KerasTuner call is deprecated.
WARNS = {
    ROOT / "docs/export.md": pytest.mark.filterwarnings("ignore"),
    ROOT / "docs/building.md": pytest.mark.filterwarnings(
        "ignore:(currentThread|getName)\\(\\) is deprecated"
    ),
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=WARNS.get(page, ()))
        for page in PAGES
        if any(python_blocks(page))
    ],
)
def test_python_runs(page, monkeypatch, tmp_path):
    comments = [comment for _, comment, _ in python_blocks(page)]
    if not (IS_THOROUGH or any(names_this_backend(comment) for comment in comments)):
        pytest.skip("by day on PyTorch, by night elsewhere")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    # A page chooses a backend, too late here: Keras is imported. It must not stay chosen.
    monkeypatch.setenv("KERAS_BACKEND", keras.config.backend())
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for line, comment, code in python_blocks(page):
        if is_for_this_backend(comment):
            # Empty lines in front, so that a failure names the line of the page.
            exec(compile("\n" * line + code, str(page), "exec"), names)


def test_the_smallest_model_is_the_one_that_the_search_found():
    page = (ROOT / "examples/searches/README.md").read_text()
    section = page.partition("## The smallest model")[2]
    (link,) = re.findall(r"\]\(\.\./\.\./(results/searches/\S+\.json)\)", section)
    found = json.loads((ROOT / link).read_text())
    best, test = found["best"], found["test"]["accuracy"]
    assert min(best["accuracy"], test) >= 0.99
    assert f"**It found {best['parameters']} parameters**" in section
    assert {f"{best['accuracy']:.4f}", f"{test:.4f}"} <= set(re.findall(r"0\.\d{4}", section))


def test_comments_say_where_or_why_not():
    comments = [comment for page in PAGES for _, comment, _ in python_blocks(page) if comment]
    backends = {"jax", "tensorflow", "torch"}
    for comment in comments:
        kind, _, words = comment.partition(": ")
        assert kind in ("run on", "not run")
        assert words
        assert kind == "not run" or set(words.split(", ")) < backends
    assert sum(comment.startswith("not run") for comment in comments) <= 1


def test_commands_name_what_there_is():
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    pages = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`make ([a-z][a-z-]*[a-z])[` ]", pages))
    assert {"demo", "bench"} <= named <= set(rules)
    scripts = re.findall(r"\b(?:examples|benchmarks)/\S+\.py\b", SHELL)
    assert scripts and all((ROOT / script).is_file() for script in scripts)


def test_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(page.read_text() for page in PAGES)
    named = re.findall(r'(?:install -e "\.|keras-coffee)\[([\w,]+)\]', text)
    assert {extra for extras in named for extra in extras.split(",")} <= set(
        project["optional-dependencies"]
    )
