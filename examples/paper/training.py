"""One run of an experiment: trained, interrupted and resumed, and judged on fresh data."""

import abc
import dataclasses
import json
import platform
import sys
import time

import keras
import numpy as np
from records import UnusableError

import keras_coffee

METRICS = ("loss", "accuracy", "val_loss", "val_accuracy")


class Experiment(abc.ABC):
    """A frozen dataclass of settings, among them `learning_rate` and `epochs`."""

    # What is kept of each epoch.
    metrics = METRICS

    @abc.abstractmethod
    def build_model(self):
        """A model of symbols or images to logits, not compiled."""

    @abc.abstractmethod
    def load_data(self, seed):
        """Data sets for training, validation and test, each with an `epoch`."""

    @abc.abstractmethod
    def smoke(self):
        """The same for a few steps."""

    def compile(self, model):
        model.compile(
            optimizer=keras.optimizers.Adam(self.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution(),
        )

    def callbacks(self):
        """The rules by which the rate is lowered or training ends."""
        return []

    def facts(self, model):
        """What else is worth keeping of the best model, as a dictionary for JSON."""
        return {}


def run(experiment, seed, folder, budget_minutes):
    """Trains until the experiment's rule, its epochs or the time ends it.

    Goes on where `folder` says that an interrupted run was. An interruption changes no number
    but the time.

    Returns:
        What is worth keeping of the run, as a dictionary for JSON.
    """
    keras.utils.set_random_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    train, validation, test = experiment.load_data(seed)
    model = experiment.build_model()
    experiment.compile(model)
    identity = identity_of(experiment, seed)
    progress = Progress(folder, budget_minutes, identity, experiment.metrics)
    epochs_done = progress.resume(model)
    # Keras advances the epoch of the data before each pass, and that of validation after it too.
    train.epoch, validation.epoch = epochs_done, 2 * epochs_done
    if not progress.is_finished:
        model.fit(
            train,
            validation_data=validation,
            initial_epoch=epochs_done,
            epochs=experiment.epochs,
            callbacks=[*experiment.callbacks(), progress],
            shuffle=False,
            verbose=1 if sys.stdout.isatty() else 2,
        )
    progress.load_best(model)
    loss, accuracy = model.evaluate(test, verbose=0)
    # A copy without the optimizer, for the one of a model trained on torch loads nowhere else.
    keras.Model(model.inputs, model.outputs).save(folder / "best.keras")
    return {
        **identity,
        "versions": versions(),
        "parameters": sum(int(np.prod(weight.shape)) for weight in model.trainable_weights),
        "loss": loss,
        "accuracy": accuracy,
        **experiment.facts(model),
        **progress.summary(),
    }


def identity_of(experiment, seed):
    """What two runs must have in common to give the same numbers."""
    return {
        "experiment": type(experiment).__name__,
        "settings": dataclasses.asdict(experiment),
        "seed": seed,
        "backend": keras.config.backend(),
    }


def steps_per_execution():
    """Several steps in one call, where the backend has that."""
    return 1 if keras.config.backend() == "torch" else 10


def versions():
    framework = sys.modules[keras.config.backend()]
    modules = (keras_coffee, keras, np, framework)
    return {module.__name__: module.__version__ for module in modules} | {
        "python": platform.python_version()
    }


class Progress(keras.callbacks.Callback):
    """Keeps the weights of the last and the best epoch, and the history that led to them.

    `progress.json` is replaced after the files that it names are whole, so that an interruption
    at any moment leaves a state to go on from. To be the last of the callbacks.
    """

    def __init__(self, folder, budget_minutes, identity, metrics=METRICS):
        super().__init__()
        self.metrics = metrics
        self.folder = folder
        self.budget_seconds = 60 * budget_minutes
        self.state = {"identity": identity, "history": [], "best_epoch": 0}
        self.state |= {"seconds": 0.0, "stopped_by": None}
        self._start = 0.0

    @property
    def is_finished(self):
        if self.state["stopped_by"] == "budget":
            return self.state["seconds"] >= self.budget_seconds
        return self.state["stopped_by"] is not None

    def resume(self, model):
        """Takes up the run that the folder holds, if any, and gives its number of epochs."""
        file = self.folder / "progress.json"
        if file.exists():
            self.state = self._checked(file)
            model.optimizer.build(model.trainable_variables)
            model.load_weights(self._weights(self._epochs_done()))
        return self._epochs_done()

    def _checked(self, file):
        remedy = f"Delete {self.folder}, or name another one by --work."
        try:
            state = json.loads(file.read_text())
            complete = self.state.keys() <= state.keys()
        except (json.JSONDecodeError, AttributeError):
            complete = False
        if not complete:
            raise UnusableError(f"{file} is damaged. {remedy}")
        if state["identity"] != self.state["identity"]:
            raise UnusableError(f"{file} is of a run with other settings. {remedy}")
        for epoch in {len(state["history"]), state["best_epoch"]}:
            if not self._weights(epoch).exists():
                raise UnusableError(f"{self._weights(epoch)} is missing. {remedy}")
        return state

    def load_best(self, model):
        model.load_weights(self._weights(self.state["best_epoch"]))

    def summary(self):
        history = self.state["history"]
        return {
            "epochs": len(history),
            "best_epoch": self.state["best_epoch"],
            "stopped_by": self.state["stopped_by"],
            "seconds": round(self.state["seconds"], 1),
            "history": {name: [epoch[name] for epoch in history] for name in self.metrics},
        }

    def on_train_begin(self, logs=None):
        self._start = time.perf_counter() - self.state["seconds"]

    def on_epoch_end(self, epoch, logs=None):
        history = self.state["history"]
        history.append({name: float(logs[name]) for name in self.metrics})
        # NaN is never the best; if all are NaN, the first epoch is.
        losses = [np.nan_to_num(epoch["val_loss"], nan=np.inf) for epoch in history]
        self.state["best_epoch"] = 1 + int(np.argmin(losses))
        self.state["seconds"] = time.perf_counter() - self._start
        self.state["stopped_by"] = self._reason_to_stop()
        self.model.stop_training = self.state["stopped_by"] is not None
        self._save()

    def _reason_to_stop(self):
        if self.model.stop_training:
            return "target"
        if self._epochs_done() == self.params["epochs"]:
            return "epochs"
        return "budget" if self.state["seconds"] >= self.budget_seconds else None

    def _save(self):
        kept = {self._weights(self._epochs_done()), self._weights(self.state["best_epoch"])}
        self.model.save_weights(self._weights(self._epochs_done()))
        unfinished = self.folder / "progress.json.new"
        unfinished.write_text(json.dumps(self.state))
        unfinished.replace(self.folder / "progress.json")
        for file in set(self.folder.glob("*.weights.h5")) - kept:
            file.unlink()

    def _epochs_done(self):
        return len(self.state["history"])

    def _weights(self, epoch):
        return self.folder / f"epoch-{epoch}.weights.h5"
