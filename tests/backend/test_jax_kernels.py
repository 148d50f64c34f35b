"""The primitives of the scans under JAX's transformations, and on several devices."""

import functools
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from nightly import IS_NIGHTLY
from scans import coffee_arrays, selective_arrays

from keras_coffee.ops import coffee_scan, selective_scan

if keras.config.backend() != "jax":
    pytest.skip("primitives of JAX", allow_module_level=True)

import jax

from keras_coffee.backend.jax import kernels

# Of two blocks of sequences, the second one narrower, and two chunks and a rest of time.
SHAPE = (7, 35, 5, 8)

SCANS = pytest.mark.parametrize(
    ("scan", "make"),
    [
        (coffee_scan, functools.partial(coffee_arrays, gated=True)),
        (selective_scan, selective_arrays),
    ],
    ids=["coffee", "selective"],
)


def problem(scan, make):
    arrays = make(SHAPE, input_scale=0.5)
    arrays = {name: 0.5 * array for name, array in arrays.items()}

    def run(*tensors):
        return scan(**dict(zip(arrays, tensors, strict=True)))[0]

    return run, list(map(jax.numpy.asarray, arrays.values()))


def assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4 * abs(np.asarray(e)).max())


@pytest.fixture
def quick_compilation():
    """For programs that take long to compile, and run in no time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("quick_compilation")
@SCANS
def test_a_pullback_that_is_mapped_is_the_pullback_of_each(scan, make):
    # Forward by a kernel, backward by the portable scan: what is kept must mean the same to both.
    run, tensors = problem(scan, make)
    outputs, pullback = jax.vjp(run, *tensors)
    cotangents = jax.random.normal(jax.random.key(0), (3, *outputs.shape))
    each = [jax.jit(pullback)(c) for c in cotangents]
    assert_close(
        jax.jit(jax.vmap(pullback))(cotangents), jax.tree.map(lambda *x: np.stack(x), *each)
    )


@SCANS
def test_mapped_scans_keep_their_kernels(scan, make):
    run, tensors = problem(scan, make)
    axes = [0] + [None] * (len(tensors) - 1)
    stacked = [np.stack([tensors[0], -tensors[0]]), *tensors[1:]]

    def loss(*tensors):
        return (run(*tensors) ** 2).sum()

    for function in (run, jax.grad(loss)):
        mapped = jax.jit(jax.vmap(function, axes))
        program = mapped.lower(*stacked).as_text()
        assert re.search(r"custom_call @.?(coffee|selective)", program)
        expected = [function(x, *tensors[1:]) for x in stacked[0]]
        assert_close(mapped(*stacked), np.stack(expected))


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(
    ("scan", "make"),
    [
        pytest.param(coffee_scan, coffee_arrays, id="coffee"),
        pytest.param(
            *(selective_scan, selective_arrays),
            id="selective",
            # Both primitives are made by one function, with their derivatives.
            marks=pytest.mark.skipif(not IS_NIGHTLY, reason="compiles for long: nightly"),
        ),
    ],
)
def test_second_derivatives_are_those_of_the_portable_scan(scan, make, monkeypatch):
    run, tensors = problem(scan, make)

    def penalty(scale, *others):
        def loss(inputs):
            # The derivative passes through the head behind the scan too.
            return jax.numpy.sum(jax.numpy.tanh(scale * run(inputs, *others)) ** 2)

        return jax.numpy.sum(jax.grad(loss)(tensors[0]) ** 2)

    def gradients():
        return jax.jit(jax.grad(penalty, (0, 1, 2)))(0.7, *tensors[1:])

    actual = gradients()
    monkeypatch.setattr(kernels, "implementation", lambda *arguments: "portable")
    jax.clear_caches()
    assert_close(actual, gradients())


@SCANS
def test_no_features(scan, make):
    arrays = make((2, 20, 0, 3))

    def loss(*tensors):
        return sum(x.sum() for x in scan(**dict(zip(arrays, tensors, strict=True))))

    gradients = jax.jit(jax.grad(loss, tuple(range(len(arrays)))))(*arrays.values())
    for gradient, array in zip(gradients, arrays.values(), strict=True):
        np.testing.assert_array_equal(gradient, np.zeros_like(array))


@SCANS
def test_without_compiling(scan, make):
    run, tensors = problem(scan, make)
    expected = run(*tensors)
    with jax.disable_jit():
        assert_close(run(*tensors), expected)


DEVICES = """
import functools, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from scans import coffee_arrays
from keras_coffee.ops import coffee_scan

arrays = coffee_arrays((8, 35, 3, 2), gate_scale=0.5, input_scale=1.0, optional=False)
inputs, state = arrays.pop("inputs"), arrays.pop("initial_state")
mesh = Mesh(np.array(jax.devices()), "x")

def run(inputs, state):
    return coffee_scan(inputs, **arrays, initial_state=state)[0]

def loss(run):
    return jax.jit(jax.value_and_grad(lambda u, x: (run(u, x) ** 2).sum(), (0, 1)))

expected = loss(run)(inputs, state)
divided = [jax.device_put(x, NamedSharding(mesh, P("x"))) for x in (inputs, state)]
mapped = jax.shard_map(run, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
outputs, pullback = jax.vjp(run, inputs, state)
cotangents = jax.device_put(outputs, divided[0].sharding)
together = jax.jit(pullback)(outputs), jax.jit(pullback)(cotangents)
for actual, wanted in (
    (loss(run)(*divided), expected), (loss(mapped)(inputs, state), expected), together
):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)
"""


def test_several_devices_agree_with_one():
    environment = {
        **os.environ,
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", DEVICES], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
