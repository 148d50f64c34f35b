"""A recurrence of one's own: our layer beside `keras.layers.RNN` over the same step.

    KERAS_BACKEND=torch python benchmarks/own_cell.py
    KERAS_BACKEND=jax python benchmarks/own_cell.py --length 784 --batch 32 --units 32

Both models have the same weights. Their outputs and their losses over a few steps of training are
compared before anything is timed. A time is that of `train_on_batch`, the median of rounds in which
the two take turns.
"""

import dataclasses
import statistics
from typing import Any

import measuring


def main() -> None:
    parser = measuring.parser(__doc__)
    for name, default in (("batch", 32), ("length", 784), ("units", 32), ("repeats", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    where, backend, reference = measuring.prepare(options.core)

    import numpy as np

    models = build(options.length, options.units)
    generator = np.random.default_rng(0)
    shape = options.batch, options.length, options.units
    inputs, targets = generator.normal(size=(2, *shape)).astype("float32")
    outputs = [[model.predict_on_batch(inputs)] for model in models]
    found = [[[float(model.train_on_batch(inputs, targets))] for _ in range(3)] for model in models]
    for ours, theirs in zip([*outputs[:1], *found[0]], [*outputs[1:], *found[1]], strict=True):
        difference = max(measuring.differences(ours, theirs))
        if difference > measuring.TOLERANCE:
            raise SystemExit(f"The two differ by {difference:.1e}; nothing is timed.")

    def train(model):
        return lambda: model.train_on_batch(inputs, targets)

    times = measuring.take_turns([train(model) for model in models], [options.repeats] * 2)
    ours, theirs = (statistics.median(clock for _, clock in side.values()) for side in times)
    print("\n".join(measuring.environment(reference, where)))
    print(measuring.line(["backend", "ours, ms", "keras.layers.RNN, ms", "RNN / ours"]))
    print(measuring.line(["---"] * 4))
    cells = [backend, f"{1e3 * ours:.1f}", f"{1e3 * theirs:.1f}", f"{theirs / ours:.2f}"]
    print(measuring.line(cells))


def build(length: int, units: int) -> list[Any]:
    """Our model, and that of `keras.layers.RNN`, with the same weights."""
    import keras
    from keras import ops

    from keras_coffee.cells import Cell
    from keras_coffee.layers import RecurrentLayer, StateSpec, WeightSpec

    def advance(feedback, state, gate, candidate):
        z = ops.sigmoid(feedback * state + gate)
        return state + z * (candidate - state)

    @dataclasses.dataclass(frozen=True)
    class GatedCell(Cell):
        feedback: Any
        structure = "diagonal"
        broadcasts = True

        def step(self, state, inputs):
            return advance(self.feedback, state, *inputs)

    class Gated(RecurrentLayer):
        WEIGHTS = {"feedback": WeightSpec(("units",), "ones")}
        units = property(lambda self: units)

        def state_specs(self, dim):
            return [StateSpec((units,))]

        def output_size(self, dim):
            return units

        def scan(self, inputs, initial_state, mask):
            pair = tuple(ops.split(inputs, 2, axis=-1))
            return self.run_cell(GatedCell(self.feedback), pair, initial_state, mask)

    class KerasCell(keras.layers.Layer):
        state_size = output_size = units

        def build(self, input_shape):
            self.feedback = self.add_weight(shape=(units,), initializer="ones")

        def call(self, inputs, states):
            # One tensor a step is all that `keras.layers.RNN` takes.
            state = advance(self.feedback, states[0], *ops.split(inputs, 2, axis=-1))
            return state, [state]

    models = []
    for layer in (Gated(), keras.layers.RNN(KerasCell(), return_sequences=True)):
        dense = keras.layers.Dense(2 * units)
        models.append(keras.Sequential([keras.Input((length, units)), dense, layer]))
        models[-1].compile(keras.optimizers.SGD(0.1), "mse")
    models[1].set_weights(models[0].get_weights())
    return models


if __name__ == "__main__":
    main()
