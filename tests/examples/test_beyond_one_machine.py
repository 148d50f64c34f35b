"""Training on several devices takes the gradients of one, and divides the work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "beyond_one_machine"
GUIDE = ROOT / "docs" / "beyond_one_machine.md"
BACKEND = keras.config.backend()
COMMANDS = {
    "jax": "python examples/beyond_one_machine/keras_distribution_jax.py",
    "tensorflow": "python examples/beyond_one_machine/mirrored_strategy_tensorflow.py",
    "torch": "torchrun --standalone --nproc-per-node=2 "
    "examples/beyond_one_machine/distributed_data_parallel_torch.py",
}
LAYERS = ("CoffeeLayer", "S6Layer", "LinearizedS6Layer")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Where XLA writes down what it has made of the training steps."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def output(compiled):
    return run(COMMANDS[BACKEND], compiled)


def run(command, compiled):
    program, *arguments = command.split()
    module = ["-m", "torch.distributed.run"] if program == "torchrun" else []
    flags = f"--xla_dump_to={compiled} --xla_dump_hlo_module_re=.*train_step --xla_dump_hlo_as_text"
    result = subprocess.run(
        [sys.executable, *module, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_gradients_are_those_of_one_device(output):
    differences = re.findall(r"largest difference of a gradient: (\S+)", output)
    assert len(differences) == {"jax": 6, "tensorflow": 3, "torch": 6}[BACKEND]
    assert all(float(difference) < 1e-5 for difference in differences), output


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution")
def test_each_device_holds_its_part_of_outputs_and_weights(output):
    assert "8 devices" in output
    cases = re.findall(r"(\w+), (\w+)\n(.+?)\nlargest", output, re.DOTALL)
    engines = ("DataParallel", "ModelParallel")
    assert [case[:2] for case in cases] == [
        (layer, engine) for layer in LAYERS for engine in engines
    ]
    outputs = {"DataParallel": "(2, 10, 16)", "ModelParallel": "(8, 10, 4)"}
    rows = {"DataParallel": 16, "ModelParallel": 4}
    for layer, engine, lines in cases:
        first, *weights = lines.splitlines()
        assert first == f"outputs: {outputs[engine]} of (16, 10, 16) on each device"
        assert len(weights) == 3 if layer == "CoffeeLayer" else 4
        for line in weights:
            part = rf"\w+: \({rows[engine]}, (\d+)\) of \(16, \1\) on each device"
            assert re.fullmatch(part, line), line


@pytest.mark.skipif(BACKEND != "jax", reason="XLA divides the work")
def test_no_device_runs_the_recurrence_of_another(output, compiled):
    # The trajectory that the loops over time keep, time by batch by features by states.
    programs = sorted(compiled.glob("*train_step*after_optimizations.txt"))
    loops = [re.findall(r".* while\(.*", program.read_text()) for program in programs]
    parts = [set(re.findall(r"f32\[10,(\d+),(\d+),8\]", "\n".join(lines))) for lines in loops]
    # One device alone runs a kernel, without a loop.
    alone, data_parallel, model_parallel = set(), {("2", "16")}, {("8", "4")}
    assert parts == len(LAYERS) * [alone, data_parallel, model_parallel]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
def test_each_replica_computes_half_of_the_batch(output):
    replicas = [f"outputs: [8 10 16] on replica {replica} of 2" for replica in (0, 1)]
    for layer in LAYERS:
        lines = re.search(rf"{layer}, MirroredStrategy\n(.+?)\nlargest", output, re.DOTALL)[1]
        assert sorted(lines.splitlines()) == replicas


@pytest.mark.skipif(BACKEND != "torch", reason="torch.distributed")
def test_each_process_computes_half_of_the_batch(output):
    for layer in LAYERS:
        lines = re.search(rf"{layer}, DistributedDataParallel\n(.+?)(\n\n|$)", output, re.DOTALL)[1]
        for rank in (0, 1):
            assert f"8 of 16 sequences in process {rank} of 2\nlargest" in lines


@pytest.mark.skipif(BACKEND != "torch", reason="torch.distributed")
def test_without_torchrun_the_command_is_told():
    script = SCRIPTS / "distributed_data_parallel_torch.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "torchrun --standalone --nproc-per-node=2" in result.stderr


def test_the_guide_has_the_commands_that_run_here():
    (commands,) = re.findall(r"```sh\n(python .*?)```", GUIDE.read_text(), re.DOTALL)
    assert commands.splitlines() == list(COMMANDS.values())
