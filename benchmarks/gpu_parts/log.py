"""Units of work, one after the other whatever fails, each a line in a file when it is done."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"


class Log:
    """Runs units and writes down what they find.

    Args:
        path: The file. Every finding is in it at once, so an interruption loses nothing.
        backend: Where the units run.
        only: If given, units with none of these texts in their names are passed over.
    """

    def __init__(self, path: Path, backend: str, only: list[str] | None = None):
        self.path, self.backend, self.only = path, backend, only

    def run(self, name: str, work: Callable[[], dict], until: float, **about: Any) -> None:
        """Adds what `work` returns to the record. Leaves it out after the time `until`."""
        name = f"{name}, {self.backend}"
        if self.only and not any(text.lower() in name.lower() for text in self.only):
            return
        found: dict[str, Any] = {"status": LEFT_OUT, "error": "no time left"}
        if time.time() <= until:
            try:
                found = {"status": OK} | work()
            except Exception as error:
                found = {"status": FAILED, "error": f"{type(error).__name__}: {error}"[:400]}
        self.write({"name": name, "backend": self.backend} | about | found)

    def write(self, record: dict) -> None:
        print(f"{record['status']:>8}  {record['name']}  {record.get('error', '')}", flush=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


class Rehearsal(Log):
    """Does every `of`-th unit only and writes nothing: what is compiled then is in a cache."""

    def __init__(self, which: int, of: int, *arguments: Any):
        super().__init__(*arguments)
        self.which, self.of, self.count = which, of, 0

    def run(self, name: str, work: Callable[[], dict], until: float, **about: Any) -> None:
        self.count += 1
        if self.count % self.of == self.which:
            super().run(name, work, until, **about)

    def write(self, record: dict) -> None:
        pass


def read(path: Path) -> list[dict]:
    """The records, except a last one that was cut off."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
