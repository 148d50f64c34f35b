"""Kernels in C, compiled on the machine and for the processor that runs them.

One pass over time with states in registers is more than PyTorch's operators or XLA's loops can
express. A kernel takes a third of a second to compile, once: it is kept in a folder of the user's.
Compiled for one set of options it holds no branch but loops.
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

_SOURCES = Path(__file__).parent

_FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-fopenmp-simd",  # loops that say so are vectorized; no threads
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# The numbers that the macro FEEDBACK of coffee.c takes.
FEEDBACKS = {None: 0, "sigmoid": 1, "linear": 2}

_FLAGS_OF_MACHINE = {
    "x86_64": ("-march=native", "-mprefer-vector-width=512"),
    "AMD64": ("-march=native", "-mprefer-vector-width=512"),
}


class CompilationError(RuntimeError):
    """A kernel can't be compiled here."""


@functools.cache
def is_available(source: str, include: str | None = None, /, **macros: int) -> bool:
    """Whether `library` finds a kernel with these arguments. Says so once if not."""
    try:
        library(source, include, **macros)
    except CompilationError as error:
        _warn(str(error))
        return False
    return True


@functools.cache
def library(source: str, include: str | None = None, /, **macros: int) -> ctypes.CDLL:
    """The file `source` of this folder, compiled with these macros.

    `include` is a folder with headers that the file needs beside those of this one.

    Raises:
        CompilationError: if there is no compiler, or it fails.
    """
    command = compiler()
    if command is None:
        raise CompilationError("there is no C compiler (cc, gcc or clang, or what CC names)")
    flags = [*_FLAGS, *_FLAGS_OF_MACHINE.get(platform.machine(), ())]
    flags += [f"-D{name}={int(value)}" for name, value in macros.items()]
    flags += [f"-I{include}"] if include else []
    path = _folder() / f"{Path(source).stem}-{_key(command, source, flags)}.so"
    if not path.exists():
        failure = _compile([*command, *flags, str(_SOURCES / source), "-lm"], path)
        if failure:
            raise CompilationError(f"{' '.join(command)} failed: {failure}")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # broken, or in a folder that nothing may be run from
        raise CompilationError(f"a compiled kernel can't be loaded: {error}") from error


@functools.cache
def compiler() -> tuple[str, ...] | None:
    """The command that compiles C: $CC, the system's, or that of the package `ziglang`."""
    chosen = shlex.split(os.environ.get("CC", ""))
    for command in [chosen] if chosen else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return tuple(command)
    if importlib.util.find_spec("ziglang"):
        return sys.executable, "-m", "ziglang", "cc"
    return None


def _compile(command: list[str], path: Path) -> str | None:
    """What went wrong, or None."""
    # Under a name of its own first: another process may be at the same.
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".so", delete=False) as file:
        target = Path(file.name)
    try:
        # Zig builds its runtime first, in a cache of its own that must be writable as well.
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(path.parent / "zig"), **os.environ}
        done = subprocess.run(
            [*command, "-o", str(target)], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            return done.stderr.strip()[-500:] or f"exit status {done.returncode}"
        target.replace(path)
    except OSError as error:
        return str(error)
    finally:
        target.unlink(missing_ok=True)
    return None


def _key(command: tuple[str, ...], source: str, flags: list[str]) -> str:
    """Differs wherever the same file would not do: folders are shared among machines."""
    texts = [path.read_text() for path in sorted(_SOURCES.glob("*.[ch]"))]
    whole = [*texts, source, *command, *flags, platform.platform(), _processor()]
    return hashlib.sha256("\0".join(whole).encode()).hexdigest()[:20]


@functools.cache
def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor()
    lines = information.read_text().split("\n\n")[0].splitlines()
    return "\n".join(x for x in lines if x.startswith(("model name", "flags", "Features")))


@functools.cache
def _folder() -> Path:
    """Where compiled kernels are kept; one of this process alone if there is no other."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache) / "keras_coffee"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        temporary = tempfile.TemporaryDirectory(prefix="keras_coffee-")
        _kept_until_the_end.append(temporary)
        return Path(temporary.name)


_kept_until_the_end: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"keras_coffee runs its recurrences without compiled kernels, three to thirty times "
        f"slower on a CPU, because {reason}. `pip install keras-coffee[cpu]` brings a compiler.",
        stacklevel=2,
    )
