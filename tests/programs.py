"""Programs of the repository as modules."""

import contextlib
import importlib.util
import sys
from pathlib import Path

FOLDERS = tuple(str(Path(__file__).parents[1] / name) for name in ("benchmarks", "examples"))


def load(path):
    """Runs the definitions of a script, but not its `main`."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def load_with_siblings(path):
    """The same for a script that imports its neighbours, whose names others may have as well."""
    with importing_from(path.parent):
        return load(path)


@contextlib.contextmanager
def importing_from(folder):
    """Modules of a folder of programs are found, and those of the other folders are not."""
    others = _taken_out()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _taken_out()
        sys.modules.update(others)


def _taken_out():
    found = {
        name: module
        for name, module in sys.modules.items()
        if (getattr(module, "__file__", None) or "").startswith(FOLDERS)
    }
    for name in found:
        del sys.modules[name]
    return found
