"""What a model exports computes what the model does, for any batch and any length."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from nightly import IS_THOROUGH

from keras_coffee import CoffeeLayer
from keras_coffee.layers import MinGRU

BACKEND = keras.config.backend()
WORKER = Path(__file__).with_name("worker.py")
MODELS = (
    "coffee",
    "coffee-filtered",
    "coffee-gated",
    "coffee-without-feedback",
    "one-state",
    "s6",
    "linearized-s6",
    "min-gru",
    "lru",
    "both-ways",
    "handed-over",
    "masked",
    "masked-mamba",
    "mamba",
    "linear-scan",
    "linear-scan-reversed",
    "classifier",
    "softmin",
)
# Each is a part of another one. PyTorch exports them by day all the same.
BY_NIGHT = ("coffee", "s6", "mamba", "linear-scan")
MODELS = MODELS if IS_THOROUGH else tuple(name for name in MODELS if name not in BY_NIGHT)
# The packages that each format needs besides the backend.
FORMATS = {
    "tensorflow": {"tf_saved_model": (), "onnx": ("tf2onnx", "onnxruntime")},
    "jax": {"tf_saved_model": ("tensorflow",), "onnx": ("jax2onnx", "onnxruntime")},
    "torch": {
        "torch": (),
        "onnx": ("onnxscript", "onnxruntime"),
        "onnx-fixed": ("onnxscript", "onnxruntime"),
    },
}[BACKEND]

# What does not work, and how the user learns: the exporter raises, or no runtime loads the file.
REFUSED = {
    ("jax", "onnx", "linear-scan-reversed"): "Reverse scan is not supported",
    ("jax", "onnx", "softmin"): "jnp.max with 'initial' is not supported",
    ("tensorflow", "onnx", "softmin"): "No Op registered for Bitcast",
}

only_torch = pytest.mark.skipif(BACKEND != "torch", reason="an exporter of PyTorch")


def work(action, directory, *arguments):
    result = subprocess.run(
        [sys.executable, str(WORKER), action, str(directory), *arguments],
        # Threads that wait for a core that another suite keeps busy would slow PyTorch down.
        env={**os.environ, "PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Where the models lie exported, in a folder for each format, with what both compute."""
    missing = {name for needed in FORMATS.values() for name in needed}
    missing = [name for name in missing if not importlib.util.find_spec(name)]
    assert not missing, f'pip install -e ".[export]" brings {missing}'
    directory = tmp_path_factory.mktemp("exported")
    work("export", directory, ",".join(MODELS), *FORMATS)
    for form in FORMATS:
        work("run", directory, form)
    return directory


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", FORMATS)
def test_exported_numbers_are_the_models(exported, form, model):
    directory = exported / form
    if reason := REFUSED.get((BACKEND, form, model)):
        assert reason in (directory / f"{model}.refused").read_text()
        return
    if form == "onnx-fixed" and model not in ("coffee", "s6"):
        pytest.skip("two are enough")
    if form == "onnx" and model == "lru":
        pytest.skip("no operation of ONNX takes complex numbers")
    expected = np.load(exported / f"{model}.npz")
    actual = np.load(directory / f"{model}-run.npz")
    assert len(expected.files) == 2
    assert len(actual.files) == (1 if form == "onnx-fixed" else 2)
    for name in actual.files:
        assert expected[name].std() > 1e-3
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(actual[name] / scale, expected[name] / scale, rtol=0, atol=2e-6)


@only_torch
# The exporter is deprecated, and warns of what it fixes; Keras silences most of that.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(None, 3), (5, 3)], ids=["time", "batch"])
def test_an_onnx_file_that_would_fix_the_length_is_refused(tmp_path, shape):
    model = keras.Sequential([keras.Input(shape), CoffeeLayer(2)])
    model(np.ones((1, 5, 3), "float32"))
    with pytest.raises(NotImplementedError, match="dynamo=True, dynamic_shapes"):
        model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("is_batch_known", [False, True])
# The older exporter of PyTorch is deprecated, and warns of what it fixes.
@pytest.mark.filterwarnings("ignore")
def test_an_onnx_file_that_would_forget_its_state_is_refused(tmp_path, is_batch_known):
    model = keras.Sequential([keras.Input(batch_shape=(2, 5, 3)), CoffeeLayer(2, stateful=True)])
    model(np.ones((2, 5, 3), "float32"))
    spec = keras.InputSpec(shape=(2 if is_batch_known else None, 5, 3), dtype="float32")
    with pytest.raises(ValueError, match="is stateful, and an ONNX file cannot keep a state"):
        model.export(tmp_path / "m.onnx", format="onnx", input_signature=[spec], verbose=False)


@only_torch
def test_a_program_of_one_length_refuses_others(tmp_path):
    import torch

    model = keras.Sequential([keras.Input((None, 3)), CoffeeLayer(2)])
    spec = keras.InputSpec(shape=(2, 5, 3), dtype="float32")
    model.export(tmp_path / "m.pt2", format="torch", input_signature=[spec], verbose=False)
    program = torch.export.load(tmp_path / "m.pt2").module()
    inputs = torch.ones(2, 6, 3)
    expected = model(inputs[:, :5]).numpy(force=True)
    # Another implementation than the kernel that the layer runs in.
    np.testing.assert_allclose(
        program(inputs[:, :5]).numpy(force=True), expected, rtol=1e-6, atol=1e-6
    )
    with pytest.raises(AssertionError, match="Guard failed"):
        program(inputs)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX keeps traces by shape")
@pytest.mark.filterwarnings("ignore")
def test_a_call_and_a_conversion_to_onnx_leave_each_other_alone():
    import jax
    import jax2onnx
    import onnxruntime

    layer, called, converted = MinGRU(2), (2, 6, 3), (2, 7, 3)
    layer(np.ones(called, "float32"))
    for shape in (called, converted):
        session = onnxruntime.InferenceSession(jax2onnx.to_onnx(layer, [shape]).SerializeToString())
        inputs = np.random.default_rng(0).normal(size=shape).astype("float32")
        (outputs,) = session.run(None, {session.get_inputs()[0].name: inputs})
        np.testing.assert_allclose(outputs, layer(inputs), rtol=0, atol=1e-6)
        # The layer itself runs in the kernels, before a conversion and after.
        assert "keras_coffee_linear_forward" in str(jax.make_jaxpr(layer)(inputs))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only there must a trace be told apart")
def test_only_a_converter_to_onnx_gets_a_loop_without_xla(tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.setenv("KERAS_COFFEE_KERNELS", "0")

    layer = CoffeeLayer(2)
    layer.build((None, None, 3))
    trace = tf.function(layer).get_concrete_function(tf.TensorSpec((None, None, 3)))
    functions = trace.graph.as_graph_def().library.function
    assert any("_XlaMustCompile" in function.attr for function in functions)
