"""Exports the models below, or runs what was exported, for test_export.py.

python worker.py export DIRECTORY MODEL,... FORMAT...   under KERAS_BACKEND; keeps their outputs
python worker.py run DIRECTORY FORMAT                   in a process without Keras and the backend
"""

import sys
from pathlib import Path

import numpy as np

FEATURES, SYMBOLS = 3, 9
# Batch and time, both unknown when the model is exported, but in "onnx-fixed": the first, then.
SIZES = [(3, 20), (1, 1)]
SUFFIXES = {"tf_saved_model": "", "onnx": ".onnx", "onnx-fixed": ".onnx", "torch": ".pt2"}


def build_models():
    import keras

    from keras_coffee import CoffeeLayer, LinearizedS6Layer, S6Layer
    from keras_coffee.layers import LRU, MinGRU, SoftminLogits, SymbolEmbedding
    from keras_coffee.ops import linear_scan, selective_scan

    class Average(keras.layers.Layer):
        def call(self, x):
            return linear_scan(keras.ops.sigmoid(x), x)[0]

    class AverageToCome(keras.layers.Layer):
        def call(self, x):
            return linear_scan(keras.ops.sigmoid(x), x, reverse=True)[0]

    class Mamba(keras.layers.Layer):
        def call(self, x, mask=None):
            transition, row = -keras.ops.ones((FEATURES, 4)), keras.ops.ones(FEATURES)
            matrices = [keras.ops.tile(x[..., :1], (1, 1, 4))] * 2
            options = {"discretization": "mamba", "skip": row, "delta_bias": row}
            options |= {"delta_softplus": True, "mask": mask}
            return selective_scan(x, x, transition, *matrices, **options)[0]

    # Without the sigmoid, COFFEE stays at 0: nothing to compare.
    layers = {
        "coffee": CoffeeLayer(4),
        "coffee-filtered": CoffeeLayer(
            4, output_filter=True, use_input_matrix=True, recompute=True
        ),
        "coffee-gated": CoffeeLayer(4, input_gate="full", use_gate_bias=True),
        "coffee-without-feedback": CoffeeLayer(4, feedback=None),
        "one-state": CoffeeLayer(1),
        "s6": S6Layer(4),
        "linearized-s6": LinearizedS6Layer(4, return_sequences=False),
        "both-ways": keras.layers.Bidirectional(S6Layer(4)),
        "linear-scan": Average(),
        "mamba": Mamba(),
        "linear-scan-reversed": AverageToCome(),
    }
    features = keras.Input((None, FEATURES), name="inputs")
    models = {name: keras.Model(features, layer(features)) for name, layer in layers.items()}
    _, state = CoffeeLayer(4, return_state=True)(features)
    handed_over = S6Layer(4, return_sequences=False)(features, initial_state=state)
    models["handed-over"] = keras.Model(features, handed_over)
    symbols = keras.Input((None,), dtype="int32", name="inputs")
    padded = keras.layers.Embedding(SYMBOLS, FEATURES, mask_zero=True)(symbols)
    models["masked"] = keras.Model(symbols, S6Layer(4)(CoffeeLayer(4)(padded)))
    embedding = SymbolEmbedding(SYMBOLS, 16)
    hidden = CoffeeLayer(4)(embedding(symbols))
    models["classifier"] = keras.Model(symbols, keras.layers.Dense(SYMBOLS)(hidden))
    models["softmin"] = keras.Model(symbols, SoftminLogits(embedding, last=1)(hidden))
    for name, layer in {"min-gru": MinGRU(4), "lru": LRU(4, n=3)}.items():
        models[name] = keras.Model(features, layer(features))
    padded = keras.layers.Embedding(SYMBOLS, FEATURES, mask_zero=True)(symbols)
    models["masked-mamba"] = keras.Model(symbols, Mamba()(padded))
    generator = np.random.default_rng(0)
    for model in models.values():
        for weight in model.weights:
            value = 0.5 * generator.normal(size=weight.shape)
            weight.assign(-np.abs(value) if weight.name.endswith("transition") else value)
    return models


def inputs_of(name):
    generator = np.random.default_rng(1)
    if name in ("masked", "masked-mamba", "classifier", "softmin"):
        return [generator.integers(SYMBOLS, size=size).astype("int32") for size in SIZES]
    return [generator.normal(size=(*size, FEATURES)).astype("float32") for size in SIZES]


def export(directory, names, *forms):
    import keras

    models = build_models()
    models = {name: models[name] for name in names.split(",")}
    for name, model in models.items():
        outputs = [keras.ops.convert_to_numpy(model(x, training=False)) for x in inputs_of(name)]
        np.savez(directory / f"{name}.npz", *outputs)
    for form in forms:
        folder = directory / form
        folder.mkdir()
        for name in ("coffee", "s6") if form == "onnx-fixed" else models:
            if name == "lru" and form == "onnx":
                continue  # no operation of ONNX takes complex numbers
            try:
                path = folder / (name + SUFFIXES[form])
                export_model(form, models[name], inputs_of(name)[0], path)
            except NotImplementedError as error:
                (folder / f"{name}.refused").write_text(str(error))


def export_model(form, model, inputs, path):
    import keras

    match form:
        case "torch":
            model.export(path, format=form, dynamic_shapes=unknown_sizes(), verbose=False)
        case "onnx" if keras.config.backend() == "torch":
            export_onnx_from_torch(model, inputs, path)
        case "onnx-fixed":
            spec = keras.InputSpec(shape=inputs.shape, dtype=inputs.dtype.name)
            model.export(path, format="onnx", input_signature=[spec], verbose=False)
        case _:
            model.export(path, format=form, verbose=False)


def unknown_sizes():
    from torch.export import Dim

    return {0: Dim("batch"), 1: Dim("time")}


def export_onnx_from_torch(model, inputs, path):
    import torch

    sizes = [(unknown_sizes(),)]
    inputs = (torch.from_numpy(inputs),)
    torch.onnx.export(model.eval(), inputs, path, dynamo=True, dynamic_shapes=sizes, verbose=False)


def run(directory, form):
    folder = directory / form
    for name in [path.stem for path in directory.glob("*.npz")]:
        path = folder / (name + SUFFIXES[form])
        if not path.exists():  # refused
            continue
        try:
            compute = load(form, path)
        except NotImplementedError as error:
            (folder / f"{name}.refused").write_text(str(error))
            continue
        inputs = inputs_of(name)[:1] if form == "onnx-fixed" else inputs_of(name)
        np.savez(folder / f"{name}-run.npz", *map(compute, inputs))


def load(form, path):
    match form:
        case "tf_saved_model":
            import tensorflow as tf

            program = tf.saved_model.load(path)
            return lambda x: program.serve(x).numpy()
        case "torch":
            import torch

            program = torch.export.load(path).module()
            return lambda x: program(torch.from_numpy(x)).numpy(force=True)
        case _:
            import onnxruntime

            try:
                session = onnxruntime.InferenceSession(path)
            except onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph as error:
                raise NotImplementedError(str(error)) from error
            return lambda x: session.run(None, {session.get_inputs()[0].name: x})[0]


if __name__ == "__main__":
    action, directory, *arguments = sys.argv[1:]
    {"export": export, "run": run}[action](Path(directory), *arguments)
    loaded = "keras_coffee" in sys.modules
    if action == "run" and loaded:
        raise RuntimeError("What was exported needs the package that it came from.")
