"""The examples in the docstrings."""

import doctest
import importlib
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_coffee

# By their files: to walk through packages imports them, the backends of all frameworks too.
PACKAGE = Path(keras_coffee.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] != "backend"
]


# Shapes print differently elsewhere.
@pytest.mark.skipif(keras.config.backend() != "jax", reason="the examples show JAX's output")
@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    module = importlib.import_module(module)
    public = {**vars(keras_coffee), **vars(keras_coffee.layers), **vars(keras_coffee.ops)}
    names = {**public, **vars(module), "keras": keras, "np": np}
    for test in doctest.DocTestFinder().find(module, globs=names):
        output = []
        result = doctest.DocTestRunner().run(test, out=output.append)
        assert result.failed == 0, "".join(output)


def test_there_are_examples():
    found = [doctest.DocTestFinder().find(importlib.import_module(name)) for name in MODULES]
    assert sum(bool(test.examples) for tests in found for test in tests) >= 12
