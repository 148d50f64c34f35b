import re
from pathlib import Path

import keras
import pytest

import keras_coffee  # noqa: F401  before the example chooses a backend, or it would warn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


@pytest.mark.smoke
def test_the_example_runs_and_learns(monkeypatch, tmp_path):
    (code,) = (block for language, block in BLOCKS if language == "python")
    # The example chooses a backend, too late here: Keras is imported. It must not stay chosen.
    monkeypatch.setenv("KERAS_BACKEND", keras.config.backend())
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["model"].history.history["accuracy"][-1] > 0.95


def test_the_backend_is_chosen_before_keras_is_imported():
    assert README.index('os.environ["KERAS_BACKEND"]') < README.index("import keras")


@pytest.mark.parametrize("file", re.findall(r"\]\((?!http)([^)#]+)", README))
def test_linked_files_exist(file):
    assert (ROOT / file).is_file()


def test_ci_runs_what_readme_and_contributing_name_and_make_knows():
    def targets(text):
        commands = (line.split("#")[0] for line in re.findall(r"\bmake (.*)", text))
        words = (word for line in commands for word in line.split())
        return {word for word in words if re.fullmatch("[a-z][a-z-]+", word)}

    makefile = (ROOT / "Makefile").read_text()
    rules = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    per_backend = re.findall(r"^\$\(BACKENDS:%=([a-z-]+)-%\):", makefile, re.MULTILINE)
    rules += [
        f"{rule}-{backend}" for rule in per_backend for backend in ("jax", "tensorflow", "torch")
    ]
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    blocks = BLOCKS + re.findall(r"```(\w+)\n(.*?)```", contributing, re.DOTALL)
    named = targets("".join(block for language, block in blocks if language == "sh"))
    assert targets((ROOT / ".ci/run").read_text()) <= named <= set(rules)
    assert named >= {"demo", "test"}
    assert targets((ROOT / ".ci/run").read_text()) >= {"test", "docs", "notebooks", "search-smoke"}
