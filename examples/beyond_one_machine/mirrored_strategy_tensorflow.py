"""TensorFlow: `tf.distribute.MirroredStrategy` divides the batch among two devices.

    python examples/beyond_one_machine/mirrored_strategy_tensorflow.py

The devices are parts of one CPU. One training step by `fit` must take the gradients that it takes
on a single device.
"""

import argparse
import os
import sys

if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=form).parse_args()

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from one_step import LAYERS, build_model, fit_one_step, largest_difference

# Two devices out of one CPU. With the accelerators of the machine: none of this, and
# MirroredStrategy needs no argument.
tf.config.set_visible_devices([], "GPU")
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], 2 * [tf.config.LogicalDeviceConfiguration()]
)
DEVICES = ["CPU:0", "CPU:1"]


class Probe(keras.layers.Layer):
    """Says in every training step which part of the batch a device computes."""

    def call(self, inputs):
        replica = tf.distribute.get_replica_context()
        if replica is not None:  # it is when the model is built
            which = (replica.replica_id_in_sync_group, "of", replica.num_replicas_in_sync)
            tf.print("outputs:", tf.shape(inputs), "on replica", *which, output_stream=sys.stdout)
        return inputs


def main():
    # One strategy for all models: the reductions of a second one get mixed up with the first's.
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    for layer in LAYERS:
        expected = fit_one_step(build_model(layer))
        print(f"\n{layer.__name__}, MirroredStrategy", flush=True)
        with strategy.scope():
            gradients = fit_one_step(build_model(layer, Probe()))
        difference = largest_difference(gradients, expected)
        print(f"largest difference of a gradient: {difference:.1e}")


if __name__ == "__main__":
    main()
