"""A search on the disk: a folder that an interrupted one goes on in."""

import functools
import json
import os
import signal

import keras_tuner


class UnusableError(Exception):
    """A folder or an argument is not what it should be; the message says what to do."""


class Project:
    """The folder of one search: KerasTuner's files, and what the search is.

    Args:
        folder: A `pathlib.Path`.
        identity: Settings that two searches must have in common to be one, for JSON.
        trials: How many, for random search and Bayesian optimization. A search with more trials
            goes on in the same folder.
    """

    def __init__(self, folder, identity, trials):
        self.folder = folder
        self.identity = identity
        self.trials = trials

    def claim(self):
        """Writes down what this search is, or checks that it is the one that was begun here."""
        if not self._identity.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(self._identity, self.identity)
        elif _read(self._identity) != json.loads(json.dumps(self.identity)):
            raise UnusableError(
                f"{self.folder} is a search with other settings. Delete it, or name another one by "
                "--work."
            )

    @property
    def is_finished(self):
        return self._finished.exists() and _read(self._finished)["trials"] == self.trials

    def finish(self):
        _write(self._finished, {"trials": self.trials})

    def make_tuner(self, hypermodel):
        """KerasTuner's tuner of this folder, with the trials that there are."""
        try:
            tuner = self._new_tuner(hypermodel)
            # By itself a tuner goes on only under the name that it had: a chief that follows a
            # single process, or the other way round, would begin anew. Workers ask the chief.
            is_worker = not isinstance(tuner.oracle, keras_tuner.Oracle)
            if not is_worker and (self.folder / "oracle.json").exists():
                _reload(tuner.oracle)
            if not is_worker and "KERASTUNER_TUNER_ID" not in os.environ:
                _hold_interrupts(tuner.oracle)
        except json.JSONDecodeError as error:
            raise UnusableError(
                f"A file in {self.folder} was cut off while it was written: {error}. Delete the "
                "folder, or name another one by --work."
            ) from error
        return tuner

    def _new_tuner(self, hypermodel):
        common = {
            "objective": hypermodel.objective,
            "seed": hypermodel.seed + 1,  # 0 would be drawn anew
            "directory": self.folder.parent,
            "project_name": self.folder.name,
            "overwrite": False,
            # KerasTuner passes over a trial that raised an error. Here the first one ends the
            # search with that error, and the trial is run again when the search is.
            "max_consecutive_failed_trials": 1,
        }
        if self.identity["tuner"] == "hyperband":
            return keras_tuner.Hyperband(hypermodel, max_epochs=hypermodel.epochs, **common)
        common["max_trials"] = self.trials
        if self.identity["tuner"] == "random":
            return keras_tuner.RandomSearch(hypermodel, **common)
        # Drawn at random before the first model of the scores.
        few = max(1, self.trials // 3)
        return keras_tuner.BayesianOptimization(hypermodel, num_initial_points=few, **common)

    @property
    def _identity(self):
        return self.folder / "search.json"

    @property
    def _finished(self):
        return self.folder / "finished.json"


def _reload(oracle):
    oracle.reload()
    # A chief writes that a trial has ended while it still counts as under way, and so to be run
    # again, until the next one begins.
    state = oracle.get_state()
    state["retry_queue"] = [
        trial for trial in state["retry_queue"] if trial not in state["end_order"]
    ]
    oracle.set_state(state)


def _hold_interrupts(oracle):
    """Ctrl-C waits for the oracle: KerasTuner would leave a file behind that is cut off."""
    for name in ("create_trial", "update_trial", "end_trial", "save"):
        setattr(oracle, name, _uninterrupted(getattr(oracle, name)))


def _uninterrupted(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        received = []
        before = signal.signal(signal.SIGINT, lambda *given: received.append(given))
        try:
            return function(*args, **kwargs)
        finally:
            signal.signal(signal.SIGINT, before)
            if received and callable(before):
                before(*received[0])

    return call


def _read(file):
    return json.loads(file.read_text())


def _write(file, content):
    # Chief and workers may write the same at once.
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(file)
