"""`keras.layers.GRU` where this library wants a recurrent layer of its own, as in a block."""

from typing import Any

import keras

from keras_coffee.layers import RecurrentLayer, StateSpec


@keras.saving.register_keras_serializable(package="keras_coffee_examples")
class GRU(RecurrentLayer):
    """A GRU with the states, masks and streams of `RecurrentLayer`; it takes no `reset`."""

    KIND = "nonlinear"

    def __init__(self, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        if self.solver != "auto" or self.recompute:
            raise ValueError(
                f"keras.layers.GRU has no solver to choose, received solver={self.solver!r} and "
                f"recompute={self.recompute}. Leave `solver` and `recompute` out."
            )
        self.units = units
        self.gru = keras.layers.GRU(
            units, return_sequences=True, return_state=True, dtype=self.dtype_policy
        )

    def state_specs(self, dim):
        return [StateSpec((self.units,))]

    def output_size(self, dim):
        return self.units

    def build(self, inputs_shape, initial_state_shape=None):
        super().build(inputs_shape)
        self.gru.build(inputs_shape)

    def scan(self, inputs, initial_state, mask):
        outputs, state = self.gru(inputs, initial_state=initial_state, mask=mask)
        return outputs, state

    def get_config(self):
        return {**super().get_config(), "units": self.units}
