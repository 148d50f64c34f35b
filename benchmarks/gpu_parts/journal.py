"""Units of work, done one after the other whatever fails, each with a line in a file.

Each unit is written down before it starts and when it ends, so that nothing is lost if the process
dies, and a new process goes on where the last one ended.
"""

import contextlib
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"
# The status of a process whose device no longer answers, so that a new one has to go on.
BROKEN = 3


class LeftOut(Exception):
    """A unit that can't or need not be done here; the text says why."""


class Wrong(Exception):
    """Answers that are not those expected."""


class Journal:
    """The units of a part.

    Args:
        path: The file. What it says already is done.
        is_healthy: Called after a failure; raises if the device is lost.
        only: Units with none of these in their names are passed over.
    """

    def __init__(self, path: Path, is_healthy: Callable = lambda: None, only: list | None = None):
        self.path, self.is_healthy, self.only = path, is_healthy, only
        self.records = read(path)
        for started in unfinished(self.records):
            self._write(started | {"status": FAILED, "error": "the process ended, or was stopped"})

    def run(self, name: str, work: Callable[[], dict], deadline: float, **about) -> None:
        """Does `work`, whose dictionary goes into the record, unless it is done or late."""
        if about.get("section") != "versions" and not matches(name, self.only):
            return
        if any(record["name"] == name for record in self.records):
            return
        record = {"name": name, **about}
        if time.time() > deadline:
            self._write(record | {"status": LEFT_OUT, "error": "no time left"})
            return
        self._write(record | {"status": None})
        began = time.perf_counter()
        record |= outcome(work)
        self._write(record | {"seconds": round(time.perf_counter() - began, 3)})
        if record["status"] == FAILED:
            self._leave_if_broken()

    def _leave_if_broken(self) -> None:
        try:
            self.is_healthy()
        except Exception:
            print("The device no longer answers; a new process goes on.", flush=True)
            raise SystemExit(BROKEN) from None

    def is_ok(self, name: str) -> bool:
        return any(x["name"] == name and x["status"] == OK for x in self.records)

    def values(self, section: str) -> list[dict]:
        return [x for x in self.records if x.get("section") == section and x["status"] == OK]

    def _write(self, record: dict) -> None:
        if record["status"] is not None:
            self.records.append(record)
            error = record.get("error", "")
            print(f"{record['status']:>8}  {record['name']}  {error}".rstrip(), flush=True)
        append(self.path, record)


def matches(name: str, only: list | None) -> bool:
    """Whether one of the parts is in the name, if there are any."""
    return not only or any(part.lower() in name.lower() for part in only)


def outcome(work: Callable[[], dict]) -> dict:
    """The status of a unit with what it found, or what went wrong."""
    try:
        return {"status": OK, **work()}
    except LeftOut as reason:
        return {"status": LEFT_OUT, "error": str(reason)}
    except Wrong as reason:
        return {"status": FAILED, "error": str(reason)}
    except Exception as error:
        return {"status": FAILED, "error": last_lines(error)}


def append(path: Path, record: dict) -> None:
    """A line, on a new one even if the last was cut off."""
    text = path.read_text() if path.exists() else ""
    with path.open("a") as file:
        file.write("\n" * (text[-1:] not in ("", "\n")) + json.dumps(record) + "\n")


def read(path: Path) -> list[dict]:
    """All that is in the file: of a unit the start, and the end if it came."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        # The last line may be cut off.
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    ended = {record["name"] for record in records if record["status"] is not None}
    return [x for x in records if x["status"] is not None or x["name"] not in ended]


def unfinished(records: list[dict]) -> list[dict]:
    """The units that were started only, taken out of the list."""
    started = [record for record in records if record["status"] is None]
    for record in started:
        records.remove(record)
    return started


def last_lines(error: Exception, most: int = 3) -> str:
    """What the exception says last, with the place in this repository that it came from."""
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-most:]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return " / ".join(line.strip() for line in text)[:400] + place
