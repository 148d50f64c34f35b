import argparse

import pytest
from nightly import once

pytestmark = once


@pytest.fixture(scope="module")
def sweep(benchmark):
    return benchmark("sweep")


@pytest.fixture(scope="module")
def axes(benchmark, sweep):
    """A sweep whose times are made up: a microsecond a step and two sequences' features."""
    bench, rows = benchmark("bench"), benchmark("rows").all_rows()

    def measure(rows, shape, mode, options):
        cells = [bench.Cell(shape, mode, row.family, row.name) for row in rows]
        for cell in cells[:2]:
            seconds = 1e-6 * shape[0] * shape[1]
            cell.times, cell.megabytes = {0: (seconds, seconds)}, shape[1] / 1000
        return cells

    return sweep.run(rows, argparse.Namespace(longest=16_384), measure)


def test_every_axis_changes_one_size(axes):
    assert list(axes) == ["T", "B", "D", "n"]
    for position, axis in ((1, "T"), (0, "B"), (2, "D"), (3, "n")):
        shapes = {cell.shape for cell in axes[axis]}
        sizes = {shape[position] for shape in shapes}
        assert len(sizes) == len(shapes) > 2
        for other in {0, 1, 2, 3} - {position}:
            assert len({shape[other] for shape in shapes}) == 1
    assert {cell.shape[1] for cell in axes["T"]} == {1024, 4096, 16_384}


def test_tables_have_the_time_of_a_step(sweep, axes):
    lines = sweep.tables(axes, 0).splitlines()
    assert lines[0].startswith("| (B, T, D, n) along T | ours, ms | ours, µs a step | ours, MB |")
    assert lines[2].startswith("| (4, 1024, 16, 8) | 4.096 | 4.00 | 1.024 |")
    assert lines[4].startswith("| (4, 16384, 16, 8) | 65.54 | 4.00 | 16.38 |")


def test_the_plot_has_a_line_for_each_row_that_was_timed(benchmark, axes, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    plots, made = benchmark("plots"), []
    subplots = plots.pyplot.subplots
    monkeypatch.setattr(
        plots.pyplot, "subplots", lambda *x, **y: made.append(subplots(*x, **y)) or made[-1]
    )
    plots.draw(axes, 0, "made up", tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    panels = list(made[0][1].flat)
    assert [len(panel.lines) for panel in panels] == [2, 2, 2, 2, 2, 0]
    assert all(panel.get_xscale() == panel.get_yscale() == "log" for panel in panels[:5])
    assert list(panels[0].lines[0].get_xdata()) == [1024, 4096, 16_384]
