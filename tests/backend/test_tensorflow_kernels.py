"""Kernels for a CPU as operations of TensorFlow: where they run, and where the loop does."""

import functools
import itertools
import os
import re
import subprocess
import sys

import keras
import numpy as np
import oracles
import pytest
from keras import layers
from scans import assert_matches, coffee_arrays, cotangents_of, selective_arrays

if keras.config.backend() != "tensorflow":
    pytest.skip("kernels of TensorFlow", allow_module_level=True)

import tensorflow as tf

from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
from keras_coffee.backend.cpu import compiler, kernels
from keras_coffee.backend.tensorflow import cpu_kernels, portable
from keras_coffee.layers import MinGRU
from keras_coffee.ops import coffee_scan, linear_scan, selective_scan

SWITCH = "KERAS_COFFEE_KERNELS"


@pytest.fixture(autouse=True, scope="module")
def _switched_on():
    """Kernels may run here, even in a run of the suite without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "1")
        yield


@pytest.fixture(autouse=True)
def ran(monkeypatch):
    """Which implementations ran, or were traced, since the last time that this was cleared."""
    found = set()

    def spy(module, name):
        run = getattr(module, name)

        def spied(*arguments, **options):
            found.add("kernel" if module is cpu_kernels else "loop")
            return run(*arguments, **options)

        monkeypatch.setattr(module, name, spied)

    for module, name in itertools.product((cpu_kernels, portable), ("scan_cell", "linear_scan")):
        spy(module, name)
    return found


@pytest.fixture
def kernel(ran):
    """A test with it must run in kernels, and nowhere else."""
    yield
    assert ran == {"kernel"}


# Results and gradients of the operations.

SCANS = pytest.mark.parametrize(
    ("scan", "make", "oracle"),
    [
        (coffee_scan, coffee_arrays, oracles.coffee),
        (selective_scan, selective_arrays, oracles.selective),
    ],
    ids=["coffee", "selective"],
)
# More features than a block has lanes are cut into columns, the last of them narrower; fewer are
# worked on for several sequences at a time, the last time for fewer.
CUT = [(2, 6, 131, 2), (9, 6, 16, 8), (7, 35, 11, 3), (0, 6, 131, 2), (2, 6, 0, 2)]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize("shape", CUT, ids=str)
@SCANS
def test_blocks_that_do_not_come_out_even(scan, make, oracle, shape, recompute, dtype):
    arrays = make(shape)
    assert_matches(
        lambda **tensors: scan(**tensors, recompute=recompute),
        oracle,
        arrays,
        cotangents_of(arrays),
        dtype,
    )


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("varying", [(True, False), (False, True)], ids=str)
@pytest.mark.parametrize("shape", CUT, ids=str)
def test_matrices_that_do_not_vary(shape, varying):
    arrays = selective_arrays(shape, varying=varying)
    assert_matches(selective_scan, oracles.selective, arrays, cotangents_of(arrays), "float64")


MAMBA = {"discretization": "mamba", "delta_softplus": True}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("shape", CUT, ids=str)
@pytest.mark.parametrize(
    ("scan", "oracle", "make"),
    [
        (coffee_scan, oracles.coffee, functools.partial(coffee_arrays, gated=True)),
        (
            functools.partial(selective_scan, **MAMBA),
            functools.partial(oracles.selective, **MAMBA),
            functools.partial(selective_arrays, skip=True, delta_bias=True, delta_softplus=True),
        ),
    ],
    ids=["coffee", "selective"],
)
def test_all_arrays_in_blocks_that_do_not_come_out_even(scan, oracle, make, shape):
    arrays = make(shape)
    assert_matches(scan, oracle, arrays, cotangents_of(arrays), "float64")


def results_and_gradients(scan, arrays, **options):
    tensors = [tf.constant(x) for x in arrays.values()]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        results = scan(**dict(zip(arrays, tensors, strict=True)), **options)
    return [x.numpy() for x in (*results, *tape.gradient(results, tensors))]


def assert_equal(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, e)


def assert_close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4 * max(1, abs(np.asarray(e)).max()))


@SCANS
def test_threads_change_no_bit(scan, make, oracle, monkeypatch):
    # Enough work for four threads, and two blocks for each part of a sum.
    arrays = make((256, 16, 16, 16), input_scale=1.0)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(cpu_kernels, "_threads", lambda threads=threads: threads)
        found.append(results_and_gradients(scan, arrays))
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])


def test_there_are_as_many_threads_as_tensorflow_has(monkeypatch):
    assert cpu_kernels._threads() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 3)
    assert cpu_kernels._threads() == 3


@SCANS
def test_the_work_is_divided_as_where_python_divides_it(scan, make, oracle):
    # Sums come in the order of the blocks, so another division shows in their last digits.
    def called(direction, name, arguments, **options):
        shapes = tuple(None if x is None else x.shape for x in arguments)
        kernel = kernels.scan(direction, name, shapes, dtype="float32", **options)
        results = [None if x is None else np.empty(x.shape, "float32") for x in kernel.results]
        pointers = [None if x is None else x.ctypes.data for x in (*arguments, *results)]
        kernel.blocks.run(kernel.function, pointers, 1)
        return [x for x in kernel.summed(results) if x is not None]

    shapes = (3, 6, 131, 3), (37, 18, 16, 8), (261, 3, 16, 8), (130, 3, 131, 1), (5, 4, 129, 40)
    for shape in shapes:
        arrays = make(shape, input_scale=1.0)
        inputs, state = arrays["inputs"], arrays["initial_state"]
        if scan is coffee_scan:
            name, options = "coffee", {"feedback": "sigmoid"}
        else:
            name, options = "selective", {"discretization": "zoh", "delta_softplus": False}
            arrays["varying_input_matrix"] = arrays.pop("input_matrix")
            arrays["varying_output_matrix"] = arrays.pop("output_matrix")
        tensors = [arrays.get(x) for x in kernels.RECURRENCES[name].names]
        options["keep"] = 16
        outputs, final_state, kept = called("forward", name, [*tensors, state], **options)
        grads = np.ones_like(inputs), np.ones_like(state), kept
        expected = called("backward", name, [*grads, *tensors], **options)
        found = results_and_gradients(scan, make(shape, input_scale=1.0))
        assert_equal(found[:2], (outputs, final_state))
        # The state is the last of a kernel's arrays, and has another place among those here.
        for gradient in expected:
            assert any(np.array_equal(gradient, x) for x in found[2:])


# Where kernels run.

WIDTH = 3


def model_of(*extra, stateful=False, masked=False, batch=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, WIDTH), batch_size=batch)
    x = layers.Masking()(inputs) if masked else inputs
    x = CoffeeLayer(4, stateful=stateful)(x)
    x = LinearizedS6Layer(2, stateful=stateful)(S6Layer(2)(x))
    model = keras.Model(inputs, MinGRU(WIDTH)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", **dict(extra))
    return model


def data(batch=8, length=5):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(batch, length, WIDTH)).astype("float32")
    x[:, -1] = 0  # the masked step
    return x, np.roll(x, 1, 1)


def trained(model, x, y):
    """Two losses of `fit`, and predictions."""
    history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return [*history["loss"], model.predict(x, verbose=0)]


def used(model, x, y):
    """What a model returns in every way that Keras runs it."""
    return [
        *trained(model, x, y),
        model.evaluate(x, y, verbose=0),
        model.train_on_batch(x, y),
        model.predict_on_batch(x),
        model(x),
        *model.get_weights(),
    ]


@pytest.fixture(scope="module")
def model():
    """A model that was trained in kernels, for tests that leave its weights alone."""
    made = model_of()
    made.in_kernels = trained(made, *data())
    return made


@pytest.mark.parametrize(
    ("arguments", "use"),
    [({}, used), ({"masked": True, "stateful": True, "batch": 4}, trained)],
    ids=["", "masked and stateful"],
)
def test_models_run_in_kernels_and_compute_what_the_loop_does(arguments, use, ran, monkeypatch):
    x, y = data(batch=4 if "batch" in arguments else 8)
    results = use(model_of(**arguments), x, y)
    assert ran == {"kernel"}
    ran.clear()
    monkeypatch.setenv(SWITCH, "0")
    assert_close(results, use(model_of(**arguments), x, y))
    assert ran == {"loop"}


def test_a_model_that_xla_compiles_runs_in_the_loop(model, ran):
    ran.clear()
    assert_close(trained(model_of(("jit_compile", True)), *data()), model.in_kernels)
    assert ran == {"loop"}


@pytest.mark.usefixtures("kernel")
@SCANS
def test_a_pipeline_of_data(scan, make, oracle):
    arrays = make((6, 5, 3, 2))
    expected, _ = scan(**arrays)

    def outputs(inputs, state):
        return scan(**arrays | {"inputs": inputs[None], "initial_state": state[None]})[0][0]

    slices = tf.data.Dataset.from_tensor_slices((arrays["inputs"], arrays["initial_state"]))
    if scan is selective_scan:
        arrays = {k: x[:1] if x.ndim == 3 else x for k, x in arrays.items()}
        expected = [
            scan(**arrays | {"inputs": x[None], "initial_state": s[None]})[0][0] for x, s in slices
        ]
    assert_equal(list(slices.map(outputs, num_parallel_calls=4)), expected)


@pytest.mark.usefixtures("kernel")
@SCANS
def test_shapes_that_are_unknown_until_it_runs(scan, make, oracle):
    pairs = zip(make((1, 1, 3, 2)).items(), make((2, 2, 3, 2)).values(), strict=True)
    specs = {
        name: tf.TensorSpec([m if m == n else None for m, n in zip(x.shape, y.shape, strict=True)])
        for (name, x), y in pairs
    }
    names = list(specs)

    @tf.function(input_signature=[list(specs.values())])
    def gradients(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = scan(**dict(zip(names, tensors, strict=True)))
        return [*results, *tape.gradient(results, tensors)]

    for shape in ((3, 7, 3, 2), (0, 7, 3, 2), (1, 20, 3, 2)):
        arrays = make(shape)
        found = gradients([tf.constant(x) for x in arrays.values()])
        assert_equal(found, results_and_gradients(scan, arrays))
    assert gradients.experimental_get_tracing_count() == 1


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("sizes", [(None, None), (1, None), (None, 1)], ids=str)
def test_linear_decays_of_unknown_sizes(sizes):
    @tf.function(input_signature=[tf.TensorSpec((*sizes, 4)), tf.TensorSpec((None, None, 4))])
    def gradients(decay, inputs):
        with tf.GradientTape() as tape:
            tape.watch((decay, inputs))
            states, _ = linear_scan(decay, inputs)
        return [states, *tape.gradient(states, (decay, inputs))]

    generator = np.random.default_rng(0)
    for batch, length in itertools.product((1, 3), (1, 5)):
        shape = [known or unknown for known, unknown in zip(sizes, (batch, length), strict=True)]
        inputs = generator.normal(size=(batch, length, 4)).astype("float32")
        for first in {tuple(shape), *([(1, 1)] if sizes == (None, None) else [])}:
            decay = generator.uniform(size=(*first, 4)).astype("float32")
            with tf.GradientTape() as tape:
                whole, x = tf.constant(np.broadcast_to(decay, inputs.shape)), tf.constant(inputs)
                tape.watch((whole, x))
                states, _ = linear_scan(whole, x)
            by_decay, by_inputs = tape.gradient(states, (whole, x))
            axes = [k for k in (0, 1) if first[k] == 1 and inputs.shape[k] != 1]
            by_decay = tf.reduce_sum(by_decay, axes, keepdims=True)
            assert_close(gradients(decay, inputs), (states, by_decay, by_inputs))


def test_a_function_traced_without_a_tape_is_differentiated_from_outside(ran):
    arrays = coffee_arrays((3, 35, 2, 4))
    expected = results_and_gradients(coffee_scan, arrays)
    ran.clear()
    function = tf.function(lambda **tensors: coffee_scan(**tensors))
    function(**{name: tf.constant(x) for name, x in arrays.items()})
    assert_equal(results_and_gradients(function, arrays), expected)
    assert ran == {"kernel"}


TWO_DEVICES = """
import keras, numpy as np, tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_coffee import CoffeeLayer
from keras_coffee.backend.tensorflow import portable

def fail(*arguments, **options):
    raise AssertionError("the loop ran")

portable.scan_cell = fail
generator = np.random.default_rng(0)
x = generator.normal(size=(8, 5, 3)).astype("float32")
losses = []
mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
for strategy in (tf.distribute.get_strategy(), mirrored):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([CoffeeLayer(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    losses.append(model.fit(x, x[..., :1], batch_size=4, epochs=3, verbose=0, shuffle=False))
assert strategy.num_replicas_in_sync == 2
np.testing.assert_allclose(*(x.history["loss"] for x in losses), rtol=1e-5)
"""


def in_new_process(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_two_devices():
    done = in_new_process(TWO_DEVICES)
    assert done.returncode == 0, done.stderr


# Files, which are read where the operations are not.


def operations_in(folder):
    """Names of operations of this package in any file of a folder."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert files
    return {name for content in files for name in re.findall(rb"KerasCoffee\w+", content)}


def keras_export(model, path):
    model.export(str(path), verbose=False)
    model = tf.saved_model.load(str(path))
    return lambda x: model.serve(x)


def saved_model(model, path):
    tf.saved_model.save(model, str(path))
    model = tf.saved_model.load(str(path))
    return lambda x: next(iter(model.signatures["serving_default"](x).values()))


def module_of_functions(model, path):
    module = tf.Module()
    module.model = model
    module.run = tf.function(lambda x: model(x, training=False))
    module.run(tf.zeros((1, 2, WIDTH)))  # traced before it is known that it will be saved
    module.run.get_concrete_function(tf.TensorSpec((None, None, WIDTH)))
    tf.saved_model.save(module, str(path))
    module = tf.saved_model.load(str(path))
    return lambda x: module.run(x)


def tensorflow_lite(model, path):
    # Of known sizes, or the file would need operations that the interpreter does not have.
    known = keras.Input(batch_shape=data()[0].shape)
    fixed = keras.models.clone_model(model, input_tensors=known)
    fixed.set_weights(model.get_weights())
    content = tf.lite.TFLiteConverter.from_keras_model(fixed).convert()
    path.mkdir()
    (path / "model.tflite").write_bytes(content)
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner()
    return lambda x: next(iter(run(**dict.fromkeys(run.get_input_details(), x)).values()))


def onnx(model, path):
    runtime = pytest.importorskip("onnxruntime")
    path.mkdir()
    model.export(str(path / "model.onnx"), format="onnx", verbose=False)
    session = runtime.InferenceSession(path / "model.onnx")
    return lambda x: session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # tf2onnx
@pytest.mark.filterwarnings("ignore:[\\s\\S]*tf.lite.Interpreter is deprecated:UserWarning")
@pytest.mark.parametrize(
    "write", [keras_export, saved_model, module_of_functions, tensorflow_lite, onnx]
)
def test_files_hold_the_loop(write, model, ran, tmp_path):
    ran.clear()
    read = write(model, tmp_path / "model")
    assert "loop" in ran
    assert operations_in(tmp_path) == set()
    assert_close([read(tf.constant(data()[0]))], model.in_kernels[-1:])


# What nothing can recognise: the error names the switch, and the switch helps.


def small(inputs):
    return coffee_scan(inputs, *(np.full((WIDTH, 2), x, "float32") for x in (-0.5, 0.1, 1)))[0]


def test_a_function_that_was_traced_before_xla_compiles_another_around_it(ran, monkeypatch):
    x = tf.constant(data()[0])
    inner = tf.function(small)
    expected = inner(x)

    def outer(inner):
        return tf.function(lambda x: inner(x), jit_compile=True)(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"KerasCoffee.*_unless_{SWITCH}_is_0"):
        outer(inner)
    monkeypatch.setenv(SWITCH, "0")
    inner = tf.function(small)
    inner(x)
    assert_close([outer(inner)], [expected])


LOAD = """
import sys, tensorflow as tf
for folder in sys.argv[1:]:
    run = tf.saved_model.load(folder).signatures["run"]
    print(run(tf.ones((1, 2, 3)))["output_0"].numpy().shape)
"""


def test_a_concrete_function_saved_by_hand(monkeypatch, tmp_path):
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        function = tf.function(small).get_concrete_function(tf.TensorSpec((None, None, WIDTH)))
        tf.saved_model.save(tf.Module(), str(tmp_path / switch), signatures={"run": function})
    assert operations_in(tmp_path / "0") == set()
    done = in_new_process(LOAD, str(tmp_path / "0"), str(tmp_path / "1"))
    # The first one runs, and the second one is not even loaded.
    assert done.stdout == "(1, 2, 3)\n", done.stderr
    assert re.search(f"Op type not registered 'KerasCoffee.*_unless_{SWITCH}_is_0'", done.stderr)


# Where kernels can't be used.


def test_the_switch_takes_two_values(monkeypatch):
    monkeypatch.setenv(SWITCH, "off")
    with pytest.raises(ValueError, match=f"{SWITCH} is 'off'. Set it to 0, and recurrences run"):
        small(data()[0])


@pytest.fixture
def as_new(monkeypatch):
    """As if no kernel had been tried yet."""
    monkeypatch.setattr(compiler, "warn", functools.cache(compiler.warn.__wrapped__))
    for name in ("scan_operations", "linear_operations"):
        make = getattr(cpu_kernels, name).__wrapped__
        monkeypatch.setattr(cpu_kernels, name, cpu_kernels._once(make))


@pytest.fixture
def without_libraries(as_new, monkeypatch):
    for module, name in (
        (compiler, "library"),
        (cpu_kernels, "_scan_library"),
        (cpu_kernels, "_linear_library"),
    ):
        function = functools.cache(getattr(module, name).__wrapped__)
        monkeypatch.setattr(module, name, function)


def small_linear(inputs):
    return linear_scan(inputs, inputs)[0]


SMALL = pytest.mark.parametrize("scan", [small, small_linear], ids=["scan", "linear"])


@pytest.mark.usefixtures("without_libraries")
@pytest.mark.parametrize("commands", [(), (("false",),)], ids=["none", "fails"])
@SMALL
def test_without_a_compiler_the_loop_runs_and_a_warning_says_so(
    scan, commands, ran, monkeypatch, tmp_path
):
    x = data()[0]
    monkeypatch.setattr(compiler, "_folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "compiler", lambda: commands)
    reason = "false failed: exit status 1" if commands else "there is no C compiler"
    with pytest.warns(UserWarning, match=f"without compiled kernels.*because {reason}"):
        outputs = scan(x)
    assert ran == {"loop"}
    monkeypatch.setenv(SWITCH, "0")
    assert_equal(outputs, scan(x))


def twice(results):
    return tf.nest.map_structure(lambda x: 2 * x, results)


def fails(results):
    raise tf.errors.InternalError(None, None, "no such thing")


@pytest.mark.usefixtures("as_new")
@pytest.mark.parametrize(
    ("change", "reason"),
    [(twice, "computes something else than the loop"), (fails, "fails: no such thing")],
)
@SMALL
def test_kernels_that_fail_at_their_first_call_are_not_used(scan, change, reason, ran, monkeypatch):
    x = data()[0]
    for name in ("_run_scan", "_run_linear"):
        run = getattr(cpu_kernels, name)
        monkeypatch.setattr(cpu_kernels, name, lambda *x, run=run: change(run(*x)))
    with pytest.warns(UserWarning, match=f"without compiled kernels.*a compiled kernel {reason}"):
        outputs = scan(x)
    scan(x)
    assert ran == {"loop"}
    monkeypatch.setenv(SWITCH, "0")
    assert_equal(outputs, scan(x))


# TensorFlow itself checks no shape.

SEQUENCE, STATE = (2, 3, 4), (2, 4, 5)
ARGUMENTS = [SEQUENCE, SEQUENCE, (2, 3, 5), (2, 3, 5), (4, 5)]


def operations_of_selective():
    present = [name in ("transition",) for name in kernels.RECURRENCES["selective"].names]
    present[:4] = [True] * 4
    options = (("discretization", "zoh"), ("delta_softplus", False))
    return cpu_kernels._scan_library("selective", tuple(present), "float32", options)


def operations_of_linear():
    return cpu_kernels._linear_library("float32", False, True, True)


@pytest.mark.parametrize(
    ("operations", "direction", "shapes"),
    [
        (operations_of_selective, "forward", [*ARGUMENTS, STATE]),
        (operations_of_selective, "backward", [SEQUENCE, STATE, None, *ARGUMENTS]),
        (operations_of_linear, "forward", [SEQUENCE, SEQUENCE, (2, 4)]),
        (operations_of_linear, "backward", [SEQUENCE] * 3 + [(2, 4)]),
    ],
)
def test_every_shape_is_checked(operations, direction, shapes):
    function = getattr(operations(), direction)
    kept = tf.zeros(2 * 4 * 5 * 4, "uint8")

    def call(shapes):
        tensors = [kept if shape is None else tf.zeros(shape) for shape in shapes]
        return function(*tensors, keep=3, threads=1)

    call(shapes)
    for k, shape in enumerate(shapes):
        if shape is None:
            continue
        larger = [
            [size + (d == axis) for d, size in enumerate(shape)] for axis in range(len(shape))
        ]
        for wrong in (*larger, (1, *shape), shape[1:]):
            changed = [*shapes[:k], wrong, *shapes[k + 1 :]]
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=r"keras_coffee: \w+ has the sh"
            ):
                call(changed)


def test_shapes_are_named():
    forward, _, _ = operations_of_linear()
    message = (
        r"keras_coffee: state has the shape \(3, 4\), which does not fit B\*, where "
        r"B = 2 sequences, T = 3 steps, D = 4 features\."
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        forward(tf.zeros(SEQUENCE), tf.zeros(SEQUENCE), tf.zeros((3, 4)), keep=0, threads=1)


@pytest.mark.parametrize(("keep", "size"), [(0, 0), (3, 4), (2, 2 * 4 * 5 * 4)], ids=str)
def test_what_was_kept_is_checked(keep, size):
    kept = tf.zeros(size, "uint8")
    tensors = [tf.zeros(SEQUENCE), tf.zeros(STATE), kept, *map(tf.zeros, ARGUMENTS)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no states were kept for a gradient"):
        operations_of_selective().backward(*tensors, keep=keep, threads=1)


def test_known_shapes_pass_through_the_operations():
    @tf.function
    def shapes(inputs, state):
        function = operations_of_linear().forward
        return function(inputs, inputs, state, keep=0, threads=1)

    specs = tf.TensorSpec((2, None, 4)), tf.TensorSpec((2, 4))
    assert shapes.get_concrete_function(*specs).output_shapes.as_list() == [2, None, 4]
