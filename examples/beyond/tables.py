"""Programs that keep finished runs as files, and write tables of them into the docs."""

import argparse
import json
import statistics


def arguments(description, seeds):
    """What such a program was called with. Needs nothing that must be installed.

    Args:
        description: The program's docstring.
        seeds: How many seeds are run by default.
    """
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=("run", "report"), default="run")
    parser.add_argument("--seeds", type=int, default=seeds)
    return parser.parse_args()


def keep(file, settings, run):
    """The result of `run()` with its settings, from the file if it was run before.

    Args:
        file: A JSON file, which is written if it is not there.
        settings: What tells the run from others, as a dictionary.
        run: A function that gives a dictionary.
    """
    if file.exists():
        return json.loads(file.read_text())
    import keras

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


def mean(scores):
    """Mean, and standard deviation if there are several; nothing if there is none."""
    if not scores:
        return ""
    deviation = f" ± {statistics.pstdev(scores):.3f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.3f}{deviation}"


def spread(scores):
    """The same with their number."""
    return f"{mean(scores)} ({len(scores)})" if scores else ""
