"""Finished runs: one JSON file each."""

import collections
import contextlib
import json
import re


class UnusableError(Exception):
    """A file is not the one that it should be; the message says what to do."""


def read(folder):
    """The runs of each row, by its name, in the order of backend and seed."""
    runs = collections.defaultdict(list)
    for file in sorted(folder.glob("*.json")):
        run = load(file)
        runs[run["row"]].append(run)
    return runs


def load(file):
    with contextlib.suppress(json.JSONDecodeError):
        run = json.loads(file.read_text())
        if isinstance(run, dict) and {"row", "stopped_by", "history", "settings"} <= run.keys():
            return run
    raise UnusableError(
        f"{file} is no finished run. Delete it, or name another folder by --results."
    )


def main_runs(runs):
    """Those of the backend with the most seeds, so that a mean is one over seeds alone."""
    backends = [run["backend"] for run in runs]
    most = max(sorted(set(backends)), key=backends.count, default=None)
    return [run for run in runs if run["backend"] == most]


def write(file, run):
    text = json.dumps(run, indent=1)
    # One line for each list of numbers.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: _on_one_line(found[0]), text)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(text + "\n")
    unfinished.replace(file)


def is_done(file, identity, budget_minutes):
    """A run that the budget ended is taken up again when there is more of it."""
    if not file.exists():
        return False
    run = load(file)
    if any(run.get(key) != value for key, value in identity.items()):
        raise UnusableError(
            f"{file} is a run with other settings. Delete it, or name another folder by --results."
        )
    return run["stopped_by"] != "budget" or run["budget_minutes"] >= budget_minutes


def _on_one_line(numbers):
    return "".join(numbers.split()).replace(",", ", ")
