"""The comparison beyond the paper: its rows, their sizes, a run of a few steps, and its page."""

import json
import math
import zipfile
from pathlib import Path

import keras
import numpy as np
import programs
import pytest
from nightly import by_night

from keras_coffee import LinearizedS6Layer

ROOT = Path(__file__).parents[2]
reproduce = programs.load_with_siblings(ROOT / "examples" / "paper" / "reproduce.py")
experiments = programs.load_with_siblings(ROOT / "examples" / "beyond" / "experiments.py")
blocks = programs.load_with_siblings(ROOT / "examples" / "beyond" / "blocks.py")
labelled = programs.load_with_siblings(ROOT / "examples" / "beyond" / "labelled.py")
principles = programs.load_with_siblings(ROOT / "examples" / "beyond" / "principles.py")
MIXERS = experiments.MIXERS
ROW = "flipflop-coffee-1-parameters-rate0.003"


@pytest.fixture(scope="module")
def page():
    pytest.importorskip("matplotlib")
    return programs.load_with_siblings(ROOT / "examples" / "beyond" / "page.py")


def run(mixer, accuracy, rate=0.003, seed=0, best=0.5, loss=0.5, **settings):
    settings = {"task": "parity", "depth": 1, "equal": "parameters", **settings}
    settings |= {"mixer": mixer, "learning_rate": rate}
    return {
        "row": f"{mixer}-{settings}",
        "experiment": "Beyond",
        "settings": settings,
        "backend": "jax",
        "seed": seed,
        "accuracy": accuracy,
        "further": {},
        "parameters": 4738,
        "best_epoch": 2,
        "seconds": 60.0,
        "stopped_by": "epochs",
        "history": {"val_accuracy": [0.1, best, 0.2], "val_loss": [2.0, loss, 1.0]},
    }


def weights(task, mixer, depth, equal):
    experiment = experiments.Beyond(
        task=task,
        mixer=mixer,
        depth=depth,
        equal=equal,
        learning_rate=0.1,
        epochs=1,
        batch_size=2,
        test_sequences=2,
    )
    return experiment.build_model().count_params()


@by_night
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_block_has_the_parameters_that_the_page_says(mixer):
    one, two = (weights("parity", mixer, depth, "parameters") for depth in (1, 2))
    assert two - one == pytest.approx(4500, rel=0.05)


@by_night
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_layer_has_the_states_that_the_page_says(mixer):
    make, _, size = MIXERS[mixer]
    layer = make(size)
    layer.build((None, None, 32))
    states = layer.state_size if isinstance(layer.state_size, list) else [layer.state_size]
    sizes = [math.prod(state if isinstance(state, tuple) else (state,)) for state in states]
    # A complex number is two.
    assert sum(sizes) * (2 if mixer == "lru" else 1) == 64


def test_rows_have_names_of_their_own_and_tests_go_beyond_training():
    names = [row.name for row in experiments.ROWS]
    assert len(set(names)) == len(names) == len(experiments.TASKS) * len(MIXERS) * 8
    for task in experiments.TASKS.values():
        assert set(task.works) < set(MIXERS)
        for settings in task.tests.values():
            longest = {"length", "max_length"} & set(settings)
            assert longest and all(settings[name] > task.train[name] for name in longest)


def test_blocks_with_a_convolution_have_as_many_parameters():
    counts = {
        row.experiment.mixer: row.experiment.build_model().count_params()
        for row in blocks.ROWS
        if row.experiment.task == "copying"
    }
    assert set(counts) == set(blocks.MIXERS) == set(blocks.TITLES)
    assert max(counts.values()) <= 1.02 * min(counts.values())
    assert {row.name for row in blocks.ROWS}.isdisjoint({row.name for row in experiments.ROWS})


def test_blocks_with_a_convolution_are_run_and_reported(tmp_path, page):
    folders = [f"--{name}={tmp_path / name}" for name in ("results", "work")]
    reproduce.main(["beyond", "blocks-recall-gru-rate0.003", "--smoke", *folders])
    found = page.records.read(tmp_path / "results")
    ((run,),) = found.values()
    assert list(run["further"]) == ["128 symbols"]
    text = "".join(page.in_blocks(found))
    assert f"| GRU, 29 units | {run['parameters']:,} |" in text
    assert "Selective copying" in text and text.count("Not run yet.") == 1
    assert page.grouped(found) == {}


def test_labelled_series_are_run_and_reported(tmp_path, page, monkeypatch):
    """A wheel with a few series in the format of the archive, one of them shorter."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "data").mkdir(parents=True)
    with zipfile.ZipFile("outputs/data/aeon-0-py3-none-any.whl", "w") as wheel:
        for part in ("TRAIN", "TEST"):
            text = "@data\n1,2:a\n" + "3,5,4:b\n1,1,2:a\n" * 8
            wheel.writestr(f"aeon/datasets/data/ItalyPowerDemand/ItalyPowerDemand_{part}.ts", text)
    folders = [f"--{name}={tmp_path / name}" for name in ("results", "work")]
    reproduce.main(["beyond", "labelled-demand-lru-rate0.001", "--smoke", *folders])
    found = page.records.read(tmp_path / "results")
    ((run,),) = found.values()
    assert run["accuracy"] * 17 == pytest.approx(round(run["accuracy"] * 17))
    text = "".join(page.in_labelled(found))
    assert f"| LRU | {run['parameters']:,} |" in text
    assert f"| {run['accuracy']:.3f} (1) |" in text and text.count("Not run yet.") == 4
    assert page.grouped(found) == {}


def test_series_are_scaled_by_training_and_padding_stays():
    x = np.array([[[1.0, 20.0], [3.0, 40.0]], [[5.0, 60.0], [labelled.series.PADDING] * 2]])
    data = labelled.series.Series((x, np.zeros(2)), (x[1:] + [[[2, 20], [0, 0]]], np.zeros(1)))
    scaled = labelled.standardized(data)
    counts = np.concatenate([scaled.train[0][0], scaled.train[0][1, :1]])
    np.testing.assert_allclose(counts.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(counts.std(axis=0), 1)
    assert (scaled.train[0][1, 1] == labelled.series.PADDING).all()
    # The test's first step lies one distance of training further on.
    step = scaled.train[0][0, 1] - scaled.train[0][0, 0]
    np.testing.assert_allclose(scaled.test[0][0, 0], scaled.train[0][1, 0] + step)


def test_a_quarter_of_each_class_is_held_out():
    labels = np.repeat([0, 1, 2], [8, 12, 20])
    held = labelled.held_out(labels, seed=0)
    assert np.bincount(labels[held]).tolist() == [2, 3, 5]
    assert (held != labelled.held_out(labels, seed=1)).any()


def test_the_nearest_series_gives_its_label():
    known, asked = np.array([[[0.0], [0.0]], [[4.0], [4.0]]]), np.array([[[1.0], [1.0]]] * 2)
    data = labelled.series.Series((known, np.array([5, 6])), (asked, np.array([5, 6])))
    assert labelled.nearest(data) == 0.5


def test_batches_are_drawn_anew_in_training_and_in_order_elsewhere():
    series, labels = np.arange(20.0).reshape(10, 2, 1), np.arange(10)
    drawn = labelled.Sequences(series, labels, batch_size=4, steps=3)
    before = drawn[2][1]
    assert len(drawn) == 3 and len(set(before)) == 4
    drawn.on_epoch_end()
    assert before.tolist() != drawn[2][1].tolist()
    np.testing.assert_array_equal(drawn[0][0][:, 0, 0], 2 * drawn[0][1])
    whole = labelled.Sequences(series, labels, batch_size=4)
    assert [whole[k][1].tolist() for k in range(len(whole))] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_run_of_a_few_steps_becomes_a_file_and_a_page(tmp_path, monkeypatch, page):
    folders = [f"--{name}={tmp_path / name}" for name in ("results", "work", "docs")]
    reproduce.main(["beyond", ROW, "--smoke", *folders])
    (file,) = (tmp_path / "results").iterdir()
    assert file.name == f"{ROW}.{keras.config.backend()}.seed0.json"
    found = json.loads(file.read_text())
    assert len(found["history"]["val_accuracy"]) == found["epochs"] == 2
    assert list(found["further"]) == list(experiments.TASKS["flipflop"].tests)[1:]
    page.write(experiments.ROWS, tmp_path / "results", tmp_path / "docs")
    written = (tmp_path / "docs" / "beyond_the_paper.md").read_text()
    assert f"| {found['accuracy']:.3f} (1) | {min(found['further'].values()):.3f} (1) |" in written
    drawn = {file.name for file in (tmp_path / "docs" / "images").iterdir()}
    assert drawn == {f"beyond_{x}.png" for x in (*experiments.TASKS, "lengths", "newton")}


def test_the_better_rate_is_that_of_validation(page):
    runs = [run("coffee", 0.9, rate=0.003, best=0.6), run("coffee", 0.8, rate=0.001, best=0.7)]
    by_rate = page.grouped({r["row"]: [r] for r in runs})["parity", "coffee", 1, "parameters"]
    assert page.best(by_rate) == runs[1:]
    assert page.best({}) == []


def test_of_equally_accurate_rates_the_one_of_less_loss_is_better(page):
    runs = [run("coffee", 0.9, rate=0.003, loss=0.2), run("coffee", 0.8, rate=0.001, loss=0.3)]
    by_rate = page.grouped({r["row"]: [r] for r in runs})["parity", "coffee", 1, "parameters"]
    assert page.best(by_rate) == runs[:1]


def test_a_task_that_no_layer_learns_is_named_once(page):
    failed = [run(mixer, 0.2) for mixer in page.TITLES]
    verdicts = page.verdicts(page.grouped({other["row"]: [other] for other in failed}))
    assert verdicts.count("Parity") == 1
    assert "- **No layer** reaches 0.95 here on: Parity.\n" in verdicts


def test_the_hardest_test_counts(page):
    assert page.beyond({"accuracy": 0.9, "further": {}}) == 0.9
    assert page.beyond({"accuracy": 0.9, "further": {"a": 0.8, "b": 1.0}}) == 0.8


def test_three_seeds_are_not_counted_in_cells(page):
    runs = [run("gru", accuracy, seed=k) for k, accuracy in enumerate((0.5, 0.6, 0.7))]
    assert page.cell(runs, page.first) == "0.600 ± 0.100"
    assert page.cell(runs[:2], page.first) == "0.550 ± 0.071 (2)"
    assert page.cell([], page.first) == "not run yet"


def test_cells_say_what_works_and_what_was_not_expected(page):
    runs = [run("gru", 1.0, best=1.0), run("gru", 0.98, seed=1, best=1.0)]
    others = [run("coffee", 0.99), run("lstm", 0.6, best=0.97), run("mamba", 0.5)]
    by_row = {"gru": runs, **{other["row"]: [other] for other in others}}
    found = page.grouped(by_row)
    line = page.overview(found, 1, "parameters").splitlines()[2].removesuffix(" |")
    cells = dict(zip(page.BEST_KNOWN_FIRST, line.split(" | ")[2:], strict=True))
    assert cells["gru"] == "**0.990 (2)**"
    assert cells["coffee"] == "**0.990 (1)** ≠"
    assert cells["lstm"] == "0.600 (1) ≠"
    assert cells["mamba"] == "0.500 (1)"
    assert cells["lru"] == "not run yet"
    verdicts = page.verdicts(found)
    assert "**GRU.** Use it for: Parity. Not run yet: 9 tasks.\n" in verdicts
    assert "**LSTM.** Learns, but not beyond the lengths of training: Parity." in verdicts
    assert "**S6, Mamba's.** Not for: Parity." in verdicts


def test_the_page_is_what_the_files_say(page):
    runs = page.records.read(ROOT / "results" / "beyond")
    expected = (ROOT / "docs" / "beyond_the_paper.md").read_text()
    assert expected == page.page(runs), 'Run `make reproduce ARGS="beyond report"`.'


def test_newton_is_watched_while_a_model_learns(tmp_path):
    folders = [f"--{name}={tmp_path / name}" for name in ("results", "work")]
    reproduce.main(["beyond", "newton-copying", "--smoke", *folders])
    (file,) = (tmp_path / "results").iterdir()
    history = json.loads(file.read_text())["history"]
    assert len(history["coffee_iterations"]) == 2
    assert all(1 <= count <= 16 for count in history["coffee_iterations"])
    assert all(0 <= share <= 1 for share in history["coffee_converged"])


def test_vectors_by_the_principles_open_and_close_all_gates():
    trigger, *targets = keras.ops.convert_to_numpy(principles.Principled()((3, 2)))
    assert trigger.tolist() == [6, 6]
    assert (np.array(targets) < -0.9).all()
    np.testing.assert_allclose(np.linalg.norm(targets, axis=1), 10, rtol=1e-5)
    # The paper's start, (-10, -1) and (-1, -10), or the same two the other way round.
    assert targets[0] @ targets[1] < 100 * np.cos(np.radians(75))


def test_many_vectors_by_the_principles_are_far_from_each_other():
    vectors = keras.ops.convert_to_numpy(principles.Principled(trigger=1)((9, 2)))
    assert vectors[1].tolist() == [6, 6]
    targets = np.delete(vectors, 1, axis=0)
    angles = np.sort(np.degrees(np.arctan2(*-targets.T)))
    # Eight in 80 degrees: at most 11 apart.
    assert np.diff(angles).min() > 8


def test_a_small_model_by_the_principles_has_a_memory_and_its_trigger(tmp_path):
    folders = [f"--{name}={tmp_path / name}" for name in ("results", "work")]
    reproduce.main(["beyond", "principles-24-principles", "--smoke", *folders])
    (file,) = (tmp_path / "results").iterdir()
    assert json.loads(file.read_text())["parameters"] == 24
    experiment = principles.ROWS[2].experiment
    layer = experiment.build_model().layers[1]
    start = [keras.ops.convert_to_numpy(x).ravel().tolist() for x in layer.trainable_weights]
    assert sorted(start) == [[0, 0], [1, 1], [1, 1]]
    for data in experiment.load_data(seed=3):
        assert data.trigger == (1,) and data.seed == 3


def test_linearized_s6_represents_parity_exactly():
    """With λ = -2 a gate of one flips a state, x into c - x, and one of zero holds it."""
    steps = 4096
    flips = np.random.default_rng(0).integers(2, size=(1, steps, 1))
    layer = LinearizedS6Layer(1, transition_initializer=keras.initializers.Constant(-2.0))
    inputs = np.where(flips, 1.0, -1.0).astype("float32")
    layer.build(inputs.shape)
    for weight, value in (("step_projection", 1000.0), ("input_matrix", 1.0), ("readout", 1.0)):
        getattr(layer, weight).assign(np.full((1, 1), value))
    outputs = keras.ops.convert_to_numpy(layer(inputs))
    np.testing.assert_array_equal(outputs, flips.cumsum(axis=1) % 2)
