"""How parallel COFFEE is while it learns: Newton iterations after each epoch."""

import dataclasses

import keras
from experiments import TASKS, Beyond
from models import gated
from rows import Row
from training import METRICS

from keras_coffee import CoffeeLayer, solvers
from keras_coffee.callbacks import SolverMonitor

STEPS, WINDOW = 256, 64


class Watch(keras.callbacks.Callback):
    """A `SolverMonitor` of the model that is trained."""

    def __init__(self, symbols):
        super().__init__()
        self.symbols = symbols
        self.monitor = None

    def on_train_begin(self, logs=None):
        solver = solvers.Newton(window=WINDOW)
        self.monitor = SolverMonitor(self.model.get_layer("coffee"), self.symbols, solver)
        self.monitor.set_model(self.model)
        self.monitor.on_train_begin(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.monitor.on_epoch_end(epoch, logs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(Beyond):
    """One layer of COFFEE on a task, solved by Newton's method after each epoch."""

    mixer: str = "coffee"
    watched_steps: int = STEPS
    metrics = (*METRICS, "coffee_iterations", "coffee_converged")

    def smoke(self):
        return dataclasses.replace(super().smoke(), watched_steps=16)

    def build_model(self):
        task = self._data("train", 1, 1, 0)
        return gated([CoffeeLayer(self.size, name="coffee")], task.vocabulary, task.classes)

    def callbacks(self):
        lengths = {"max_length", "length"} & set(TASKS[self.task].train)
        settings = dict.fromkeys(lengths, self.watched_steps)
        count = min(32, self.test_sequences)
        return [*super().callbacks(), Watch(self._data("test", count, count, 0, **settings)[0][0])]


ROWS = [
    Row(
        f"newton-{name}",
        f"Newton iterations of COFFEE on {TASKS[name].title}",
        Watched.of(name, learning_rate=0.003),
        None,
    )
    for name in ("parity", "flipflop", "recall", "copying", "induction")
]
