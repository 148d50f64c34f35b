"""Finished runs as files, and tables of them in the docs."""

import json

import keras
import numpy as np


def keep(file, settings, run):
    """The result of `run()` with its settings, from the file if it was run before.

    Args:
        file: A JSON file, which is written if it is not there.
        settings: What tells the run from others, as a dictionary.
        run: A function that gives a dictionary.
    """
    if file.exists():
        return json.loads(file.read_text())
    versions = {"backend": keras.config.backend(), "keras": keras.__version__}
    found = settings | versions | run()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{file.stem} is done.", flush=True)
    return found


def read(folder):
    """All finished runs."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def fill(page, name, text):
    """Writes a text into a page, between `<!-- name -->` and `<!-- end of name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def spread(scores):
    """Mean, standard deviation if there are several, and number; nothing if there is none."""
    if not scores:
        return ""
    deviation = f" ± {np.std(scores):.3f}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.3f}{deviation} ({len(scores)})"
