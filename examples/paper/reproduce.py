"""Every number of the paper, run again, and what lies beyond the paper.

    KERAS_BACKEND=jax python examples/paper/reproduce.py --list
    KERAS_BACKEND=jax python examples/paper/reproduce.py table1 --seeds 3
    KERAS_BACKEND=jax python examples/paper/reproduce.py mnist-coffee plain --budget-minutes 20
    python examples/paper/reproduce.py report
    KERAS_BACKEND=jax python examples/paper/reproduce.py beyond parity
    python examples/paper/reproduce.py beyond report

Rows are run in the order in which they are named, each with all of its seeds. A finished run is
one file in results/paper/ and is not run again. One that was interrupted, or that ended for lack
of time and now has more, goes on where it was, with the same numbers as if nothing had happened.
`report` writes docs/results.md, for which it needs matplotlib. After the word `beyond` names are
those of examples/beyond/experiments.py, results go to results/beyond/ and `report` writes
docs/beyond_the_paper.md.
"""

import argparse
import dataclasses
import datetime
import importlib
import pathlib
import sys


def make_parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="tables, rows, or the word report")
    add("--all", action="store_true", help="every row")
    add("--list", action="store_true", help="name the rows and end")
    add("--seeds", type=int, default=1, help="runs of each row, seeds 0, 1, … (default: 1)")
    add("--budget-minutes", type=float, default=60.0, help="for each run (default: 60)")
    add("--smoke", action="store_true", help="a few steps of each, to see that all of it runs")
    add("--again", action="store_true", help="from the start, beside the runs that there are")
    folder = {"type": pathlib.Path, "metavar": "DIR"}
    add("--results", **folder, help="of finished runs (default: results/paper or beyond)")
    add("--work", **folder, help="weights, to resume from (default: outputs/paper or beyond)")
    add("--docs", **folder, help="of the report (default: docs)")
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import keras_coffee  # noqa: F401  isort: skip. First: it says which backend is missing.

import keras
import records
import training
from rivals import RIVALS
from rows import CURVES, PLAIN, ROWS, TRIED

KNOWN = [*ROWS, *PLAIN, *TRIED, *CURVES, *RIVALS]
ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Rows that go together.

    Args:
        name: Of the folder of its results.
        rows: What --all runs.
        known: What can be named.
        report: The module that writes its page, which needs matplotlib; nothing else here does.
    """

    name: str
    rows: list
    known: list
    report: str


PAPER = Suite("paper", ROWS, KNOWN, "report")


def suite_of(names):
    """The suite of these names, and the names without the word for it."""
    if names[:1] != ["beyond"]:
        return PAPER, names
    sys.path.append(str(ROOT / "examples" / "beyond"))
    names_of_parts = ("experiments", "blocks", "labelled", "newton", "principles")
    parts = map(importlib.import_module, names_of_parts)
    rows = [row for part in parts for row in part.ROWS]
    return Suite("beyond", rows, rows, "page"), names[1:]


def main(argv=None):
    parser = make_parser()
    args = parser.parse_args(argv)
    args.suite, args.names = suite_of(args.names)
    if args.seeds < 1:
        parser.error("--seeds must be at least 1")
    if not args.budget_minutes >= 0:
        parser.error("--budget-minutes must not be negative")
    if "report" in args.names and (args.names != ["report"] or args.all or args.again):
        parser.error("report goes alone: it is about all runs that there are")
    settle_folders(args)
    try:
        act(parser, args)
    except records.UnusableError as error:
        parser.error(str(error))


def act(parser, args):
    if args.list:
        print("\n".join(f"{row.name:28} {row.label}" for row in args.suite.known))
    elif args.names == ["report"]:
        importlib.import_module(args.suite.report).write(args.suite.rows, args.results, args.docs)
    else:
        run_rows(chosen(parser, args), args)


def settle_folders(args):
    """Runs for a look, and runs for a second time, are kept apart from the others."""
    turn = "again" if args.again else ""
    base = ROOT / "outputs" / "smoke" if args.smoke else ROOT
    args.results = (args.results or base / "results" / args.suite.name) / turn
    args.work = (args.work or base / "outputs" / args.suite.name) / turn
    args.docs = args.docs or base / "docs"


def chosen(parser, args):
    suite = args.suite
    tables = dict.fromkeys(row.table for row in suite.known)
    for name in {*args.names} - {row.name for row in suite.known} - tables.keys():
        parser.error(f"no table or row {name!r}; tables: {', '.join(tables)}; rows: --list")
    # In the order in which they are named: what matters most is run first.
    rows = [row for name in args.names for row in suite.known if name in (row.name, row.table)]
    rows += [row for row in suite.rows if args.all and row not in rows]
    if not rows:
        parser.error("name tables or rows, or pass --all; --list shows what there is")
    return rows


def run_rows(rows, args):
    by_name = {row.name: row for row in args.suite.known}
    args.results.mkdir(parents=True, exist_ok=True)
    for row in dict.fromkeys(by_name[row.runs_of] for row in rows):
        experiment = row.experiment.smoke() if args.smoke else row.experiment
        for seed in range(args.seeds):
            run(row, experiment, seed, args)


def run(row, experiment, seed, args):
    name = f"{row.name}.{keras.config.backend()}.seed{seed}"
    file, identity = args.results / f"{name}.json", training.identity_of(experiment, seed)
    if records.is_done(file, identity, args.budget_minutes):
        print(f"{name} is done already.")
        return
    print(f"{name}: {row.label}", flush=True)
    outcome = training.run(experiment, seed, args.work / name, args.budget_minutes)
    outcome = {"row": row.name, "budget_minutes": args.budget_minutes, **outcome}
    outcome["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    records.write(file, outcome)
    print("{row}: accuracy={accuracy:.4f} loss={loss:.4f} epochs={epochs}".format(**outcome))


if __name__ == "__main__":
    main()
