import pytest
from nightly import once

pytestmark = once


@pytest.fixture(scope="module")
def report(benchmark):
    return benchmark("report")


@pytest.fixture(scope="module")
def cell(benchmark):
    def make(shape, row, seconds, family="COFFEE", mode="training", **options):
        times = {turn: (x, 10 * x) for turn, x in enumerate(seconds)}
        options = {"first": (0.5, 5.0), "second": (0.01, 0.1), "megabytes": 3.0} | options
        return benchmark("bench").Cell(shape, mode, family, row, times=times, **options)

    return make


KERAS_SHAPE = (32, 784, 32, 1)


def verdicts(text):
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return {row[0]: tuple(row[1:]) for row in rows}


def test_ratios_are_of_the_same_round(report, cell):
    ours = cell(KERAS_SHAPE, "ours", [1.0, 2.0, 4.0])
    other = cell(KERAS_SHAPE, "C, one core", [1.0, 1.0, 1.0])
    assert report.ratio(ours, other, 0) == (1.5, 2.0, 3.0)
    # One that joined the last round only.
    other.times = {2: (8.0, 1.0)}
    assert report.ratio(ours, other, 0) == (0.5, 0.5, 0.5)
    assert report.ratio(ours, other, 1) == (40.0, 40.0, 40.0)


@pytest.mark.parametrize("seconds, verdict", [(0.119, "met"), (0.121, "NOT MET")])
def test_bars_of_the_limit(report, cell, seconds, verdict):
    cells = [
        cell(KERAS_SHAPE, "ours", [seconds] * 3),
        cell(KERAS_SHAPE, "C, one core", [0.1] * 3),
    ]
    found = verdicts(report.bars("torch", cells, [], 0))
    assert found[f"training {KERAS_SHAPE}, ours by C"][1:] == ("≤ 1.2", verdict)
    # Elsewhere there is more room.
    found = verdicts(report.bars("jax", cells, [], 0))
    assert found[f"training {KERAS_SHAPE}, ours by C"][1:] == ("≤ 1.5", "met")


def test_bars_of_the_layers_of_keras(report, cell):
    cells = [
        cell(KERAS_SHAPE, "ours", [1.0]),
        cell(KERAS_SHAPE, "keras.layers.RNN", [3.5]),
        cell(KERAS_SHAPE, "keras.layers.GRU", [4.5], family="GRU"),
    ]
    found = verdicts(report.bars("jax", cells, [], 0))
    assert found[f"training {KERAS_SHAPE}, COFFEE, keras.layers.RNN by ours"] == (
        "3.5",
        "≥ 3",
        "met",
    )
    assert found[f"training {KERAS_SHAPE}, keras.layers.GRU by ours"] == ("4.5", "≥ 5", "NOT MET")


@pytest.mark.parametrize("seconds, verdict", [(0.99, "NOT MET"), (1.01, "met")])
def test_bars_of_mamba(report, cell, seconds, verdict):
    shape = (1, 2048, 256, 16)
    cells = [
        cell(shape, "ours", [0.002] * 3, family="Mamba"),
        cell(shape, "C, one core", [0.0016, 0.00151, 0.0015], family="Mamba"),
        cell(shape, "transformers", [seconds], family="Mamba"),
    ]
    found = verdicts(report.bars("torch", cells, [], 0))
    assert found[f"training {shape}, Mamba ours by C"] == ("1.32", "≤ 1.3", "NOT MET")
    what = f"training {shape}, Mamba, transformers by ours"
    assert found[what] == (f"{500 * seconds:.1f}", "≥ 500", verdict)


@pytest.mark.parametrize("second, again", [(0.01, False), (1.0, False), (1.6, True), (3.0, True)])
def test_a_second_call_as_slow_as_the_first_compiles_again(report, cell, second, again):
    found = cell((1, 2, 3, 4), "ours", [0.01], first=(3.0, 9.0), second=(second, 8.0))
    assert report.compiles_again(found, 0) == again
    assert report.compiles_again(found, 1)  # 8 s of 9 by the clock
    bars = verdicts(report.bars("jax", [found], [], 0))
    measured, _, verdict = bars["ours, compiled again for the same shape"]
    assert (measured, verdict) == (("1 of 1", "NOT MET") if again else ("0 of 1", "met"))
    assert ("COMPILES AGAIN" in report.table([found], 0)) == again


def test_slow_calls_that_vary_do_not_compile(report, cell):
    found = cell((1, 2, 3, 4), "ours", [2.7], first=(3.0, 3.0), second=(2.9, 2.9))
    assert not report.compiles_again(found, 0)


def test_first_calls_have_a_bar(report, cell):
    cells = [cell((1, 2, 3, 4), "ours", [0.01], first=(x, 0.0)) for x in (0.3, 5.5)]
    measured, bar, verdict = verdicts(report.bars("jax", cells, [], 0))[
        "longest first call of ours"
    ]
    assert measured == "5.5 s: COFFEE, ours, (1, 2, 3, 4), training"
    assert (bar, verdict) == ("≤ 5 s", "NOT MET")


@pytest.mark.parametrize("slow, verdict", [(1.19, "met"), (1.21, "NOT MET")])
def test_the_time_of_a_step_has_a_bar(report, cell, slow, verdict):
    cells = [
        cell((4, 1024, 16, 8), "ours", [0.001]),
        cell((4, 4096, 16, 8), "ours", [0.004 * slow]),
        cell((4, 4096, 16, 8), "keras.layers.RNN", [1.0]),
    ]
    found = verdicts(report.bars("jax", [], cells, 0))
    what = "ours, time per step from T = 1,024 to 4,096"
    assert found == {what: (f"longest by shortest {slow:.2f}", "≤ 1.2", verdict)}


def test_a_table_has_a_line_for_what_was_timed(report, cell):
    left_out = cell(KERAS_SHAPE, "keras.layers.GRU", [], family="GRU", skipped="too slow")
    cells = [
        cell(KERAS_SHAPE, "ours", [0.002, 0.002, 0.004]),
        cell(KERAS_SHAPE, "C, one core", [0.001] * 3, difference=3e-7),
        left_out,
    ]
    lines = report.table(cells, 0).splitlines()[-2:]
    start = f"| {KERAS_SHAPE} | training | COFFEE, "
    assert lines[0].startswith(start + "ours | 3 | 2 (2-3) | 2 (2-3) |  | 0.50 | 0.01 | 3 |")
    assert lines[1].startswith(start + "C, one core | 3 | 1 (1-1) |  | 0.5 (0.375-0.5) |")
    assert lines[1].endswith("| 3e-07 |")


def test_what_was_left_out_is_said_with_its_reason(report, cell):
    cells = [
        cell((1, 2, 3, 4), "keras.layers.GRU", [], family="GRU", skipped="too slow"),
        cell((5, 6, 7, 8), "keras.layers.GRU", [], family="GRU", skipped="too slow"),
        cell((1, 2, 3, 4), "ours", [1.0]),
    ]
    assert report.skipped(cells).splitlines() == [
        "Left out:",
        "- keras.layers.GRU: too slow [(1, 2, 3, 4) training, (5, 6, 7, 8) training]",
    ]
    assert report.skipped(cells[2:]) == ""
