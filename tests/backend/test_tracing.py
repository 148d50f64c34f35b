"""Scans inside a framework's own transformations and with shapes unknown until they run."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops
from scans import coffee_arrays, selective_arrays

from keras_coffee.cells import DiagonalGRUCell
from keras_coffee.ops import cell_scan, coffee_scan, linear_scan, selective_scan

DIM, N = 3, 2


def only_on(backend):
    return pytest.mark.skipif(keras.config.backend() != backend, reason=f"of {backend}")


def linear(inputs, delta):
    return linear_scan(ops.exp(-delta), inputs)[0]


def coffee(inputs, delta):
    weights = coffee_arrays((1, 1, DIM, N))
    del weights["inputs"], weights["initial_state"]
    return coffee_scan(inputs + delta, **weights)[0]


def selective(inputs, delta):
    weights = selective_arrays((1, 1, DIM, N), varying=(False, False))
    names = "transition", "input_matrix", "output_matrix"
    return selective_scan(inputs, delta, *(weights[name] for name in names))[0]


def diagonal(inputs, delta):
    weights = (np.ones((3, DIM), "float32") for _ in range(3))
    cell = DiagonalGRUCell(*map(ops.convert_to_tensor, weights))
    return cell_scan(cell, inputs + delta, np.zeros((2, DIM), "float32"))[0]


def newton(inputs, delta):
    weights = coffee_arrays((1, 1, DIM, N), gate_scale=0.1, input_scale=0.1)
    del weights["inputs"], weights["initial_state"]
    return coffee_scan(inputs + delta, **weights, solver="newton")[0]


SCANS = pytest.mark.parametrize("scan", [coffee, selective, linear])
# COFFEE and the selective models share the loops, and compiling takes seconds.
DRIVERS = pytest.mark.parametrize("scan", [coffee, linear])


def sequences(batch, length):
    arrays = selective_arrays((batch, length, DIM, N), input_scale=1.0)
    return arrays["inputs"], arrays["delta"]


def tensorflow_gradients(scan, inputs, delta, **options):
    import tensorflow as tf

    with tf.GradientTape(**options) as tape:
        tape.watch((inputs, delta))
        loss = tf.reduce_sum(scan(inputs, delta) ** 2)
    return tape.gradient(loss, (inputs, delta))


def assert_close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


@only_on("tensorflow")
@pytest.mark.parametrize("jit_compile", [False, True])
@DRIVERS
def test_unknown_batch_and_length(scan, jit_compile):
    import tensorflow as tf

    traces = []

    def with_known_features(inputs, delta):
        outputs = scan(inputs, delta)
        assert outputs.shape.as_list() == [None, None, DIM]
        return outputs

    @tf.function(input_signature=[tf.TensorSpec((None, None, DIM))] * 2, jit_compile=jit_compile)
    def gradients(inputs, delta):
        traces.append(inputs.shape)
        return tensorflow_gradients(with_known_features, inputs, delta)

    for shape in ((2, 7), (3, 4)):
        inputs, delta = map(tf.constant, sequences(*shape))
        assert_close(gradients(inputs, delta), tensorflow_gradients(scan, inputs, delta))
    assert len(traces) == 1


@only_on("tensorflow")
@DRIVERS
def test_gradients_by_many_tapes_in_a_function_and_out_of_it(scan):
    # TensorFlow prepares one compiled function for all of these.
    import tensorflow as tf

    inputs, delta = map(tf.constant, sequences(2, 3))

    def two_tapes():
        with tf.GradientTape() as first, tf.GradientTape() as second:
            first.watch(inputs)
            second.watch(delta)
            loss = tf.reduce_sum(scan(inputs, delta) ** 2)
        return first.gradient(loss, inputs), second.gradient(loss, delta)

    expected = tf.function(tensorflow_gradients)(scan, inputs, delta)
    assert_close(tensorflow_gradients(scan, inputs, delta), expected)
    assert_close(tensorflow_gradients(scan, inputs, delta, persistent=True), expected)
    assert_close(two_tapes(), expected)
    assert_close(tf.function(two_tapes)(), expected)


def second_derivatives(scan, inputs, delta):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        gradient, _ = tensorflow_gradients(scan, inputs, delta)
    return tape.gradient(gradient, inputs)


# The loop that COFFEE and the selective models share, and that of the linear scan.
SWITCH = pytest.mark.parametrize("kernels", ["1", "0"], ids=["kernel", "portable"])


@only_on("tensorflow")
@SWITCH
@DRIVERS
def test_second_derivatives_are_refused_on_tensorflow(scan, kernels, monkeypatch):
    import tensorflow as tf

    monkeypatch.setenv("KERAS_COFFEE_KERNELS", kernels)
    inputs, delta = map(tf.constant, sequences(2, 3))
    message = "no second derivatives on TensorFlow|no_second_derivatives_on_tensorflow"
    for outer, inner in itertools.product((scan, tf.function(scan)), (lambda f: f, tf.function)):
        with pytest.raises((NotImplementedError, tf.errors.OpError), match=message):
            inner(second_derivatives)(outer, inputs, delta)


@only_on("tensorflow")
@SWITCH
@DRIVERS
def test_second_derivatives_that_nobody_asks_for_are_no_error(scan, kernels, monkeypatch):
    # TensorFlow prepares them under a tape that goes on recording.
    import tensorflow as tf

    monkeypatch.setenv("KERAS_COFFEE_KERNELS", kernels)
    inputs, delta = map(tf.constant, sequences(2, 3))

    def gradient(scan):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(inputs)
            return tape.gradient(scan(inputs, delta), inputs)

    assert_close([gradient(tf.function(scan))], [gradient(scan)])
    compiled = tf.function(scan, jit_compile=True)
    assert_close([gradient(compiled)], [gradient(scan)])


@only_on("tensorflow")
def test_one_process_takes_every_rank_and_width():
    # Relaxed to one trace for all, shapes and even ranks were unknown from the second call on.
    for shape in ((2, 3), (2, 3, 2), (2, 3, 4, 2)):
        states, _ = linear_scan(np.ones(shape, "float32"), np.ones(shape, "float32"))
        assert states.shape == shape
    for varying in ((True, True), (False, True), (True, False)):
        for dim in (2, 3):
            arrays = selective_arrays((2, 3, dim, N), varying=varying)
            assert selective_scan(**arrays)[0].shape == (2, 3, dim)


@only_on("tensorflow")
@SCANS
def test_known_shapes_stay_known(scan):
    # After calls of several shapes, too: layers that come later may need to know.
    import tensorflow as tf

    for shape in ((1, 2), (2, 3)):
        scan(*map(tf.constant, sequences(*shape)))

    @tf.function
    def shape_of(inputs, delta):
        assert scan(inputs, delta).shape.as_list() == [4, 5, DIM]
        return 0

    shape_of(*map(tf.constant, sequences(4, 5)))


@only_on("jax")
@SCANS
def test_vmap_with_gradients(scan):
    import jax

    gradients = jax.jit(jax.grad(lambda *x: (scan(*x) ** 2).sum(), (0, 1)))

    pairs = [sequences(2, 5), [x[::-1] for x in sequences(2, 5)]]
    stacked = [np.stack(x) for x in zip(*pairs, strict=True)]
    outputs, grads = jax.vmap(scan)(*stacked), jax.jit(jax.vmap(gradients))(*stacked)
    for k, pair in enumerate(pairs):
        assert_close((outputs[k], *(g[k] for g in grads)), (scan(*pair), *gradients(*pair)))


@only_on("torch")
@SCANS
def test_gradients_of_some_arguments_and_of_none(scan):
    import torch

    inputs, delta = map(torch.tensor, sequences(2, 5))
    assert not scan(inputs, delta).requires_grad
    with torch.no_grad():
        assert not scan(inputs.requires_grad_(), delta).requires_grad
    (scan(inputs, delta) ** 2).sum().backward()
    partial, inputs.grad = inputs.grad, None
    (scan(inputs, delta.requires_grad_()) ** 2).sum().backward()
    torch.testing.assert_close(inputs.grad, partial)


@only_on("torch")
@pytest.mark.parametrize("recompute", [False, True])
def test_memory_that_was_not_written_is_not_read(recompute):
    # In this mode PyTorch fills new memory with NaN.
    import torch

    arrays = coffee_arrays((2, 17, DIM, N))
    tensors = {k: torch.tensor(array, requires_grad=True) for k, array in arrays.items()}
    results = []
    for mode in (False, True):
        torch.use_deterministic_algorithms(mode)
        outputs, final_state = coffee_scan(**tensors, recompute=recompute)
        loss = (outputs**2).sum() + final_state.sum()
        results.append([loss, *torch.autograd.grad(loss, list(tensors.values()))])
    torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(*results)


@only_on("torch")
@SCANS
def test_second_derivatives_are_refused(scan):
    import torch

    inputs, delta = (torch.tensor(x, requires_grad=True) for x in sequences(2, 5))
    with pytest.raises(NotImplementedError, match="no second derivatives on PyTorch. Leave out"):
        torch.autograd.grad((scan(inputs, delta) ** 2).sum(), inputs, create_graph=True)


@only_on("torch")
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("scan", [coffee, linear, diagonal, newton])
def test_forward_mode_derivatives_are_refused(scan):
    # The operators dropped tangents, and the result was silently 0.
    import torch
    from torch.autograd import forward_ad

    inputs, delta = map(torch.tensor, sequences(2, 5))
    with forward_ad.dual_level():
        scan(inputs, delta)  # nothing to derive
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives on PyTorch"):
            scan(forward_ad.make_dual(inputs, inputs), delta)
    for transform in (torch.func.jacfwd(scan), lambda *x: torch.func.jvp(scan, x, x)):
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives on PyTorch"):
            transform(inputs, delta)


@only_on("jax")
def test_hessian_of_a_linear_scan():
    # Forward over reverse, as of the other scans: x(2) = x(1)/2 · b + b, summed, with b = x(1).
    import jax

    def loss(x):
        return linear_scan(0.5 * x, x)[0].sum()

    ones = np.ones((1, 2, 1), "float32")
    hessian = jax.hessian(loss)(ones).reshape(2, 2)
    np.testing.assert_allclose(hessian, [[0, 0.5], [0.5, 0]])


@only_on("jax")
@pytest.mark.parametrize("power", [1, 2])
def test_second_derivatives_through_a_parallel_solver_are_refused(power):
    # The Jacobians are constants there: the result was silently 0, even for a sum.
    import jax

    decay, inputs = np.full((1, 4, 1), 0.5, "float32"), np.ones((1, 4, 1), "float32")

    def slope(solver):
        def loss(a):
            return (linear_scan(decay * a, inputs, solver=solver)[0] ** power).sum()

        return jax.jit(jax.grad(jax.grad(loss)))(1.0)

    assert slope("sequential") > 1
    with pytest.raises(NotImplementedError, match="have no second derivatives. Use solver="):
        slope("associative")
