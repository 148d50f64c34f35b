"""Programs of the repository as modules."""

import importlib.util


def load(path):
    """Runs the definitions of a script, but not its `main`."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
