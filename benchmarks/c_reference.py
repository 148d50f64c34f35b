"""coffee.c, linear.c and selective.c, compiled for this machine and called on NumPy arrays."""

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
# Vectors of 64 bytes where there are any; rows of a few floats are copied in place of a call.
COMPILE = [
    *("-O3", "-march=native", "-ffast-math", "-fopenmp-simd", "-fPIC", "-std=gnu11"),
    "-fno-tree-loop-distribute-patterns",
]
WIDE = ["-mprefer-vector-width=512"]


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """Compiles `<name>.c`, unless it was compiled before by this compiler with the same flags.

    Raises:
        RuntimeError: if there is no compiler, or it refuses.
    """
    command = compiler()
    if command is None:
        raise RuntimeError("no C compiler here: install cc, gcc or clang")
    version = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
    # Of the machine too: -march=native.
    flags = [*COMPILE, *(WIDE if "avx512f" in _processor_flags() else [])]
    source = FOLDER / f"{name}.c"
    key = repr((version, flags, _processor_flags(), source.read_text()))
    file = f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    path = Path(tempfile.gettempdir()) / f"keras_coffee-{_user()}" / file
    if not path.exists():
        _compile(command, flags, source, path)
    return ctypes.CDLL(str(path))


def _processor_flags() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line for line in lines if line.startswith("flags")), "")


def _user() -> str:
    return hashlib.sha256(str(Path.home()).encode()).hexdigest()[:8]


def _compile(command: str, flags: list[str], source: Path, path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, linked = Path(folder) / "compiled.o", Path(folder) / path.name
        # Linked apart, without -ffast-math: with it, denormals would be zero in all the process.
        for step in (
            [command, *flags, "-c", str(source), "-o", str(compiled)],
            [command, "-shared", str(compiled), "-o", str(linked)],
        ):
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(step)}: {done.stderr.strip()}")
        linked.replace(path)  # whole or not at all, if two do this at a time


class Coffee:
    """The recurrence for one shape, in buffers that are allocated once.

    A call overwrites what the call before returned.
    """

    def __init__(self, shape: tuple[int, ...], keeps: bool):
        self.library = library("coffee")
        self.library.coffee_trajectory_size.restype = ctypes.c_longlong
        batch, length, dim, n = shape
        self.sizes = [ctypes.c_longlong(size) for size in shape]
        self.outputs, self.final_state = _zeros(batch, length, dim), _zeros(batch, dim, n)
        self.trajectory, self.gradients = None, []
        if keeps:
            self.trajectory = _aligned(self.library.coffee_trajectory_size(*self.sizes))
            weights = [_zeros(dim, n) for _ in range(3)]
            self.gradients = [_zeros(batch, length, dim), *weights, _zeros(batch, dim, n)]

    @property
    def nbytes(self) -> int:
        """What it holds: a call itself takes a few kilobytes."""
        arrays = self.outputs, self.final_state, self.trajectory, *self.gradients
        return sum(x.nbytes for x in arrays if x is not None)

    def forward(self, inputs, transition, gate, readout, initial_state) -> tuple[np.ndarray, ...]:
        """Outputs and final state; keeps the trajectory if it was asked for."""
        arrays = inputs, transition, gate, readout, initial_state
        self._call("coffee_forward", *arrays, self.trajectory, self.outputs, self.final_state)
        return self.outputs, self.final_state

    def backward(self, grads, inputs, transition, gate, readout) -> tuple[np.ndarray, ...]:
        """Gradients by the arguments of `forward`, from those of what it returned."""
        arrays = inputs, transition, gate, readout, self.trajectory
        self._call("coffee_backward", *arrays, *grads, *self.gradients)
        return tuple(self.gradients)

    def training(self, grads, *tensors) -> tuple[np.ndarray, ...]:
        return *self.forward(*tensors), *self.backward(grads, *tensors[:4])

    def _call(self, name: str, *arrays: np.ndarray | None) -> None:
        getattr(self.library, name)(*map(_pointer, arrays), *self.sizes)


class Linear:
    """The linear recurrence for a shape (B, T, W), likewise."""

    def __init__(self, shape: tuple[int, ...], keeps: bool):
        self.library = library("linear")
        batch, _, width = shape
        self.sizes = [ctypes.c_longlong(size) for size in shape]
        self.states = _zeros(*shape)
        self.gradients = [_zeros(*shape), _zeros(*shape), _zeros(batch, width)] if keeps else []

    @property
    def nbytes(self) -> int:
        """What it holds."""
        return sum(x.nbytes for x in (self.states, *self.gradients))

    def forward(self, decay, inputs, initial_state) -> tuple[np.ndarray, ...]:
        """All states."""
        self._call("linear_forward", decay, inputs, initial_state, self.states)
        return (self.states,)

    def training(self, grads, decay, inputs, initial_state) -> tuple[np.ndarray, ...]:
        """States, and the gradients by the arguments from those of the states."""
        self.forward(decay, inputs, initial_state)
        arrays = decay, self.states, initial_state, *grads
        self._call("linear_backward", *arrays, *self.gradients)
        return self.states, *self.gradients

    def _call(self, name: str, *arrays: np.ndarray) -> None:
        getattr(self.library, name)(*map(_pointer, arrays), *self.sizes)


class Selective:
    """The selective recurrence from a zero state, likewise.

    Args:
        discretization: "mamba" or "zoh".
    """

    def __init__(self, shape: tuple[int, ...], keeps: bool, discretization: str = "mamba"):
        self.library = library("selective")
        self.library.selective_trajectory_size.restype = ctypes.c_longlong
        batch, length, dim, n = shape
        sizes = [ctypes.c_longlong(size) for size in shape]
        self.sizes = [*sizes, ctypes.c_longlong(discretization == "zoh")]
        self.outputs, self.final_state = _zeros(batch, length, dim), _zeros(batch, dim, n)
        self.trajectory, self.gradients = None, []
        if keeps:
            self.trajectory = _aligned(self.library.selective_trajectory_size(*sizes))
            sequences = [(batch, length, dim)] * 2
            shapes = *sequences, (dim, n), *[(batch, length, n)] * 2, (dim,)
            self.gradients = [_zeros(*x) for x in shapes]

    @property
    def nbytes(self) -> int:
        """What it holds: a call itself takes some ten kilobytes."""
        arrays = self.outputs, self.final_state, self.trajectory, *self.gradients
        return sum(x.nbytes for x in arrays if x is not None)

    def forward(self, *tensors: np.ndarray) -> tuple[np.ndarray, ...]:
        """Outputs and final state, from inputs, Δ, λ, B, C and s."""
        self._call("selective_forward", *tensors, self.trajectory, self.outputs, self.final_state)
        return self.outputs, self.final_state

    def training(self, grads, *tensors) -> tuple[np.ndarray, ...]:
        """Outputs, final state, and the gradients by the tensors from those of the two."""
        self.forward(*tensors)
        self._call("selective_backward", *tensors, self.trajectory, *grads, *self.gradients)
        return self.outputs, self.final_state, *self.gradients

    def _call(self, name: str, *arrays: np.ndarray | None) -> None:
        getattr(self.library, name)(*map(_pointer, arrays), *self.sizes)


def _zeros(*shape: int) -> np.ndarray:
    """Zeros whose pages are there already."""
    array = np.empty(shape, "float32")
    array.fill(0)
    return array


def _aligned(count: int) -> np.ndarray:
    """Zeros that begin where vector registers want them to."""
    buffer = _zeros(count + 16)
    first = -buffer.ctypes.data % 64 // 4
    return buffer[first : first + count]


def _pointer(array: Any) -> ctypes.c_void_p:
    if array is None:
        return ctypes.c_void_p(None)
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise TypeError(f"float32 in C order, received {array.dtype}, strides {array.strides}")
    return ctypes.c_void_p(array.ctypes.data)
