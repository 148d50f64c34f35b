"""What a release says in several files agrees."""

import re
import tomllib
from pathlib import Path

import keras_coffee

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lower_bounds():
    extras = PROJECT["optional-dependencies"]
    required = PROJECT["dependencies"] + [
        extras[name][0] for name in ("jax", "tensorflow", "torch")
    ]
    return dict(line.split(">=") for line in required)


def test_every_file_has_the_version():
    version = keras_coffee.__version__
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_oldest_versions_are_the_lower_bounds():
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for name, bound in lower_bounds().items():
        assert pinned[name] == bound + ".0"
    assert pinned["jaxlib"] == pinned["jax"]
    assert pinned["tensorflow-cpu"] == pinned["tensorflow"]


def test_the_documentation_names_the_lower_bounds():
    bounds = lower_bounds()
    page = (ROOT / "docs/install.md").read_text()
    oldest = re.findall(r"^\| (JAX|TensorFlow|PyTorch) \|.*\| (\S+) \|$", page, re.MULTILINE)
    names = {"JAX": "jax", "TensorFlow": "tensorflow", "PyTorch": "torch"}
    assert {names[name]: version for name, version in oldest} == {
        name: bounds[name] for name in names.values()
    }
    assert f"Keras {bounds['keras']}" in page
    changes = (ROOT / "CHANGELOG.md").read_text()
    for name, bound in oldest + [("Keras", bounds["keras"]), ("NumPy", bounds["numpy"])]:
        assert f"{name} {bound}" in changes


def test_addresses_of_the_project_are_in_one_file():
    files = [ROOT / "mkdocs.yml", ROOT / "CITATION.cff", *ROOT.glob("docs/**/*.md")]
    files += [path for path in ROOT.glob("*.md") if path.name != "CONTRIBUTING.md"]
    assert [path.name for path in files if "OWNER" in path.read_text()] == []
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
