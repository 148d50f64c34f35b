"""How parallel COFFEE is while it learns: Newton iterations after epochs of its training."""

import dataclasses

import keras
from experiments import TASKS, Beyond
from models import gated
from rows import Row
from training import METRICS

from keras_coffee import CoffeeLayer, solvers
from keras_coffee.callbacks import SolverMonitor

SEQUENCES, STEPS, WINDOW = 8, 256, 64
LOOKS = 15  # in a training


class Watch(keras.callbacks.Callback):
    """A `SolverMonitor` of the model in training, after the first epoch, the last and some between.

    Args:
        symbols: What the model reads.
        every: Epochs from one look to the next.
    """

    def __init__(self, symbols, every):
        super().__init__()
        self.symbols = symbols
        self.every = every
        self.monitor = None
        self.seen = {}

    def on_train_begin(self, logs=None):
        solver = solvers.Newton(window=WINDOW)
        self.monitor = SolverMonitor(self.model.get_layer("coffee"), self.symbols, solver)
        self.monitor.set_model(self.model)
        self.monitor.on_train_begin(logs)

    def on_epoch_end(self, epoch, logs=None):
        if not self.seen or (epoch + 1) % self.every == 0 or epoch + 1 == self.params["epochs"]:
            self.monitor.on_epoch_end(epoch, self.seen)
        logs |= self.seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(Beyond):
    """One layer of COFFEE on a task, solved by Newton's method as it learns."""

    mixer: str = "coffee"
    watched_steps: int = STEPS
    metrics = (*METRICS, "coffee_iterations", "coffee_converged")

    def smoke(self):
        return dataclasses.replace(super().smoke(), watched_steps=16)

    def build_model(self):
        task = self._data("train", 1, 1, 0)
        return gated([CoffeeLayer(self.size, name="coffee")], task.vocabulary, task.classes)

    @property
    def every(self):
        return max(1, self.epochs // LOOKS)

    def callbacks(self):
        lengths = {"max_length", "length"} & set(TASKS[self.task].train)
        settings = dict.fromkeys(lengths, self.watched_steps)
        count = min(SEQUENCES, self.test_sequences)
        symbols = self._data("test", count, count, 0, **settings)[0][0]
        return [*super().callbacks(), Watch(symbols, self.every)]


ROWS = [
    Row(
        f"newton-{name}",
        f"Newton iterations of COFFEE on {TASKS[name].title}",
        Watched.of(name, learning_rate=0.003),
        None,
    )
    for name in TASKS
]
