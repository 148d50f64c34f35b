"""One step of a stream, exported and run in a loop, gives what the whole sequence gives."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_coffee import CoffeeLayer, S6Layer, Stream

BACKEND = keras.config.backend()
LENGTH, DIM = 5, 3
# For batches of other sizes than that of the export.
SIZES = [3, 1]


@pytest.fixture(scope="module")
def model():
    """Blocks, a convolution and a layer of Keras; two outputs, one of them by its name."""
    x = inputs = keras.Input((None, DIM))
    for k in range(2):
        x = x + CoffeeLayer(4, name=f"coffee_{k}")(layers.RMSNormalization()(x))
    x = layers.Conv1D(DIM, 2, padding="causal", name="conv")(x)
    lstm = layers.LSTM(4, return_sequences=True, name="lstm")(x)
    model = keras.Model(inputs, {"s6": S6Layer(2, name="s6")(x), "dense": layers.Dense(2)(lstm)})
    generator = np.random.default_rng(0)
    for weight in model.weights:
        values = generator.normal(size=weight.shape) / 2
        weight.assign(-abs(values) if weight.name == "transition" else values)
    return model


@pytest.fixture(scope="module")
def step(model):
    return Stream(model).as_model()


def assert_equals_the_full_pass(model, run):
    """`run` takes a dict of arrays and returns one."""
    stream = Stream(model)
    for batch in SIZES:
        inputs = np.random.default_rng(1).normal(size=(batch, LENGTH, DIM)).astype("float32")
        expected = {k: keras.ops.convert_to_numpy(x) for k, x in model(inputs).items()}
        state = stream.get_initial_state(batch)
        state = {k: keras.ops.convert_to_numpy(x) for k, x in state.items()}
        for k in range(LENGTH):
            results = run({"inputs": inputs[:, k], **state})
            assert set(results) == {"outputs.s6", "outputs.dense", *(f"new.{k}" for k in state)}
            for name, exact in expected.items():
                actual = results[f"outputs.{name}"]
                np.testing.assert_allclose(actual, exact[:, k], rtol=1e-5, atol=1e-5)
            state = {name: results[f"new.{name}"] for name in state}


def test_the_step_as_a_model_equals_the_full_pass(model, step):
    def run(tensors):
        return {k: keras.ops.convert_to_numpy(x) for k, x in step(tensors).items()}

    assert_equals_the_full_pass(model, run)
    states = ["coffee_0", "coffee_1", "conv", "lstm.0", "lstm.1", "s6"]
    assert sorted(step.input) == sorted(["inputs", *states])
    assert step.count_params() == model.count_params()
    shapes = {name: x.shape for name, x in step.output.items()}
    assert shapes["outputs.dense"] == (None, 2)
    assert shapes["new.coffee_0"] == (None, DIM, 4)


@pytest.mark.filterwarnings("ignore")  # of Keras' exporter, about JAX
@pytest.mark.skipif(BACKEND == "torch", reason="Keras refuses it there")
def test_the_step_as_a_saved_model_equals_the_full_pass(model, step, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    step.export(tmp_path / "step", format="tf_saved_model", verbose=False)
    loaded = tensorflow.saved_model.load(tmp_path / "step")

    def run(tensors):
        return {k: x.numpy() for k, x in loaded.serve(tensors).items()}

    assert_equals_the_full_pass(model, run)


@pytest.mark.filterwarnings("ignore")  # of the converters, about themselves
def test_the_step_as_an_onnx_file_equals_the_full_pass(model, step, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    path, names = tmp_path / "step.onnx", sorted(step.output)
    if BACKEND == "torch":
        export_onnx_from_torch(step, path)
    else:
        step.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path)
    assert sorted(x.name for x in session.get_inputs()) == sorted(step.input)
    if BACKEND != "jax":  # whose converter names the outputs itself
        assert [x.name for x in session.get_outputs()] == names

    def run(tensors):
        return dict(zip(names, session.run(None, tensors), strict=True))

    assert_equals_the_full_pass(model, run)


def export_onnx_from_torch(step, path):
    import torch

    tensors = {name: torch.zeros(2, *x.shape[1:]) for name, x in step.input.items()}
    sizes = {name: {0: torch.export.Dim("batch")} for name in tensors}
    torch.onnx.export(
        step.eval(),
        (tensors, {}),  # a dict at the end would be taken for keyword arguments
        path,
        dynamo=True,
        dynamic_shapes=[(sizes,)],
        input_names=list(tensors),
        output_names=sorted(step.output),
        verbose=False,
    )


@pytest.mark.skipif(BACKEND != "torch", reason="an exporter of PyTorch")
def test_the_step_as_a_program_of_pytorch_equals_the_full_pass(model, step, tmp_path):
    import torch

    sizes = {name: {0: torch.export.Dim("batch")} for name in step.input}
    path = tmp_path / "step.pt2"
    step.export(path, format="torch", dynamic_shapes=sizes, verbose=False)
    program = torch.export.load(path).module()

    def run(tensors):
        results = program({name: torch.as_tensor(x) for name, x in tensors.items()})
        return {name: x.numpy(force=True) for name, x in results.items()}

    assert_equals_the_full_pass(model, run)
