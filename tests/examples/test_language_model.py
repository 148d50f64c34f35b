"""The character model: its text, what it learns, and what it writes."""

import json
from pathlib import Path

import numpy as np
import programs
import pytest
from nightly import by_night
from recurrent import to_numpy

FOLDER = Path(__file__).parents[2] / "examples" / "language_model"
characters = programs.load_with_siblings(FOLDER / "characters.py")

TEXT = "she sells sea shells. " * 120
SMALL = "--dim 16 --blocks 1 --length 21 --epochs 8 --batch-size 8 --learning-rate 0.02".split()


# Models and streams are compared on every backend elsewhere; this is about the program.
pytestmark = by_night


@pytest.fixture(scope="module")
def trained():
    return characters.train(TEXT, characters.parser().parse_args(SMALL))


def test_the_text_is_cut_into_rows():
    text = "abcdefghijk é"
    assert characters.decode(characters.encode(text)) == "abcdefghijk ?"
    rows, kept = characters.rows_of(text, 3)
    assert [characters.decode(row) for row in rows] == ["abcd", "efgh"]
    assert [characters.decode(row) for row in kept] == ["ijk "]


def test_a_text_can_be_too_short():
    options = characters.parser().parse_args(SMALL)
    with pytest.raises(ValueError, match=r"at least 44 characters.*; received 43\."):
        characters.train(TEXT[:43], options)
    rows, kept = characters.rows_of(TEXT[:44], 21)
    assert rows.shape == kept.shape == (1, 22)


def test_it_learns_and_writes_what_the_whole_pass_says(trained):
    model, bits = trained
    assert bits < 1  # of 7 for characters that are all as likely
    written = characters.generate(model, "she ", 30)
    assert written[:18] == TEXT[4:22]
    tokens = characters.encode("she " + written)
    logits = to_numpy(model(tokens[None]))[0]
    assert characters.decode(logits[3:-1].argmax(-1)) == written


def test_what_is_drawn_has_a_seed_and_a_temperature(trained):
    model, _ = trained
    one, same, other = (
        characters.generate(model, "s", 20, temperature=3.0, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert characters.generate(model, "s", 20, 1e-6) == characters.generate(model, "s", 20)


def test_tokens_are_drawn_as_often_as_the_softmax_says():
    generator, logits = np.random.default_rng(0), np.array([1.0, 3.0, -2.0, 2.0], "float32")
    for temperature in (0.5, 1.5):
        likely = np.exp(logits / temperature)
        drawn = [characters.choose(logits, temperature, generator) for _ in range(4000)]
        frequencies = np.bincount(drawn, minlength=4) / len(drawn)
        # Four standard deviations.
        np.testing.assert_allclose(frequencies, likely / likely.sum(), atol=4 * 0.5 / 4000**0.5)
    assert characters.choose(logits, 0.0, generator) == 1


@pytest.mark.parametrize("given", [{"solver": "newton"}, {"recompute": True}])
def test_a_gru_of_keras_is_not_solved_otherwise(given):
    with pytest.raises(
        ValueError, match="keras.layers.GRU has no solver.*Leave `solver` and `recompute`"
    ):
        characters.GRU(3, **given)


def test_a_gru_of_keras_streams_and_skips_masked_steps():
    layer = characters.GRU(3)
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    whole = to_numpy(layer(x))
    np.testing.assert_allclose(whole, to_numpy(layer.gru(x)[0]), atol=1e-6)
    state = layer.get_initial_state(2)
    for t in range(5):
        outputs, state = layer.step(x[:, t], state)
    np.testing.assert_allclose(to_numpy(outputs), whole[:, -1], atol=1e-6)
    mask = np.array([[False, True, True, False, True]] * 2)
    np.testing.assert_allclose(
        to_numpy(layer(x, mask=mask))[:, -1], to_numpy(layer(x[:, mask[0]]))[:, -1], atol=1e-6
    )


def test_it_stops_after_some_minutes(capsys):
    options = characters.parser().parse_args([*SMALL, "--minutes", "0.0001"])
    _, bits = characters.train(TEXT, options)
    assert 0 < bits < 7 and " s, 1 steps: " in capsys.readouterr().out


def test_the_script_prints_both(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    options = [*SMALL, "--epochs", "1", "--mixer", "min-gru", "--prompt", "she", "--new", "5"]
    characters.main([*options, "--text", str(tmp_path / "text.txt")])
    output = capsys.readouterr().out
    assert "parameters," in output and " bits per character" in output
    assert output.count("\nshe") == 2 and "--- greedy" in output and "--- drawn" in output


def test_finished_runs_are_kept_and_reported(monkeypatch, tmp_path):
    compare = programs.load_with_siblings(FOLDER / "compare.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "RATES", (0.02,))
    monkeypatch.setattr(compare, "TITLES", {"gru": "GRU"})
    options = [x for x in SMALL if x not in ("--learning-rate", "0.02")]
    compare.run_all(TEXT, 1, [*options, "--epochs=1", "--new=8", "--prompt=she "])
    (file,) = compare.RESULTS.glob("*.json")
    found = json.loads(file.read_text())
    assert found["steps"] == 14 and len(found["written"]) == 8 and 0 < found["bits"] < 7
    file.write_text(json.dumps({**found, "bits": 1.5, "written": "is a word here"}))
    compare.run_all(TEXT, 1)

    compare.PAGE.parent.mkdir()
    compare.PAGE.write_text("before\n<!-- characters -->\nold\n<!-- end of characters -->\nafter\n")
    compare.report()
    page = compare.PAGE.read_text()
    assert "| **1.500 (1)** |" in page and "old" not in page
    assert "```text\nThe statement is a word\n```" in page
    assert page.endswith("<!-- end of characters -->\nafter\n")


def test_the_page_has_what_the_files_say(monkeypatch, tmp_path):
    compare = programs.load_with_siblings(FOLDER / "compare.py")
    page = FOLDER.parents[1] / "docs" / "language_models.md"
    monkeypatch.setattr(compare, "RESULTS", FOLDER.parents[1] / "results" / "language_model")
    monkeypatch.setattr(compare, "PAGE", tmp_path / "page.md")
    compare.PAGE.write_text(page.read_text())
    compare.report()
    expected = "Run `examples/language_model/compare.py report`."
    assert compare.PAGE.read_text() == page.read_text(), expected
