"""`--help` of every program works where neither Keras, a backend nor matplotlib is installed."""

import subprocess
import sys
from pathlib import Path

import pytest
from nightly import once

pytestmark = once
ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(
    path
    for folder in ("examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text("utf-8")
)


def run(path, argument):
    # -S leaves out what is installed, -E the variables that would bring it back.
    command = [sys.executable, "-E", "-S", path, argument]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_all_programs_are_found():
    names = {path.name for path in PROGRAMS}
    assert len(names) >= 18
    assert names >= {"induction_head.py", "reproduce.py", "search.py", "bench.py", "gpu_check.py"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_help_needs_nothing_that_must_be_installed(path):
    ended = run(path, "--help")
    assert ended.returncode == 0, ended.stderr
    assert f"usage: {path.name}" in ended.stdout


def test_a_mistake_is_told_without_a_backend_too():
    ended = run(ROOT / "examples" / "induction_head.py", "--model=gru")
    assert ended.returncode == 2
    assert "invalid choice: 'gru'" in ended.stderr
