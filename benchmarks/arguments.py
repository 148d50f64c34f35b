"""What the benchmarks are called with. Needs nothing that must be installed."""

import argparse

MODES = ("inference", "training")


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--core", type=int, help="number of the core; default: the last one allowed")
    return made


def shape_of(text: str) -> tuple[int, ...]:
    batch, length, dim, n = map(int, text.split(","))
    return batch, length, dim, n


def window(text: str) -> int | None:
    """Steps at a time, or `all`."""
    return None if text == "all" else int(text)
