"""docs/results.md: what the paper has beside what came out here."""

import statistics

import plots
import records
from induction_heads import IH0_PAPER
from rows import TABLES, TRIED

HEAD = """\
# Results

Every row of the paper's tables, run again. `examples/paper/reproduce.py` makes the runs, each a
file in [results/paper](../results/paper) with its settings, seed, versions and learning curve, and
`reproduce.py report` writes this page from them; nothing here is written by hand but the remarks.

- **Accuracy and loss** are those of the epoch with the least validation loss, on sequences or
  images that were used neither for training nor for choosing the epoch: mean and standard deviation
  over the seeds. The paper's are printed as they stand there.
- **Epochs** are the paper's: on induction heads 10,000 steps of 512 sequences, each new; on MNIST
  50,000 images. A run ends when it has the paper's accuracy (where the paper has 0.99+: 0.995 on
  the validation sequences), after the paper's number of epochs, or when its time is over.
- **Minutes** are wall time of one run on one core of a busy machine with two; not a benchmark.
- **Verdict**, on the mean: *reproduced* is within 0.01 of the paper on induction heads, or at least
  0.99 where it has 0.99+, and within 0.5 % on MNIST; *better* is above that; *not reached in the
  budget given* is below it in runs that were ended by their time; *different* is below it in runs
  that had the paper's number of epochs.

"""
COLUMNS = ("", "parameters", "accuracy: paper", "ours", "seed by seed", "loss: paper", "ours")
COLUMNS += ("epochs: paper", "ours", "minutes", "verdict")


def write(rows, folder, docs):
    runs = records.read(folder)
    again = records.read(folder / "again")
    text = page(rows, runs, again)
    plots.draw_all(rows, runs, docs / "images")
    (docs / "results.md").write_text(text)
    print(f"{docs / 'results.md'} is written.")


def page(rows, runs, again):
    parts = [HEAD]
    for table, title in TABLES.items():
        own = [row for row in rows if row.table == table]
        parts += [f"## {title}\n\n", *section(own, runs)]
        parts += [vectors(runs[row.name]) for row in own if row.name == "ih0-embeddings"]
        parts += images(table)
    parts += ["## What the paper leaves open\n\n", *section(TRIED, runs)]
    parts += ["## On the three backends\n\n", backends(rows, runs)]
    parts += ["## Run twice\n\n", twice(runs, again)]
    return "".join(parts).rstrip() + "\n"


def section(rows, runs):
    cells = [line(row, records.main_runs(runs[row.runs_of])) for row in rows]
    remarks = [f"- **{row.label}**: {row.remark}\n" for row in rows if row.remark]
    return [as_table(COLUMNS, cells), *remarks, "\n" * bool(remarks)]


def line(row, runs):
    paper = row.paper
    if not runs:
        return [row.label, f"{paper.parameters:,}", paper.accuracy, "not run", *[""] * 7]
    percent = paper.accuracy.endswith("%")
    return [
        row.label,
        f"{runs[0]['parameters']:,}",
        paper.accuracy,
        spread([run["accuracy"] for run in runs], percent),
        ", ".join(spread([run["accuracy"]], percent) for run in runs),
        paper.loss,
        spread([run["loss"] for run in runs]),
        paper.epochs,
        ", ".join(str(run["epochs"]) for run in runs),
        f"{statistics.mean(run['seconds'] for run in runs) / 60:.1f}",
        f"**{verdict(row, runs)}**",
    ]


def spread(values, percent=False):
    scale, digits, unit = (100, 1, " %") if percent else (1, 3, "")
    text = f"{scale * statistics.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {scale * statistics.stdev(values):.{digits}f}"
    return text + unit


def verdict(row, runs):
    ours, paper = statistics.mean(run["accuracy"] for run in runs), row.paper.number
    at_least = row.paper.accuracy.endswith("+")
    if ours < paper - (0 if at_least else row.paper.tolerance):
        by_time = any(run["stopped_by"] == "budget" for run in runs)
        return "not reached in the budget given" if by_time else "different"
    return "reproduced" if at_least or ours <= paper + row.paper.tolerance else "better"


def vectors(runs):
    """What IH0 learned, beside what the paper prints."""
    cells = []
    for symbol, paper in enumerate(IH0_PAPER):
        ours = ["({}, {})".format(*run["vectors"][symbol]) for run in runs[:1]]
        cells.append([str(symbol + 1), "({}, {})".format(*paper), *ours])
    answered = [f"{run['answered']} of {run['sequences']} sequences" for run in runs[:1]]
    cells.append(["answered", "8 of 8 sequences", *answered])
    return as_table(("symbol", "vector in the paper", "vector here"), cells)


def images(table):
    return [
        f"![{alt}](images/{file})\n\n" for file, (own, alt) in plots.IMAGES.items() if own == table
    ]


def backends(rows, runs):
    cells = []
    for row in rows:
        own = {run["backend"]: [] for run in runs[row.name]}
        for run in runs[row.name]:
            own[run["backend"]].append(run["accuracy"])
        if len(own) > 1:
            cells += [[row.label, name, spread(own[name]), str(len(own[name]))] for name in own]
    return as_table(("", "backend", "accuracy", "seeds"), cells)


def twice(runs, again):
    """Which runs gave the same history, loss and accuracy, bit for bit, when they were repeated."""
    cells = []
    for run in (run for repeated in again.values() for run in repeated):
        key = run["backend"], run["seed"]
        (first,) = (r for r in runs[run["row"]] if (r["backend"], r["seed"]) == key)
        same = all(run[what] == first[what] for what in ("history", "loss", "accuracy"))
        cells.append([run["row"], *map(str, key), "the same" if same else "**not the same**"])
    return as_table(("row", "backend", "seed", "history, loss and accuracy"), cells)


def as_table(columns, cells):
    lines = [columns, ["---"] * len(columns), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"
