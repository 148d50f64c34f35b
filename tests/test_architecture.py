"""Which file may import what, and that one backend does not drag in another."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from nightly import once

import keras_coffee

PACKAGE = Path(keras_coffee.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FRAMEWORKS = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}

# What each part may import from the package; itself it always may.
ALLOWED = {
    "_typing": set(),
    "_checks": {"_typing"},
    "_version": set(),
    "backend": set(),
    "initializers": {"_typing"},
    "constraints": {"_typing"},
    "callbacks": {"_checks", "layers", "solvers"},
    "cells": {"_typing", "backend"},
    "diagnostics": {"_typing", "backend", "cells", "layers", "ops", "solvers"},
    "solvers": {"_checks", "_typing", "backend", "cells"},
    "ops": {"_checks", "_typing", "backend", "cells", "solvers"},
    "layers": {
        "_checks",
        "_typing",
        "backend",
        "cells",
        "constraints",
        "initializers",
        "ops",
        "solvers",
    },
    "datasets": {"_checks", "_typing"},
    "models": {"_checks", "_typing", "initializers", "layers"},
    "streaming": {"_typing", "layers", "ops"},
    "visualization": {"_checks", "_typing", "layers"},
}


def imports(path):
    """Dotted names that a file imports; `from a import b` counts as a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    if path == PACKAGE / "__init__.py":
        return
    own = part(path)
    for name in imports(path):
        package, *rest = name.split(".")
        if package == "keras_coffee":
            assert rest[0] in ALLOWED[own] | {own}, f"{own} must not import {name}"
        assert not name.startswith("keras.src"), "only public names of keras"
        if package in FRAMEWORKS:
            assert path.parent == PACKAGE / "backend" / package, f"{package} outside its folder"


def files_of(framework):
    folder = PACKAGE / "backend" / framework
    return sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


# Beside themselves and NumPy; `cpu` has kernels that know no framework.
KERNELS = {"torch": {"triton"}}


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "numpy", "cpu"])
def test_a_backend_stands_alone(framework):
    allowed = {framework, "numpy", *KERNELS.get(framework, ()), *sys.stdlib_module_names}
    own = ("keras_coffee.backend.conversion.", "keras_coffee.backend.cpu.")
    own += (f"keras_coffee.backend.{framework}.",)
    for path in files_of(framework):
        for name in imports(path):
            assert name.startswith(own) or name.split(".")[0] in allowed, name


def test_cells_are_mathematics_only():
    for path in (PACKAGE / "cells").glob("*.py"):
        for name in imports(path):
            top = name.split(".")[0]
            assert name == "keras.ops" or top in {"keras_coffee", *sys.stdlib_module_names}, name


def test_the_word_of_a_framework_stays_under_backend():
    for path in FILES:
        if part(path) == "backend":
            continue
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        assert not names & {"jax", "jnp", "tensorflow", "tf", "torch"}, path


def test_backends_have_the_functions_of_the_oracle():
    def public(framework):
        return {
            node.name: [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
            for path in files_of(framework)
            if path.stem in ("__init__", "numpy", "fused", "primitives", "export")
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        }

    oracle = public("numpy")
    for framework in FRAMEWORKS:
        module = ast.parse((PACKAGE / "backend" / framework / "__init__.py").read_text())
        names = {alias.name for node in module.body[1:] for alias in node.names}
        assert names == set(oracle)
        functions = public(framework)
        assert {name: functions[name] for name in names} == oracle
    source = inspect.getsource(keras_coffee.backend)
    assert all(f"{name} = framework.{name}" in source for name in oracle)


def run(code, **environment):
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PATH": "", "PYTHONPATH": str(PACKAGE.parent), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.smoke
def test_the_package_imports_no_framework_but_the_chosen_one():
    backend = keras.config.backend()
    say = "print('loaded', *(m for m in sys.modules if '.' not in m))"
    returncode, output = run(
        f"import sys, keras; {say}; import keras_coffee; {say}", KERAS_BACKEND=backend
    )
    assert returncode == 0, output
    lines = [line.split() for line in output.splitlines() if line.startswith("loaded")]
    before, after = (set(line) & {*FRAMEWORKS, "triton", "keras_tuner"} for line in lines)
    assert backend in after
    # Under torch, Keras itself imports jax where it is installed; that much is not our doing.
    assert after == before
    assert "tensorflow" not in after or backend == "tensorflow"


@once
def test_numpy_backend_serves_inference():
    code = (
        "import numpy as np, keras, keras_coffee\n"
        "layers = [keras_coffee.CoffeeLayer(4), keras_coffee.S6Layer(2),"
        " keras_coffee.LinearizedS6Layer(2)]\n"
        "model = keras.Sequential([keras.Input((None, 3)), *layers])\n"
        "print(model.predict(np.ones((2, 5, 3)), verbose=0).shape)"
    )
    returncode, output = run(code, KERAS_BACKEND="numpy")
    assert returncode == 0, output
    assert "(2, 5, 3)" in output


@once
def test_a_backend_that_was_chosen_too_late_is_a_warning():
    code = "import os, keras\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras_coffee"
    returncode, output = run(code, KERAS_BACKEND="numpy")
    assert returncode == 0, output
    # At the line that imports the package, not inside it.
    expected = "<string>:3: UserWarning: KERAS_BACKEND is 'torch', but Keras runs on 'numpy'"
    assert expected in output


@once
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_backend_that_is_not_installed_is_named(backend):
    code = f"import sys\nsys.modules[{backend!r}] = None\nimport keras_coffee"
    returncode, output = run(code, KERAS_BACKEND=backend)
    assert returncode != 0
    assert f"Keras runs on {backend}, which is not installed. Set KERAS_BACKEND to" in output


@once
def test_an_unsupported_backend_is_named():
    # Keras itself refuses to import for most unknown names, so the switch is asked directly.
    source = inspect.getsource(keras_coffee.backend)
    code = f"import keras\nkeras.config.backend = lambda: 'openvino'\nexec({source!r})"
    returncode, output = run(code, KERAS_BACKEND="numpy")
    assert returncode != 0
    assert "keras_coffee does not support the Keras backend 'openvino'. Set KERAS_BACKEND" in output
