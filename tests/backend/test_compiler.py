"""Kernels in C are compiled once, where they can be, and divided into blocks that cover all."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest

from keras_coffee.backend.cpu import compiler

NAMES = ("INPUT_MATRIX", "OUTPUT_MATRIX")
MACROS = {"REAL_BITS": 32, "DISCRETIZATION": 1, "DELTA_SOFTPLUS": 0}
MACROS |= {"HAS_SKIP": 0, "HAS_DELTA_BIAS": 0, "HAS_RESET": 0}
MACROS |= {f"HAS_{kind}{name}": kind == "" for name in NAMES for kind in ("", "VARYING_")}
FLAGS, compile_whole = compiler._FLAGS, compiler._compile
# What is compiled here is not run.
QUICK = ("-O0", "-fPIC", "-shared")
CACHES = [
    getattr(compiler, name)
    for name in ("compiler", "is_available", "library", "_load", "_folder", "warn")
]


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch, tmp_path):
    """As in a new process, with a folder for kernels that has none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_FLAGS", QUICK)
    forget()
    yield
    forget()


def forget():
    for cache in CACHES:
        cache.cache_clear()


def script(path, *lines):
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def kept(folder):
    return sorted(path.name for path in (folder / "keras_coffee").iterdir())


def compile_one():
    return compiler.library("selective.c", **MACROS)


def test_a_kernel_is_compiled_once_and_kept_for_the_next_process(monkeypatch, tmp_path):
    assert compile_one() is compile_one()
    (name,) = kept(tmp_path)
    assert re.fullmatch(r"selective-[0-9a-f]{20}\.so", name)
    forget()
    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("compiled again"))
    assert compile_one().scan_forward


def test_what_is_compiled_differs_by_source_macros_compiler_and_processor(monkeypatch):
    flags = ("-O3", "-DREAL_BITS=32")
    keys = [
        compiler._key(("cc",), "coffee.c", compiler.PYTHON, flags),
        compiler._key(("cc",), "selective.c", compiler.PYTHON, flags),
        compiler._key(("clang",), "coffee.c", compiler.PYTHON, flags),
        compiler._key(("cc",), "coffee.c", compiler.PYTHON, ("-O3", "-DREAL_BITS=64")),
        compiler._key(("cc",), "coffee.c", compiler.PYTHON, ("-O2", "-DREAL_BITS=32")),
    ]
    monkeypatch.setattr(compiler, "_processor", lambda: "another")
    keys.append(compiler._key(("cc",), "coffee.c", compiler.PYTHON, flags))
    assert len(set(keys)) == len(keys)


def test_what_is_compiled_differs_by_the_headers_of_its_caller(tmp_path):
    caller = compiler.Caller("FOR_ONE", str(tmp_path), ("api/one.h",))

    def key():
        return compiler._key(("cc",), "coffee.c", caller, ("-O3",))

    header = tmp_path / "api" / "one.h"
    header.parent.mkdir(parents=True)
    keys = [key()]  # without it no error: that is the compiler's to say
    for version in (1, 2):
        header.write_text(f"#define VERSION {version}")
        keys.append(key())
        assert key() == keys[-1]
    assert len(set(keys)) == 3


def test_a_folder_that_is_emptied_while_a_program_runs_is_made_again(tmp_path):
    compile_one()
    shutil.rmtree(tmp_path / "keras_coffee")
    compiler.library("selective.c", **MACROS | {"HAS_SKIP": 1})
    assert len(kept(tmp_path)) == 1


def test_another_folder_where_the_usual_one_cannot_be_written(monkeypatch, tmp_path):
    # A file in its place stops the superuser as well.
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_one().scan_forward
    assert tmp_path not in compiler._folder().parents


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_another_folder_where_others_may_put_files_in_the_usual_one(monkeypatch, tmp_path):
    def used():
        compiler._folder.cache_clear()
        return compiler._folder()

    usual = tmp_path / "keras_coffee"
    assert used() == usual
    for mode in (0o770, 0o702):
        usual.chmod(mode)
        assert tmp_path not in used().parents
    usual.chmod(0o755)
    assert used() == usual
    monkeypatch.setattr(compiler.os, "getuid", lambda: usual.stat().st_uid + 1)
    assert tmp_path not in used().parents


@pytest.mark.parametrize("unset", ["", "cache"], ids=["empty", "relative"])
def test_the_folder_of_the_home_where_none_is_named(unset, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", unset)
    monkeypatch.setattr(compiler.Path, "home", lambda: tmp_path / "home")
    assert compiler._folder() == tmp_path / "home" / ".cache" / "keras_coffee"


# Without the package around it, which would import a framework.
COMPILE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("compiler", sys.argv[1])
compiler = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiler)
print("ready", flush=True)
sys.stdin.readline()
flags, macros = json.loads(sys.argv[2])
compiler._FLAGS = tuple(flags)
compiler.library("selective.c", **macros).scan_forward
"""


def test_two_processes_compile_the_same_kernel_at_a_time(tmp_path):
    arguments = compiler.__file__, json.dumps([QUICK, MACROS])
    command = [sys.executable, "-c", COMPILE, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert len(kept(tmp_path)) == 1


def test_two_threads_load_the_same_kernel_once(monkeypatch):
    commands, libraries = [], []
    both = threading.Barrier(2)

    def compile_slowly(command, path):
        commands.append(command)
        threading.Event().wait(0.1)  # enough for the other to come here as well
        return compile_whole(command, path)

    def load():
        both.wait()
        libraries.append(compile_one())

    monkeypatch.setattr(compiler, "_compile", compile_slowly)
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(commands) == 1
    assert libraries[0] is libraries[1]


def test_no_compiler_is_said_once(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: ())
    monkeypatch.setattr(compiler, "_has_packaged_compiler", lambda: False)
    message = (
        r"without compiled kernels, three to thirty times slower on a CPU, because there is no C "
        r"compiler .*keras-coffee\[cpu\], brings a compiler"
    )
    with pytest.warns(UserWarning, match=message):
        assert not compiler.is_available("selective.c", **MACROS)
    assert not compiler.is_available("selective.c", **MACROS)
    assert not compiler.is_available("coffee.c")


def test_the_package_of_a_compiler_is_no_advice_to_who_has_it(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: ())
    monkeypatch.setattr(compiler, "_has_packaged_compiler", lambda: True)
    with pytest.warns(UserWarning, match=r"because there is no C compiler .* names\)\.$"):
        assert not compiler.is_available("selective.c", **MACROS)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("echo no space left >&2", "no space left"),
        ("printf '\\377 no space left' >&2", ". no space left"),
        ("", "exit status 3"),
        ("exec sleep 60", "not done after 0.1 s"),
    ],
    ids=["loud", "no text", "silent", "endless"],
)
def test_a_compiler_that_fails_is_named_and_leaves_nothing_behind(
    says, reason, monkeypatch, tmp_path
):
    if says.startswith("exec sleep"):
        monkeypatch.setattr(compiler, "_TIMEOUT", 0.1)
    monkeypatch.setattr(compiler, "_has_packaged_compiler", lambda: False)
    monkeypatch.setenv("CC", script(tmp_path / "broken", says, "exit 3"))
    with pytest.warns(UserWarning, match=f"because .*broken failed: {reason}.* brings a compiler"):
        assert not compiler.is_available("selective.c", **MACROS)
    assert kept(tmp_path) == []


def test_the_next_compiler_where_one_fails(monkeypatch, tmp_path):
    real = compiler.compiler()[0]
    broken = [(script(tmp_path / name, f"echo {name} >&2", "exit 1"),) for name in ("one", "two")]
    monkeypatch.setattr(compiler, "compiler", lambda: (*broken, real))
    assert compile_one().scan_forward
    forget()
    monkeypatch.setattr(compiler, "compiler", lambda: tuple(broken))
    with pytest.raises(compiler.CompilationError, match="one failed: one; .*two failed: two"):
        compile_one()


@pytest.fixture
def compiled_in_part(monkeypatch):
    """Commands of a compiler whose files can't be loaded."""
    commands, compiler_of_system = [], compiler.compiler()[0]

    def compile_in_part(command, path):
        commands.append(command)
        path.write_text("cut off")

    monkeypatch.setattr(compiler, "compiler", lambda: (compiler_of_system,))
    monkeypatch.setattr(compiler, "_compile", compile_in_part)
    return commands


def test_a_file_that_cannot_be_loaded_is_no_kernel(compiled_in_part):
    with pytest.warns(UserWarning, match="because a compiled kernel can't be loaded: .*selective-"):
        assert not compiler.is_available("selective.c", **MACROS)
    assert len(compiled_in_part) == 1


def test_a_kept_file_that_cannot_be_loaded_is_compiled_once_more(compiled_in_part, monkeypatch):
    for compiled in (1, 2):
        with pytest.raises(compiler.CompilationError, match="can't be loaded"):
            compile_one()
        assert len(compiled_in_part) == compiled
    monkeypatch.setattr(compiler, "_compile", compile_whole)
    assert compile_one().scan_forward


def test_a_user_without_a_home(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(compiler.Path, "home", home)
    assert compiler._folder().is_dir()


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_the_packaged_compiler_takes_the_same_flags(monkeypatch):
    monkeypatch.setattr(compiler, "_FLAGS", FLAGS)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    assert [command[1:] for command in compiler.compiler()] == [("-m", "ziglang", "cc")]
    assert compile_one().scan_forward


def test_compilers_are_taken_in_order(monkeypatch, tmp_path):
    def find(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        compiler.compiler.cache_clear()
        return compiler.compiler()

    packaged = (sys.executable, "-m", "ziglang", "cc")
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    assert find(PATH=str(tmp_path), CC="") == ()
    found = []
    for name in ("clang", "gcc", "cc"):
        script(tmp_path / name)
        found.insert(0, (name,))
        assert find() == tuple(found)
    script(tmp_path / "mine")
    assert find(CC="mine --quickly") == (("mine", "--quickly"),)
    assert find(CC="absent") == ()
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: name == "ziglang")
    assert find(CC="") == (*found, packaged)
    assert find(CC="mine") == (("mine",), packaged)
    assert find(CC="absent") == (packaged,)
