import importlib
import sys
from pathlib import Path

import programs
import pytest


@pytest.fixture(scope="module")
def benchmark():
    """Modules of the benchmarks, by name."""
    paths = list(sys.path)
    with programs.importing_from(Path(__file__).parents[2] / "benchmarks"):
        yield importlib.import_module
    sys.path[:] = paths  # gpu_check adds to it
