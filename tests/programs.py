"""Programs of the repository as modules."""

import importlib.util
import sys


def load(path):
    """Runs the definitions of a script, but not its `main`."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def load_with_siblings(path):
    """The same for a script that imports its neighbours, whose names others may have as well."""
    names = [file.stem for file in path.parent.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(path.parent))
    try:
        return load(path)
    finally:
        sys.path.remove(str(path.parent))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(others)
