"""The style guide of CONTRIBUTING.md, as far as a program can see it."""

import json
import re
from pathlib import Path

import pytest
from nightly import once

pytestmark = once
ROOT = Path(__file__).parents[2]
# Phrases that read badly, and what to write instead.
PHRASES = {
    "without a word": "silently",
    "unless (said|told)": "by default",
    "st(ands?|ood) in(?! for)": "is in, is listed in",
    "stands? side by side": "are side by side",
    "in the place of": "instead of",
    "c[ao]mes? out": "is, gives, results in",
    "came to": "reached",
    "puts? out": "outputs",
    "if need be": "if needed",
    "be it": "whether",
    "so it is here": "the same here",
    "of one's own": "your own",
    "at hand": "available",
    "turned around": "reversed",
    "that very": "the same, then",
    "but for": "except",
    "run in order": "run step by step",
    "goes by that name": "is known",
    "for want of": "because there is no",
    "as (it|they) stands?": "as it is",
    "in vain": "without effect",
    "no matter": "for any",
    "has no say": "does not decide",
    "nothing but": "only",
    "lest": "so that … not",
    "who(ever|soever)": "any caller",
    "but that": "except that",
}
FILES = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/**/*",
        "examples/**/*",
        "keras_coffee/**/*",
        "tests/**/*",
        "Makefile",
        "mkdocs.yml",
        "pyproject.toml",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.suffix in (".py", ".md", ".c", ".h", ".ipynb", ".yml", ".toml", "")
    if path.is_file() and "outputs" not in path.parts and "dist" not in path.parts
    # This file has the phrases.
    if path != Path(__file__)
]


def prose(path):
    """The text of a file without line breaks, and without the marks of comments before lines."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r'"?\s*\n\s*(?:#|//|\*|f?")?\s*', " ", text)


def test_no_file_has_a_phrase_that_reads_badly():
    pattern = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
    found = []
    for path in FILES:
        text = prose(path)
        for match in pattern.finditer(text):
            (better,) = (
                to for phrase, to in PHRASES.items() if re.fullmatch(phrase, match[0], re.I)
            )
            near = text[max(0, match.start() - 30) : match.end() + 10]
            found.append(f"{path.relative_to(ROOT)}: …{near}… Write {better!r}.")
    assert not found, "\n".join(found)


def test_all_kinds_of_files_are_read():
    assert len(FILES) > 200
    assert {path.suffix for path in FILES} >= {".py", ".md", ".c", ".h", ".ipynb"}


def words(text):
    """Of prose and tables, but not of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return len(re.findall(r"\S*\w\S*", text))


# These are written by programs, from results.
LONG = ("results.md", "beyond_the_paper.md")


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_no_page_is_long(page):
    assert page.name in LONG or words(page.read_text("utf-8")) <= 1500


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 150


def test_a_page_is_named_in_the_navigation_as_in_its_heading():
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    named = re.findall(r"- ([^:\n]+): (\S+\.md)$", config, re.MULTILINE)
    assert len(named) > 25
    assert len({name for name, _ in named}) == len(named)
    for name, page in named:
        heading = "# Home" if page == "index.md" else source_of(page).read_text("utf-8")
        found = re.search(r"# ([^\\\n]+)", heading)
        assert found[1] == name, page


def source_of(page):
    folder, _, name = page.rpartition("/")
    if page in ("contributing.md", "changelog.md"):
        return ROOT / f"{page.removesuffix('.md').upper()}.md"
    if folder != "notebooks":
        return ROOT / "docs" / page
    notebooks = ROOT / "examples/notebooks"
    return notebooks / ("README.md" if name == "index.md" else name.replace(".md", ".ipynb"))
