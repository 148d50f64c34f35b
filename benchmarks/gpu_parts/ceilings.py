"""What the card can do at most: bytes a second, and exponentials and reciprocals a second."""

import functools

import torch
import triton
import triton.language as tl

from gpu_parts import clock
from gpu_parts.log import Log

_BLOCK = 512


@triton.jit
def _copy(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


@triton.jit
def _chain(target, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = at.to(tl.float32) * 1e-9
    for _ in range(steps):
        x = 1 / (1 + tl.exp2(-x))
    tl.store(target + at, x)


def run(log: Log, is_dry: bool, until: float) -> None:
    work = {
        "memory": functools.partial(_bandwidth, 1 if is_dry else 4000),
        "special functions": functools.partial(_special, *((1, 50) if is_dry else (4224, 2000))),
    }
    for name, find in work.items():
        log.run(f"ceiling, {name}", find, until, section="ceiling")


def _bandwidth(megabytes: int) -> dict[str, float]:
    """Of the faster of two copies of a large array, by Triton and by PyTorch."""
    source = torch.rand(megabytes * 250_000, device=_device())
    target, count = torch.empty_like(source), source.numel()

    def by_triton():
        _copy[(triton.cdiv(count, 4 * _BLOCK),)](source, target, count, BLOCK=4 * _BLOCK)
        return target

    fastest = min(clock.seconds(copy) for copy in (by_triton, lambda: target.copy_(source)))
    return {"bytes_per_second": 8 * count / fastest}


def _special(programs: int, steps: int) -> dict[str, float]:
    """A chain of sigmoids, of two special functions each; four chains a lane."""
    target = torch.empty(programs * _BLOCK, device=_device())

    def run():
        _chain[(programs,)](target, steps, BLOCK=_BLOCK, num_warps=4)
        return target

    return {"special_per_second": 2 * steps * target.numel() / clock.seconds(run)}


def _device() -> str:
    return "cuda" if clock.HAS_GPU else "cpu"
