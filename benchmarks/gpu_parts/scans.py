"""What is timed: the public functions and layers, and what else computes the same."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from keras import ops

import keras_coffee
from gpu_parts import clock
from gpu_parts.limits import COFFEE, GRU, INFERENCE, LINEAR, RECOMPUTE, S6, TRAINING
from gpu_parts.log import Log
from keras_coffee.ops import coffee_scan, linear_scan, selective_scan

# (B, T, D, n). The first fills the card; the others are those of bench.py.
SHAPES = (
    *((512, 256, 128, 8), (512, 16, 16, 8), (512, 25, 25, 2), (32, 784, 32, 1)),
    *((64, 256, 16, 8), (8, 4096, 16, 8), (1, 65536, 16, 8)),
)
DRY_SHAPES = ((1, 4, 2, 2),)

# Makes from a shape and a mode the call that is timed.
Make = Callable[[tuple, str], Callable[[], Any]]


def run(log: Log, shapes: tuple, until: float) -> None:
    for shape in shapes:
        for family, row, modes, make in rows():
            for mode in modes:
                work = functools.partial(_timed, make, shape, mode)
                about = {"row": row, "family": family, "shape": shape, "mode": mode}
                name = f"time, {family}, {row}, {shape}, {mode}"
                log.run(name, work, until, section="time", **about)


def _timed(make: Make, shape: tuple, mode: str) -> dict:
    clock.release()
    return clock.milliseconds(make(shape, mode))


def rows() -> Iterator[tuple[str, str, tuple[str, ...], Make]]:
    """Family, name and modes of each row; of a family first the one others are compared with."""
    both = INFERENCE, TRAINING
    for family in (COFFEE, S6, LINEAR):
        modes = both if family == LINEAR else (*both, RECOMPUTE)
        yield family, "keras_coffee.ops", modes, functools.partial(_ours, family, {})
        if family != COFFEE:
            options = {"solver": "associative"}
            yield family, "associative", both, functools.partial(_ours, family, options)
        if family != LINEAR:
            yield family, "layer", both, functools.partial(_layer, family)
        if family != LINEAR and clock.BACKEND == "jax":
            yield family, "lax.scan", both, functools.partial(_loop, family)
    if clock.BACKEND == "torch":
        yield GRU, "torch.nn.GRU", both, _gru


def bound(scan: Callable[..., Any], arrays: list[np.ndarray], mode: str) -> Callable[[], Any]:
    """A call of `scan`; in training with the gradients by all arrays."""
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    inference = functools.partial(clock.compiled(scan, False), *tensors)
    if mode == INFERENCE:
        return inference
    grads = [ops.ones_like(x) for x in inference()]
    return functools.partial(clock.compiled(scan, True), grads, *tensors)


def public(family: str, **options: Any) -> Callable[..., Any]:
    """The function of the package, which takes the initial state last."""
    if family == LINEAR:
        return lambda *x: linear_scan(x[0], x[1], initial_state=x[2], **options)[:1]
    scan: Callable[..., Any] = {COFFEE: coffee_scan, S6: selective_scan}[family]
    return lambda *x: scan(*x[:-1], initial_state=x[-1], **options)


def arrays(family: str, shape: tuple, gate_scale: float = 0.5) -> list[np.ndarray]:
    """Arguments of `public`."""
    batch, length, dim, n = shape
    random = np.random.default_rng(0)
    normal, steps = random.normal, (batch, length, dim)
    if family == LINEAR:
        decay = random.uniform(0.5, 1, size=(*steps, n))
        found = [decay, normal(size=(*steps, n))]
    elif family == S6:
        matrices = normal(size=(2, batch, length, n))
        delta, transition = random.uniform(0.01, 1, steps), random.uniform(-1.5, -0.2, (dim, n))
        found = [normal(size=steps), delta, transition, *matrices]
    else:
        weights = random.uniform(-1.5, -0.2, (dim, n)), gate_scale * normal(size=(dim, n))
        found = [normal(size=steps), *weights, normal(size=(dim, n))]
    return [np.asarray(x, "float32") for x in (*found, normal(size=(batch, dim, n)))]


def _ours(family: str, options: dict, shape: tuple, mode: str) -> Callable[[], Any]:
    options = options | ({"recompute": True} if mode == RECOMPUTE else {})
    return bound(public(family, **options), arrays(family, shape), mode)


def _layer(family: str, shape: tuple, mode: str) -> Callable[[], Any]:
    layer = {COFFEE: keras_coffee.CoffeeLayer, S6: keras_coffee.S6Layer}[family](shape[-1])
    layer.build((None, None, shape[2]))
    weights = [ops.convert_to_numpy(x) for x in layer.trainable_variables]

    def scan(inputs, *weights):
        return (layer.stateless_call(weights, [], inputs)[0],)

    return bound(scan, [arrays(family, shape)[0], *weights], mode)


def _loop(family: str, shape: tuple, mode: str) -> Callable[[], Any]:
    """The simplest scan, compiled by XLA. That of S6 starts from zeros."""
    if family == COFFEE:
        return bound(clock.reference.coffee_scan, arrays(family, shape), mode)
    return bound(clock.reference.selective_scan, arrays(family, shape)[:-1], mode)


def _gru(shape: tuple, mode: str) -> Callable[[], Any]:
    """cuDNN, with as many states: D·n units, and a matrix of (D·n)² in each step."""
    import torch

    batch, length, dim, n = shape
    device = "cuda" if clock.HAS_GPU else "cpu"
    layer = torch.nn.GRU(dim, dim * n, batch_first=True, device=device)
    tensors = [
        torch.randn(size, device=device, requires_grad=mode == TRAINING)
        for size in ((batch, length, dim), (1, batch, dim * n))
    ]
    if mode == INFERENCE:
        return functools.partial(torch.inference_mode()(layer), *tensors)
    grads = [torch.ones_like(x) for x in layer(*tensors)]
    wanted = [*tensors, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(*tensors), wanted, grads)
