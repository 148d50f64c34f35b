"""The comparison of widths, states, depths and learning rates: its settings, files and page."""

import json
from pathlib import Path

import numpy as np
import programs
import pytest

ROOT = Path(__file__).parents[2]
sizes = programs.load_with_siblings(ROOT / "examples" / "beyond" / "sizes.py")


def test_one_setting_changes_at_a_time():
    changed = [sum(s[name] != sizes.BASE[name] for name in s) for s in sizes.settings()]
    assert changed[0] == 0
    assert set(changed[1:]) == {1}
    assert len(changed) == 1 + sum(len(values) - 1 for values in sizes.VALUES.values())


def test_a_model_has_its_width_states_and_blocks():
    model = sizes.build(2, width=5, n=3, blocks=2)
    assert model(np.ones((4, 6, 2), "float32")).shape == (4, 1)
    assert model.count_params() == (2 + 1) * 5 + 2 * (2 * 5 + 3 * 3 * 5) + 5 + 1


def test_a_run_has_the_error_of_a_model_that_answers_with_zero():
    x = np.zeros((8, 6, 2), "float32")
    data = ((x, np.zeros((8, 1), "float32")), (x, np.full((8, 1), 2.0, "float32")))
    series = type("Series", (), {"train": data[0], "test": data[1], "unit": 3.0})
    found = sizes.run(series, seed=0, rate=0.0, width=2, n=1, blocks=1)
    assert found["error"] == pytest.approx(6.0, rel=1e-5)


def test_the_page_has_what_the_files_say(monkeypatch, tmp_path):
    page = ROOT / "docs" / "building.md"
    monkeypatch.setattr(sizes, "RESULTS", ROOT / "results" / "sizes")
    monkeypatch.setattr(sizes, "PAGE", tmp_path / "building.md")
    sizes.PAGE.write_text(page.read_text())
    sizes.report()
    assert sizes.PAGE.read_text() == page.read_text(), "Run `examples/beyond/sizes.py report`."
    files = sorted(sizes.RESULTS.glob("*.json"))
    assert len(files) == 3 * len(sizes.settings())
    assert {json.loads(file.read_text())["backend"] for file in files} == {"jax"}
