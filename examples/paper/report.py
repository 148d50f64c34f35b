"""docs/results.md: the paper's numbers beside ours."""

import collections
import statistics

import plots
import records
import rivals
from induction_heads import IH0_PAPER
from remarks import DISTANCES, HEAD, MEANINGS, OF_ROWS, OPEN, OTHERS, RIVALS, RIVALS_IMAGES
from rows import PLAIN, TABLES, TRIED

GOOD = ("reproduced", "better", "higher")
VERDICTS = ("", "verdict", "paper", "ours")
DETAILS = ("", "parameters", "accuracy of each seed", "loss", "in the paper", "epochs")
DETAILS += ("in the paper", "minutes")
# A column that says the same in every row becomes a sentence above the table.
SENTENCES = {1: "parameters: {}", 6: "epochs in the paper: {}"}


def write(rows, folder, docs):
    runs = records.read(folder)
    again = records.read(folder / "again")
    text = page(rows, runs, again)
    plots.draw_all(rows, runs, docs / "images")
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "results.md").write_text(text)
    print(f"{docs / 'results.md'} is written.")


def page(rows, runs, again):
    parts = [HEAD, RIVALS]
    for title, lines in rivals.tables(runs):
        parts += [f"**{title}**\n\n{as_table(rivals.COLUMNS, lines)}"] if lines else []
    parts += [RIVALS_IMAGES, as_table(rivals.IMAGE_COLUMNS, list(rivals.images(runs)))]
    parts += ["## The paper's rows\n\n"]
    parts += [counts(rows, runs), verdicts(rows, runs, with_table=True), MEANINGS]
    for table, title in TABLES.items():
        own = [row for row in rows if row.table == table]
        parts += [f"## {title}\n\n", *section(own, runs)]
        parts += [vectors(runs[row.name]) for row in own if row.name == "ih0-embeddings"]
        parts += images(table)
    parts += [OPEN]
    for text, other in ((DISTANCES, PLAIN), (OTHERS, TRIED)):
        parts += [text, verdicts(other, runs), *remarks(other)]
    parts += images("tried")
    parts += ["## On the three backends\n\n", backends([*rows, *PLAIN], runs)]
    parts += ["## Run twice\n\n", twice(runs, again)]
    return "".join(parts).rstrip() + "\n"


def counts(rows, runs):
    """How many rows have which verdict."""
    words = [judgement(row, runs).partition(" (")[0] for row in rows]
    each = [f"{number} {word}" for word, number in collections.Counter(words).most_common()]
    return f"**Of {len(rows)} rows: {', '.join(each)}.**\n\n"


def verdicts(rows, runs, with_table=False):
    """One line a row: what the paper says, what we found, and the verdict."""
    cells = []
    for row in rows:
        own = records.main_runs(runs[row.runs_of])
        label = f"{TABLES[row.table].partition(':')[0]}: {row.label}" if with_table else row.label
        ours = spread([run["accuracy"] for run in own], row.paper) if own else ""
        word = judgement(row, runs)
        cells.append([label, f"**{word}**" if own else word, row.paper.accuracy, ours])
    return as_table(VERDICTS, cells)


def judgement(row, runs):
    own = records.main_runs(runs[row.runs_of])
    return verdict(row, own) if own else "not run yet"


def section(rows, runs):
    """The details of the rows that were run, and what is known of them."""
    known = [(row, records.main_runs(runs[row.runs_of])) for row in rows]
    return [details([line(row, own) for row, own in known if own]), *remarks(rows)]


def remarks(rows):
    said = [f"- **{row.label}**: {OF_ROWS[row.name]}\n" for row in rows if row.name in OF_ROWS]
    return [*said, "\n" * bool(said)]


def details(cells):
    """A table without the columns that are the same in every row."""
    if not cells:
        return "Not run yet.\n\n"
    same = [k for k in range(1, len(DETAILS)) if len({cell[k] for cell in cells}) == 1]
    same = [k for k in same if len(cells) > 1 or not cells[0][k]]
    said = [SENTENCES[k].format(cells[0][k]) for k in same if k in SENTENCES and cells[0][k]]
    gone = {k for k in same if k in SENTENCES or not cells[0][k]}
    sentence = f"All rows: {'; '.join(said)}.\n\n" if said else ""
    kept = [[x for k, x in enumerate(cell) if k not in gone] for cell in (DETAILS, *cells)]
    return sentence + as_table(kept[0], kept[1:])


def line(row, runs):
    paper = row.paper
    accuracies = [run["accuracy"] for run in runs]
    backend = runs[0]["backend"]
    return [
        row.label if backend == "jax" else f"{row.label}, {backend}",
        f"{runs[0]['parameters']:,}",
        ", ".join(spread([accuracy], paper) for accuracy in accuracies) if len(runs) > 1 else "",
        spread([run["loss"] for run in runs]),
        paper.loss,
        ", ".join(str(run["epochs"]) for run in runs),
        paper.epochs,
        f"{statistics.mean(run['seconds'] for run in runs) / 60:.1f}",
    ]


def spread(values, paper=None):
    """Mean and standard deviation; of accuracies with a digit more than the paper has."""
    percent = paper is not None and paper.accuracy.endswith("%")
    scale, digits, unit = (100, 2, " %") if percent else (1, 4 if paper else 3, "")
    text = f"{scale * statistics.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {scale * statistics.stdev(values):.{digits}f}"
    return text + unit


def verdict(row, runs):
    accuracies = [run["accuracy"] for run in runs]
    by_mean = judged(row, statistics.mean(accuracies), runs)
    as_good = sum(judged(row, accuracy, runs) in GOOD for accuracy in accuracies)
    if as_good in (0, len(runs)):
        return by_mean
    if by_mean == "different" and 2 * as_good > len(runs):
        return f"reproduced in most seeds ({as_good} of {len(runs)})"
    return f"{by_mean} ({as_good} of {len(runs)} seeds reach it)"


def judged(row, ours, runs):
    paper = row.paper.accuracy_as_number
    at_least = row.paper.accuracy.endswith("+")
    if ours < paper - (0 if at_least else row.paper.tolerance):
        by_time = any(run["stopped_by"] == "budget" for run in runs)
        return "not reached in time" if by_time else "different"
    if at_least or ours <= paper + row.paper.tolerance:
        return "reproduced"
    return "higher" if row.paper.is_failure else "better"


def vectors(runs):
    """What IH0 learned, beside what the paper prints."""
    cells = []
    for symbol, paper in enumerate(IH0_PAPER):
        pairs = [paper, *(run["vectors"][symbol] for run in runs[:1])]
        cells.append([str(symbol + 1), *("({:.3f}, {:.3f})".format(*pair) for pair in pairs)])
    answered = [f"{run['answered']} of {run['sequences']} sequences" for run in runs[:1]]
    cells.append(["answered", "8 of 8 sequences", *answered])
    return as_table(("symbol", "vector in the paper", "vector here"), cells)


def images(table):
    return [
        f"![{alt}](images/{file})\n\n" for file, (own, alt) in plots.IMAGES.items() if own == table
    ]


def backends(rows, runs):
    """Rows that ran on several backends, beside the seeds of the one with the most of them."""
    cells = []
    for row in rows:
        main = [run["accuracy"] for run in records.main_runs(runs[row.name])]
        for name in sorted({run["backend"] for run in runs[row.name]}):
            own = [run["accuracy"] for run in runs[row.name] if run["backend"] == name]
            if len(own) < len(runs[row.name]):
                inside = within(own, main)
                cells.append([row.label, name, spread(own, row.paper), str(len(own)), inside])
    return as_table(("", "backend", "accuracy", "seeds", "within two standard deviations"), cells)


def within(own, main):
    """Whether means differ by no more than two standard deviations of the seeds."""
    if own == main or len(main) < 2:
        return ""
    distance = abs(statistics.mean(own) - statistics.mean(main))
    return "yes" if distance <= 2 * statistics.stdev(main) else "**no**"


def twice(runs, again):
    """Which runs gave the same history, loss and accuracy, bit for bit, when they were repeated."""
    cells = []
    for second in (run for repeated in again.values() for run in repeated):
        key = second["row"], second["backend"], second["seed"]
        for first in runs[second["row"]]:
            if (first["row"], first["backend"], first["seed"]) == key:
                same = all(first[what] == second[what] for what in ("history", "loss", "accuracy"))
                cells.append([*map(str, key), "the same" if same else "**not the same**"])
    return as_table(("row", "backend", "seed", "history, loss and accuracy"), cells)


def as_table(columns, cells):
    lines = [columns, ["---"] * len(columns), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"
