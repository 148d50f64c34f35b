"""The kernels of `backend/cpu` as operations of TensorFlow, with their gradients."""

import concurrent.futures
import functools
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_coffee.backend.cpu import blocks, compiler, kernels
from keras_coffee.backend.tensorflow import gradients, portable

try:  # Whether a tape may exist. There is no public way to ask.
    from tensorflow.python.eager.record import could_possibly_record as _may_be_recorded
except ImportError:

    def _may_be_recorded():
        return True


class Operations(NamedTuple):
    """Both directions of a kernel, and their names."""

    forward: Any
    backward: Any
    names: tuple[str, ...]


def _load(path):
    try:
        module = tf.load_op_library(path)
    except tf.errors.OpError as error:
        raise OSError(str(error)) from error
    # As tensorflow.h composes them, and as TensorFlow makes functions of them.
    key = Path(path).stem.rpartition("-")[2]
    ends = [f"_{x}_{key}_unless_KERAS_COFFEE_KERNELS_is_0" for x in ("forward", "backward")]
    functions = [getattr(module, f"keras_coffee{x}".lower()) for x in ends]
    return Operations(functions[0], functions[1], tuple(f"KerasCoffee{x}" for x in ends))


_TENSORFLOW = compiler.Caller(
    "FOR_TENSORFLOW",
    tf.sysconfig.get_include(),
    ("tensorflow/c/kernels.h", "tensorflow/c/ops.h", "tensorflow/core/public/version.h"),
    tuple(tf.sysconfig.get_link_flags()),
    _load,
)
_lock = threading.Lock()


def _once(make):
    """What `make` returns or, where kernels can't be used, None. Made once, and the reason said."""

    @functools.cache
    def make_or_warn(*arguments):
        try:
            return make(*arguments)
        except compiler.CompilationError as error:
            compiler.warn(str(error))
            return None

    @functools.wraps(make)
    def made(*arguments):
        with _lock:  # two threads would register the same gradient
            return make_or_warn(*arguments)

    return made


# Scans.


@_once
def scan_operations(recurrence, count, dtype):
    """Operations for a recurrence with so many tensors of a `dtype`, or None if there are none."""
    if recurrence.kernel not in kernels.RECURRENCES or dtype not in (tf.float32, tf.float64):
        return None
    sequences, weights, _ = recurrence.split(range(count))
    places = recurrence.arguments(sequences, weights)
    present = tuple(x is not None for x in places)
    options = tuple(recurrence.options.items())
    operations = _scan_library(recurrence.kernel, present, dtype.name, options)
    _check(
        lambda *x: _run_scan(operations, recurrence, False, x),
        lambda *x: portable.scan(recurrence, False, *x),
        _example_shapes(recurrence.kernel, places),
        dtype,
        recurrence.unmarked(sequences)[1:],
    )
    return operations


@functools.cache
def _scan_library(name, present, dtype, options):
    operations = kernels.scan_library(name, present, _TENSORFLOW, dtype=dtype, **dict(options))
    definition = kernels.RECURRENCES[name]
    names = [x for x, is_there in zip(definition.names, present, strict=True) if is_there]

    def gradient(op, grad_outputs, grad_state, _):
        *tensors, _ = op.inputs
        keep, threads, kept = op.get_attr("keep"), op.get_attr("threads"), op.outputs[2]
        if not keep:  # traced without a tape, and differentiated from outside
            keep = blocks.KEEP
            kept = operations.forward(*op.inputs, keep=keep, threads=threads)[2]
        grads = iter(
            operations.backward(
                grad_outputs, grad_state, kept, *tensors, keep=keep, threads=threads
            )
        )
        own = [next(grads) if definition.has_gradient(x) else None for x in names]
        return [*own, next(grads)]

    _register(operations, gradient)
    return operations


def _register(operations, gradient):
    forward, backward = operations.names
    tf.RegisterGradient(forward)(gradient)
    tf.RegisterGradient(backward)(lambda op, *x: gradients.second_derivatives(op.inputs, *x))


def scan_cell(operations, recurrence, *tensors, recompute):
    """Outputs `(B, T, D)` and the final state, as `portable.scan_cell` returns them."""
    outputs, final_state = _run_scan(operations, recurrence, recompute, tensors)
    if not tf.executing_eagerly():
        outputs.set_shape([tensors[-1].shape[0], None, None])
        final_state.set_shape([tensors[0].shape[0], None, None])
    return outputs, [final_state]


def _run_scan(operations, recurrence, recompute, tensors):
    sequences, weights, (state,) = recurrence.split(tensors)
    # Kernels take marks in the dtype of everything else.
    sequences = [tf.cast(x, state.dtype) if x.dtype == tf.bool else x for x in sequences]
    arguments = [x for x in recurrence.arguments(sequences, weights) if x is not None]
    keep = (-1 if recompute else blocks.KEEP) if _may_be_recorded() else 0
    return operations.forward(*arguments, state, keep=keep, threads=_threads())[:2]


def _threads():
    return tf.config.threading.get_intra_op_parallelism_threads() or _processors()


@functools.cache
def _processors():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


# The linear recurrence.


@_once
def linear_operations(dtype, reverse, is_per_sequence, is_per_step):
    """Operations for decays as `cpu.kernels.linear` takes them, or None if there are none."""
    if dtype not in (tf.float32, tf.float64, tf.complex64, tf.complex128):
        return None
    operations = _linear_library(dtype.name, reverse, is_per_sequence, is_per_step)
    batch, length = 2 if is_per_sequence else 1, 3 if is_per_step else 1
    _check(
        lambda *x: [_run_linear(operations, x)],
        lambda decay, *x: [portable.linear(reverse, tf.broadcast_to(decay, (2, 3, 2)), *x)],
        [(batch, length, 2), (2, 3, 2), (2, 2)],
        dtype,
    )
    return operations


@functools.cache
def _linear_library(dtype, reverse, is_per_sequence, is_per_step):
    operations = kernels.linear_library(
        _TENSORFLOW,
        dtype=dtype,
        reverse=reverse,
        is_per_sequence=is_per_sequence,
        is_per_step=is_per_step,
    )

    def gradient(op, grad_states):
        decay, _, state = op.inputs
        return operations.backward(
            grad_states, op.outputs[0], decay, state, keep=0, threads=op.get_attr("threads")
        )

    _register(operations, gradient)
    return operations


def linear_scan(operations, decay, inputs, initial_state):
    """All states `(B, T, ...)`."""
    states = _run_linear(operations, (decay, inputs, initial_state))
    if not tf.executing_eagerly():
        states.set_shape([initial_state.shape[0], *[None] * (inputs.shape.rank - 1)])
    return states


def _run_linear(operations, tensors):
    return operations.forward(*tensors, keep=0, threads=_threads())


# Compares one call of each with the loop, because the compiler or the version of TensorFlow may be
# untested.


def _check(kernel, loop, shapes, dtype, marks=()):
    """Compares them on tensors of these shapes, of which some may be masks or resets."""
    try:
        # In a separate thread no graph is built and no tape records.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            results, expected = pool.map(
                lambda run: _results_and_gradients(run, shapes, dtype, marks), (kernel, loop)
            )
    except tf.errors.OpError as error:
        raise compiler.CompilationError(f"a compiled kernel fails: {error}") from error
    pairs = zip(results, expected, strict=True)
    if not all(np.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in pairs):
        raise compiler.CompilationError("a compiled kernel computes something else than the loop")


def _results_and_gradients(run, shapes, dtype, marks):
    generator = np.random.default_rng(0)
    tensors = [tf.constant(generator.uniform(-1, 1, shape), dtype) for shape in shapes]
    tensors = [x > 0 if k in marks else x for k, x in enumerate(tensors)]
    moving = gradients.moving(tensors)
    with tf.GradientTape() as tape:
        tape.watch(moving)
        results = run(*tensors)
    return [x.numpy() for x in (*results, *tape.gradient(results, moving))]


def _example_shapes(name, places):
    """Small shapes for a recurrence, in its order, from the `places` in it of a kernel's arrays."""
    definition = kernels.RECURRENCES[name]
    pairs = zip(places, definition.names, strict=True)
    axes = {k: definition.axes(x) for k, x in pairs if k is not None}
    sizes = {"B": 2, "T": 3, "D": 3, "n": 2, "1": 1}
    return [tuple(sizes[x] for x in each) for each in (*(axes[k] for k in sorted(axes)), "BDn")]
