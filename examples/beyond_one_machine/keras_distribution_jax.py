"""JAX: `keras.distribution` divides the batch, or the features too, among eight devices.

    python examples/beyond_one_machine/keras_distribution_jax.py

The devices are parts of one CPU. One training step by `fit` must take the gradients that it takes
on a single device.
"""

import argparse
import os

if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=form).parse_args()

os.environ["KERAS_BACKEND"] = "jax"
# Eight devices out of one CPU. Without these two lines: the accelerators of the machine.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import jax
import keras
from one_step import LAYERS, build_model, fit_one_step, largest_difference

# The weights of the layers that have the features as their first axis: all of them.
WEIGHTS = (
    *("transition", "gate", "readout", "input_matrix", "output_gate"),
    *("log_transition", "input_projection", "output_projection", "step_projection"),
)


def data_parallel():
    """Each of eight devices has all weights, and an eighth of every batch."""
    return keras.distribution.DataParallel()


def model_parallel():
    """Two rows of four devices: a row has half of the batch, a device a quarter of the features."""
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "features"), devices)
    layout_map = keras.distribution.LayoutMap(mesh)
    for name in WEIGHTS:
        # Not ".*recurrence.*": that is also the path of the layer's outputs, with the batch first.
        layout_map[f".*recurrence/{name}"] = ("features", None)
    return keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")


class Probe(keras.layers.Layer):
    """Says, when the training step is compiled, which part of its inputs a device computes."""

    def call(self, inputs):
        def say(sharding):
            part = sharding.shard_shape(inputs.shape)
            print(f"outputs: {part} of {inputs.shape} on each device")

        jax.debug.inspect_array_sharding(jax.lax.stop_gradient(inputs), callback=say)
        return inputs


def main():
    print(f"{jax.device_count()} devices")
    for layer in LAYERS:
        expected = fit_one_step(build_model(layer))
        for distribution in (data_parallel(), model_parallel()):
            print(f"\n{layer.__name__}, {type(distribution).__name__}")
            with distribution.scope():  # keras.distribution.set_distribution does it for good
                model = build_model(layer, Probe())
                gradients = fit_one_step(model)
            for weight in model.get_layer("recurrence").weights:
                part = weight.value.sharding.shard_shape(weight.shape)
                print(f"{weight.name}: {part} of {weight.shape} on each device")
            difference = largest_difference(gradients, expected)
            print(f"largest difference of a gradient: {difference:.1e}")


if __name__ == "__main__":
    main()
