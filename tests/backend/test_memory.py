"""Memory, in units of one trajectory: the states of all steps in float32.

Never by a clock or by the size of the process. JAX is asked for the buffers of the compiled
program, TensorFlow for those that its compiled program makes, torch for what is alive at a time.
"""

import functools
import re

import keras
import numpy as np
import pytest
from scans import coffee_arrays, selective_arrays

from keras_coffee import CoffeeLayer, S6Layer
from keras_coffee.cells import AffineCell
from keras_coffee.layers import MinGRU
from keras_coffee.ops import cell_scan, coffee_scan, linear_scan, selective_scan

# Many states a feature, so that inputs and outputs are small beside a trajectory; many steps, so
# that a block or a chunk of them is.
BATCH, LENGTH, DIM, N = SHAPE = (4, 1024, 32, 32)
TRAJECTORY = 4 * BATCH * LENGTH * DIM * N

# Kernels for a CPU keep one state in sixteen even where nobody asks for `recompute`. A program that
# XLA compiles for TensorFlow has none.
IS_TENSORFLOW = keras.config.backend() == "tensorflow"
COMPILED_LEAST = 1 if IS_TENSORFLOW else 1 / 16


@pytest.fixture(params=["kernel", "loop"] if IS_TENSORFLOW else ["kernel"])
def least(request, monkeypatch):
    """What training keeps at least, in each implementation."""
    monkeypatch.setenv("KERAS_COFFEE_KERNELS", "1" if request.param == "kernel" else "0")
    return 1 / 16 if request.param == "kernel" else 1


SCANS = {"coffee": (coffee_scan, coffee_arrays), "selective": (selective_scan, selective_arrays)}


def case(name, shape=SHAPE, **options):
    """A scan of tensors, and the arrays for it."""
    scan, arrays_of = SCANS[name]
    arrays = arrays_of(shape)

    def run(*tensors):
        return scan(**dict(zip(arrays, tensors, strict=True)), **options)

    return run, list(arrays.values())


def loss_of(run):
    def loss(*tensors):
        outputs, final_state = run(*tensors)
        return keras.ops.sum(outputs * outputs) + keras.ops.sum(final_state)

    return loss


def inference_bytes(run, arrays):
    """What `run` needs beside its arguments."""
    match keras.config.backend():
        case "jax":
            return _jax_bytes(run, arrays)
        case "tensorflow":
            return _tensorflow_bytes(run, arrays)
        case "torch":
            return _torch_bytes(run, arrays, requires_grad=False)


@functools.cache
def training_bytes(name, *, recompute=False):
    """What the gradients of a scan need beside its arguments."""
    run, arrays = case(name, recompute=recompute)
    loss = loss_of(run)
    match keras.config.backend():
        case "jax":
            return _jax_bytes(_jax_gradients(loss), arrays)
        case "tensorflow":
            return _tensorflow_bytes(_tensorflow_gradients(loss), arrays)
        case "torch":
            return _torch_bytes(lambda *x: loss(*x).backward(), arrays, requires_grad=True)


def kept_bytes(run, arrays):
    """What stays from the forward pass for the gradients, the arguments themselves included."""
    match keras.config.backend():
        case "jax":
            return _jax_kept(run, arrays)
        case "tensorflow":
            return _tensorflow_kept(loss_of(run), arrays)
        case "torch":
            return _torch_kept(run, arrays)


@pytest.mark.parametrize("name", SCANS)
def test_inference_keeps_no_trajectory(name):
    assert inference_bytes(*case(name)) < 0.5 * TRAJECTORY


@pytest.mark.parametrize("name", SCANS)
def test_training_holds_one_trajectory_and_no_second_tensor_of_its_size(name):
    assert COMPILED_LEAST * TRAJECTORY < training_bytes(name) < 1.9 * TRAJECTORY


@pytest.mark.parametrize("shape", [SHAPE, (512, 16, 16, 32)], ids=["long", "wide"])
@pytest.mark.parametrize("name", SCANS)
def test_the_trajectory_is_kept_once_at_most(name, shape, least):
    trajectory = 4 * np.prod(shape)
    assert least * trajectory <= kept_bytes(*case(name, shape)) < (least + 0.75) * trajectory


@pytest.mark.usefixtures("least")
@pytest.mark.parametrize("name", SCANS)
def test_recompute_keeps_about_one_state_in_the_root_of_the_length(name):
    assert kept_bytes(*case(name, recompute=True)) < (8 / N + 4 * LENGTH**-0.5) * TRAJECTORY
    assert training_bytes(name, recompute=True) < 0.75 * TRAJECTORY


only_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="eager PyTorch")


@only_torch
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_scan_has_the_same_gradients(name, use_reentrant):
    # The hooks of a checkpoint unpack each kept tensor once, and fail the second time.
    import torch
    from torch.utils.checkpoint import checkpoint

    run, arrays = case(name, (2, 7, 3, 2))
    gradients = []
    for call in (run, lambda *x: checkpoint(run, *x, use_reentrant=use_reentrant)):
        tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
        loss_of(call)(*tensors).backward()
        gradients.append([x.grad.numpy() for x in tensors])
    for actual, expected in zip(*gradients, strict=True):
        np.testing.assert_array_equal(actual, expected)


@only_torch
@pytest.mark.parametrize("reverse", [False, True])
def test_the_final_state_of_a_linear_scan_keeps_no_trajectory(reverse):
    inputs = np.ones((2, 50, 3), "float32")
    _, by_function = linear_scan(0.5, inputs, reverse=reverse)
    _, by_cell = cell_scan(AffineCell(), (0.5 * inputs, inputs), inputs[:, 0])
    for state in (by_function, by_cell):
        assert state.untyped_storage().nbytes() == 4 * state.numel()


@only_torch
@pytest.mark.parametrize("layer", [CoffeeLayer, S6Layer, MinGRU])
def test_the_last_output_of_a_layer_keeps_no_others(layer):
    last = layer(3, return_sequences=False)(np.ones((2, 50, 3), "float32"))
    assert last.untyped_storage().nbytes() == 4 * last.numel()


@only_torch
@pytest.mark.parametrize("name", SCANS)
def test_asking_for_shapes_runs_no_step(name):
    # Keras does, when a model is fitted first: over 100,000 steps it took two minutes.
    import torch

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            self.operations += 1
            return operation(*args, **(kwargs or {}))

    counts = []
    for length in (9, 90):
        run, arrays = case(name, (2, length, 3, 4))
        with keras.device("meta"), torch.no_grad(), Count() as count:
            outputs, final_state = run(*(torch.tensor(array, device="meta") for array in arrays))
        assert tuple(outputs.shape) == (2, length, 3)
        assert tuple(final_state.shape) == (2, 3, 4)
        counts.append(count.operations)
    assert counts[0] == counts[1]


def _jax_gradients(loss):
    import jax

    return lambda *arrays: jax.grad(loss, tuple(range(len(arrays))))(*arrays)


def _jax_bytes(function, arrays):
    import jax

    return jax.jit(function).lower(*arrays).compile().memory_analysis().temp_size_in_bytes


def _jax_kept(run, arrays):
    import jax

    _, gradients = jax.vjp(run, *map(jax.numpy.asarray, arrays))
    return sum(x.nbytes for x in jax.tree.leaves(gradients))


def _tensorflow_gradients(loss):
    import tensorflow as tf

    def gradients(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = loss(*tensors)
        return tape.gradient(value, tensors)

    return gradients


def _tensorflow_bytes(function, arrays):
    import tensorflow as tf

    compiled = tf.function(function, jit_compile=True)
    program = compiled.experimental_get_compiler_ir(*map(tf.constant, arrays))("optimized_hlo")
    # Inside a fusion there are no buffers; an update in place makes none.
    computations = re.split(r"\n(?=\S)", program)
    computations = [c for c in computations if not re.match(r"%?(fused|wrapped)", c)]
    instruction = re.compile(r"(\S+) = f32\[([\d,]*)\]\S* ([\w-]+)\(")
    found = [match for c in computations for match in instruction.findall(c)]
    made = [
        4 * np.prod([int(d) for d in shape.split(",") if d])
        for name, shape, operation in found
        if operation not in ("parameter", "get-tuple-element", "bitcast", "dynamic-update-slice")
        and "dynamic-update-slice" not in name
    ]
    assert made, program
    return sum(made)


def _tensorflow_kept(loss, arrays):
    import tensorflow as tf

    @tf.function
    def kept(*tensors):
        _tensorflow_gradients(loss)(*tensors)
        # The forward pass is a kernel, or the first call of a compiled function; what it passes on,
        # it returns.
        operations = tf.compat.v1.get_default_graph().get_operations()
        kinds = "PartitionedCall", "StatefulPartitionedCall", "KerasCoffee_forward"
        forward = next(op for op in operations if op.type.startswith(kinds))
        sizes = [tf.size(x, tf.int64) * x.dtype.size for x in forward.outputs if x.dtype.size]
        return tf.add_n(sizes)

    return int(kept(*map(tf.constant, arrays)))


def _torch_bytes(function, arrays, *, requires_grad):
    import torch

    tensors = [torch.tensor(array, requires_grad=requires_grad) for array in arrays]
    with _live_bytes(tensors) as live, torch.set_grad_enabled(requires_grad):
        function(*tensors)
    return live.peak


def _torch_kept(run, arrays):
    import torch

    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = run(*(torch.tensor(array, requires_grad=True) for array in arrays))
    assert all(result.requires_grad for result in results)
    return sum(storages.values())


def _live_bytes(arguments):
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

    def storages(tree):
        leaves = torch.utils._pytree.tree_leaves(tree)
        return [x.untyped_storage() for x in leaves if isinstance(x, torch.Tensor)]

    class LiveBytes(TorchDispatchMode):
        """Follows the memory of every tensor that an operation returns."""

        def __init__(self):
            super().__init__()
            self.peak = 0
            self.known = {s._cdata: (StorageWeakRef(s), 0) for s in storages(arguments)}

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **(kwargs or {}))
            new = {s._cdata: s for s in storages(result) if s._cdata not in self.known}
            if new:
                self.known = {k: v for k, v in self.known.items() if not v[0].expired()}
                self.known |= {k: (StorageWeakRef(s), s.nbytes()) for k, s in new.items()}
                self.peak = max(self.peak, sum(size for _, size in self.known.values()))
            return result

    return LiveBytes()
