"""Kernels in C, compiled on the machine and for the processor that runs them.

PyTorch's operators and XLA's loops cannot express one pass over time with states in registers. A
kernel compiles in a third of a second, once: it is kept in a folder of the user. Compiled for one
set of options it has no branches except loops.
"""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).parent

_FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fopenmp-simd",  # loops that say so are vectorized
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)
_FLAGS_OF_MACHINE = {
    "x86_64": ("-march=native", "-mprefer-vector-width=512"),
    "AMD64": ("-march=native", "-mprefer-vector-width=512"),
}
_TIMEOUT = 120  # seconds


class CompilationError(RuntimeError):
    """A kernel can't be compiled here."""


@dataclasses.dataclass(frozen=True)
class Caller:
    """Who calls the kernels, if it is not Python with addresses.

    Attributes:
        macro: Has common.h include what makes them callable.
        include: The folder with the caller's headers.
        headers: Those that what is compiled depends on.
        link: Flags that link its libraries.
        load: What loads a compiled kernel, and raises an OSError where that fails.
    """

    macro: str | None = None
    include: str | None = None
    headers: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    load: Callable[[str], Any] = ctypes.CDLL


PYTHON = Caller()


@functools.cache
def is_available(source: str, caller: Caller = PYTHON, /, **macros: int | str) -> bool:
    """Whether `library` finds a kernel with these arguments. Says so once if not."""
    try:
        library(source, caller, **macros)
    except CompilationError as error:
        warn(str(error))
        return False
    return True


@functools.cache
def library(source: str, caller: Caller = PYTHON, /, **macros: int | str) -> Any:
    """The file `source` of this folder, compiled with these macros, as `caller` loads it.

    Raises:
        CompilationError: if there is no compiler, or all fail.
    """
    flags = [*_FLAGS, *_FLAGS_OF_MACHINE.get(platform.machine(), ())]
    flags += [f"-D{name}={_literal(value)}" for name, value in macros.items()]
    flags += [f"-D{caller.macro}"] if caller.macro else []
    commands, failures = compiler(), []
    if not commands:
        raise CompilationError("there is no C compiler (cc, gcc or clang, or what CC names)")
    with _lock:  # functools.cache lets two threads compute the same at a time
        for command in commands:
            try:
                return _load(command, source, caller, *flags)
            except CompilationError as error:
                failures.append(str(error))
    raise CompilationError("; ".join(failures))


_lock = threading.Lock()


def _literal(value: int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(int(value))


@functools.cache
def compiler() -> tuple[tuple[str, ...], ...]:
    """Commands that may compile C, best first: $CC or the system's, then the package `ziglang`."""
    chosen = shlex.split(os.environ.get("CC", ""))
    commands = [chosen] if chosen else [["cc"], ["gcc"], ["clang"]]
    found = [tuple(command) for command in commands if shutil.which(command[0])]
    if _has_packaged_compiler():
        found.append((sys.executable, "-m", "ziglang", "cc"))
    return tuple(found)


def _has_packaged_compiler() -> bool:
    return importlib.util.find_spec("ziglang") is not None


@functools.cache
def _load(command: tuple[str, ...], source: str, caller: Caller, *flags: str) -> Any:
    key = _key(command, source, caller, flags)
    path = _folder() / f"{Path(source).stem}-{key}.so"
    if path.exists():
        with contextlib.suppress(OSError):  # broken: it is replaced
            return caller.load(str(path))
    # Some callers know what is in a library by a name, which may be given once in a process.
    options = [*flags, f'-DKEY="{key}"', *([f"-I{caller.include}"] if caller.include else [])]
    failure = _compile([*command, *options, str(_SOURCES / source), *caller.link, "-lm"], path)
    if failure:
        raise CompilationError(f"{' '.join(command)} failed: {failure}")
    try:
        return caller.load(str(path))
    except OSError as error:  # in a folder that nothing may be run from, or for another machine
        raise CompilationError(f"a compiled kernel can't be loaded: {error}") from error


def _compile(command: list[str], path: Path) -> str | None:
    """What went wrong, or None."""
    # Under a temporary name first: another process may do the same.
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # emptied since it was chosen?
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".so", delete=False) as file:
            target = Path(file.name)
    except OSError as error:
        return str(error)
    try:
        # Zig builds its runtime first, in a cache of its own that must be writable as well.
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(path.parent / "zig"), **os.environ}
        done = subprocess.run(
            [*command, "-o", str(target)],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
        if done.returncode:
            return done.stderr.strip()[-500:] or f"exit status {done.returncode}"
        target.replace(path)
    except subprocess.TimeoutExpired:
        return f"not done after {_TIMEOUT} s"
    except OSError as error:
        return str(error)
    finally:
        target.unlink(missing_ok=True)
    return None


def _key(command: tuple[str, ...], source: str, caller: Caller, flags: tuple[str, ...]) -> str:
    """Differs if the same file would not work: machines may share a folder."""
    headers = [Path(caller.include or "") / name for name in caller.headers]
    files = [*sorted(_SOURCES.glob("*.[ch]")), *(path for path in headers if path.exists())]
    words = [source, *command, *flags, platform.platform(), _processor()]
    whole = [path.read_bytes() for path in files] + [os.fsencode(word) for word in words]
    return hashlib.sha256(b"\0".join(whole)).hexdigest()[:20]


@functools.cache
def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor()
    lines = information.read_text().split("\n\n")[0].splitlines()
    return "\n".join(x for x in lines if x.startswith(("model name", "flags", "Features")))


@functools.cache
def _folder() -> Path:
    """The folder of compiled kernels; a temporary one if there is no other."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (cache if cache.is_absolute() else Path.home() / ".cache") / "keras_coffee"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder):
            if _is_own(folder):
                return folder
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        pass
    temporary = tempfile.TemporaryDirectory(prefix="keras_coffee-", ignore_cleanup_errors=True)
    _kept_until_the_end.append(temporary)
    return Path(temporary.name)


def _is_own(folder: Path) -> bool:
    """Whether nobody else may put a file there, which would be run."""
    if os.name != "posix":
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


_kept_until_the_end: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def warn(reason: str) -> None:
    """Says once why kernels are not used."""
    advice = " The extra `cpu`, keras-coffee[cpu], brings a compiler."
    warnings.warn(
        f"keras_coffee runs its recurrences without compiled kernels, three to thirty times "
        f"slower on a CPU, because {reason}.{'' if _has_packaged_compiler() else advice}",
        stacklevel=2,
    )
