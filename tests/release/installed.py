"""Of the wheel, installed beside one backend: `make dist-check`."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import keras
import pytest

import keras_coffee

pytestmark = pytest.mark.smoke
FRAMEWORKS = {"jax", "tensorflow", "torch"}
PACKAGE = Path(keras_coffee.__file__).parent


def test_the_package_is_the_installed_one():
    assert PACKAGE.parent == Path(sysconfig.get_path("purelib"))


def test_no_other_backend_is_installed():
    found = {name for name in FRAMEWORKS if importlib.util.find_spec(name)}
    assert found == {keras.config.backend()}


def test_the_version_is_the_distributions():
    assert importlib.metadata.version("keras-coffee") == keras_coffee.__version__


def test_keras_and_numpy_are_all_that_is_required():
    required = importlib.metadata.requires("keras-coffee")
    assert {name.split(">")[0] for name in required if "extra ==" not in name} == {"keras", "numpy"}


def test_links_of_the_description_lead_somewhere_without_the_repository():
    metadata = importlib.metadata.metadata("keras-coffee")
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]*)\)", metadata.get_payload())
    assert len(links) > 15
    assert [link for link in links if not link.startswith("https://")] == []


def test_what_is_no_python_is_there_and_no_test_is():
    files = {
        path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.suffix in {".c", ".h"}
    }
    assert {path.parent for path in files} == {Path("backend/cpu")}
    assert (PACKAGE / "py.typed").is_file()
    top_level = {Path(file).parts[0] for file in importlib.metadata.files("keras-coffee")}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {"keras_coffee"}


# The types are the same everywhere, and those of TensorFlow, which has none, are read in no time.
@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="once will do: on TensorFlow")
def test_a_strict_type_checker_sees_the_types(tmp_path):
    file = Path(__file__).with_name("consumer.py")
    # Keras itself has no types to see.
    options = ["--strict", "--disable-error-code", "import-untyped", "--cache-dir", tmp_path]
    command = [sys.executable, "-m", "mypy", *options, file]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
