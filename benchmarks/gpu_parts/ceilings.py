"""What the card can do at most: bytes a second, and exponentials and reciprocals a second."""

import torch
import triton
import triton.language as tl

from keras_coffee.backend.torch.triton_math import sigmoid

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
        x = sigmoid(x)
    tl.store(target + at, x)


def copying(device, megabytes):
    """A copy of a large array by Triton and one by PyTorch, and the bytes that each moves."""
    source = torch.rand(max(1, megabytes * 250_000), device=device)
    target = torch.empty_like(source)
    count = source.numel()

    def by_triton():
        _copy[(triton.cdiv(count, 4 * _BLOCK),)](source, target, count, BLOCK=4 * _BLOCK)
        return target

    return (by_triton, lambda: target.copy_(source)), 8 * count, source


def chain(device, programs, steps):
    """The sigmoid of the sigmoid of ...: two special functions a step, four chains a lane."""
    target = torch.empty(programs * _BLOCK, device=device)

    def run():
        _chain[(programs,)](target, steps, BLOCK=_BLOCK, num_warps=4)
        return target

    return run, 2 * steps * programs * _BLOCK
