"""The reference has every public name, and no other."""

import inspect
import re
from pathlib import Path

import pytest

import keras_coffee

PAGES = (Path(__file__).parents[2] / "docs").rglob("*.md")
SHOWN = {
    name
    for page in PAGES
    for name in re.findall(r"^::: keras_coffee\.(\S+)$", page.read_text(), re.MULTILINE)
}


def public_modules():
    pytest.importorskip("matplotlib")
    from keras_coffee import visualization

    named = {name for name in vars(keras_coffee) if not name.startswith("_")}
    modules = [getattr(keras_coffee, name) for name in named - {"backend", "streaming"}]
    return [visualization, *filter(inspect.ismodule, modules)]


def public_names(module):
    """What a module defines, or a package offers."""
    is_package = hasattr(module, "__path__")
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if is_package or getattr(value, "__module__", None) == module.__name__:
            yield f"{module.__name__.removeprefix('keras_coffee.')}.{name}"


def test_every_public_name_is_shown():
    names = {name for module in public_modules() for name in public_names(module)}
    assert len(names) > 40
    assert SHOWN == names | {"Stream"}
