"""Chief and workers: a worker that is killed, and one that fails."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "searches" / "distributed.py"

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="processes do not depend on the backend: once will do"
)


def trials_of(project):
    files = sorted(project.glob("trial_*/trial.json"))
    return {file.parent.name.removeprefix("trial_"): json.loads(file.read_text()) for file in files}


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, "the search ended too early"
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    raise TimeoutError


def oracle_of(folder):
    """What the chief has on the disk, or nothing while it writes."""
    try:
        (file,) = folder.glob("*/oracle.json")
        return json.loads(file.read_text())
    except ValueError:
        return None


def victim(oracle):
    """Once a trial has ended: a worker with another one under way, that trial, those that ended."""
    ended = oracle["end_order"] if oracle else []
    for worker, trial in oracle["ongoing_trials"].items() if ended else ():
        # The chief writes that a trial has ended before it takes it from the worker.
        if trial not in ended:
            return worker, trial, ended
    return None


def test_a_killed_worker_loses_no_trial(tmp_path):
    command = [sys.executable, SCRIPT, "induction-heads", "--workers", "2"]
    command += ["--trials", "4", "--epochs", "2", "--steps", "100", "--work", tmp_path]
    command += ["--only", "n=1", "--only", "dim=1,2"]
    output = tmp_path / "output.txt"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with output.open("w") as stream:
        process = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=subprocess.STDOUT, text=True
        )
    try:
        worker, killed, ended = wait_for(lambda: victim(oracle_of(tmp_path)), process)
        (project,) = tmp_path.glob("*/")
        finished = {number: trials_of(project)[number] for number in ended}
        pid = re.search(rf"{worker}: process (\d+)", output.read_text())[1]
        os.kill(int(pid), signal.SIGKILL)
        assert process.wait(600) == 0, output.read_text()
    finally:
        process.terminate()
        process.wait()
    printed, trials = output.read_text(), trials_of(project)
    assert f"{worker} was killed by signal 9; its trial starts anew." in printed
    assert {trial["status"] for trial in trials.values()} == {"COMPLETED"} and len(trials) == 4
    assert {number: trials[number] for number in finished} == finished
    assert killed in trials and killed not in finished
    assert "4 trials, the best of them" in printed
    # Nothing is left behind.
    for pid in re.findall(r": process (\d+)", printed):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_an_error_in_a_worker_ends_all_processes(tmp_path):
    command = [sys.executable, SCRIPT, "mnist", "--workers", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_COFFEE_DATA": str(tmp_path / "no")}
    result = subprocess.run(
        [*command, "--work", tmp_path], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 1
    log = re.search(r"worker-0 ended with status 1. See (.*worker-0.log)\.", result.stderr)[1]
    assert "FileNotFoundError" in Path(log).read_text() + result.stderr
