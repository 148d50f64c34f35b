"""docs/beyond_the_paper.md: what was expected beside what came out."""

import collections
import inspect
import statistics

import plots
import records
from experiments import BEYOND_IT, RATES, TASKS
from models import MIXERS
from report import as_table, spread

TITLES = {
    "coffee": "COFFEE",
    "filter": "COFFEE, output filter",
    "inputgate": "COFFEE, gate sees the input",
    "linearized": "Linearized S6",
    "mamba": "S6, Mamba's",
    "mingru": "minGRU",
    "lru": "LRU",
    "gru": "GRU",
    "lstm": "LSTM",
}
VARIANTS = {
    (1, "parameters"): "One layer, equal parameters",
    (2, "parameters"): "Two layers, equal parameters",
    (1, "states"): "One layer, equal states",
    (2, "states"): "Two layers, equal states",
}
FIRST = next(iter(VARIANTS))
# Colours that the colour-blind can tell apart, by Okabe and Ito, and a mark for each.
COLORS = ("#d55e00", "#e69f00", "#cc79a7", "#0072b2", "#56b4e9", "#009e73", "#999999", "#7f4f24")
COLORS += ("#5d3a9b",)
MARKS = "osD^vP*Xh"

HEAD = """# Beyond the paper

What can feedback do that other recurrent layers can't, and the other way round? The paper tests
COFFEE on induction heads and MNIST. This page puts it beside eight other mixers on the field's own
tasks. Each task is tested **beyond the lengths of training**. What was expected was written down
before anything was run. The tasks are small: a run takes a minute on a busy core. So they show what
is learned quickly and what is not; a longer training may learn more.

"""
METHOD = f"""## How it was measured

Every mixer stands in the same residual block, as in Mamba but without its convolution: norm,
projection to 32 features, mixer, gate by silu of a second projection, projection back. A layer
therefore sees one symbol at a time, and what it knows of others is its own memory.

- *Equal parameters*: a block has about 4,500 of them, of which the projections take 2,000 to 3,000.
  *Equal states*: a layer carries 64 numbers from step to step. A COFFEE of 64 numbers has 192
  parameters of its own, a GRU of 64 numbers 18,816.
- Adam, the norm of gradients at most 1, the rate a tenth in the last third. The epoch of the least
  validation loss is judged. Rates are {" and ".join(f"{rate:g}" for rate in RATES)}. The better
  one by validation accuracy, a mean over seeds, is in the tables; each task's own table shows both.
- Layers start as they do by default. Nothing was tuned for any of them, except the size of parity:
  GRU and linearized S6 had to learn it within a minute.
- **Works** means an accuracy of {BEYOND_IT:g} or more beyond training, in the first test of a task.
- Numbers are means and standard deviations over seeds, whose number is in brackets.

"""


def write(rows, folder, docs):
    runs = grouped(records.read(folder))
    (docs / "images").mkdir(parents=True, exist_ok=True)
    draw(runs, docs / "images" / "beyond_induction.png")
    (docs / "beyond_the_paper.md").write_text(page(runs))
    print(f"{docs / 'beyond_the_paper.md'} is written.")


def grouped(by_row):
    """The runs of each task, mixer, depth and size, by their rate."""
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in (run for own in by_row.values() for run in records.main_runs(own)):
        own = run["settings"]
        key = own["task"], own["mixer"], own["depth"], own["equal"]
        runs[key][own["learning_rate"]].append(run)
    return runs


def page(runs):
    parts = [HEAD, "## Which layer for what\n\n", verdicts(runs)]
    for (depth, equal), title in VARIANTS.items():
        parts += [f"**{title}, accuracy beyond training**\n\n", overview(runs, depth, equal)]
    parts += [LEGEND, OUTCOME, METHOD]
    for name, task in TASKS.items():
        parts += section(name, task, runs)
    parts.append(compute(runs))
    return "".join(parts).rstrip() + "\n"


def best(by_rate):
    """The runs at the rate that is best by validation; none if there are none."""
    return max(by_rate.values(), key=lambda own: mean(own, validation), default=[])


def validation(run):
    return run["history"]["val_accuracy"][run["best_epoch"] - 1]


def beyond(run):
    return run["accuracy"]


def mean(runs, figure):
    return statistics.mean(map(figure, runs))


def cell(runs, figure):
    if not runs:
        return "not run yet"
    return f"{spread([figure(run) for run in runs])} ({len(runs)})"


def works(runs):
    return mean(runs, beyond) >= BEYOND_IT


def overview(runs, depth, equal):
    cells = []
    for name, task in TASKS.items():
        line = [f"[{task.title}](#{name})", f"{task.chance:.2f}"]
        known = [best(runs[name, mixer, depth, equal]) for mixer in MIXERS]
        if not any(known) and (depth, equal) != FIRST:
            continue
        for mixer, own in zip(MIXERS, known, strict=True):
            text = cell(own, beyond)
            if own:
                text = f"**{text}**" if works(own) else text
                text += " ≠" * (depth == 1 and works(own) != (mixer in task.works))
            line.append(text)
        cells.append(line)
    if not cells:
        return "Not run yet.\n\n"
    return as_table(["task", "by chance", *TITLES.values()], cells)


LEGEND = """Bold: works. ≠: the opposite of what was expected of one layer.

"""


def verdicts(runs):
    """What to use each layer for, by one layer of equal parameters."""
    lines = []
    for mixer, title in TITLES.items():
        groups = collections.defaultdict(list)
        for name, task in TASKS.items():
            own = best(runs[name, mixer, *FIRST])
            groups[verdict(own)].append(task.title)
        said = [f"{words}: {', '.join(groups[words])}." for words in WORDS if groups[words]]
        lines.append(f"- **{title}.** {' '.join(said)}\n")
    return "".join([*lines, "\n"])


WORDS = ("Use it for", "Learns, but not beyond the lengths of training", "Not for", "Not run yet")


def verdict(runs):
    if not runs:
        return WORDS[3]
    if works(runs):
        return WORDS[0]
    return WORDS[1] if mean(runs, validation) >= BEYOND_IT else WORDS[2]


def section(name, task, runs):
    settings = f"`{task.make.__name__}` of `examples/beyond/`; training: {said(task.train)}."
    settings += f" {task.epochs * 100:,} steps of {task.batch_size} sequences."
    source = " ".join(inspect.getdoc(task.make).partition("Source: ")[2].split())
    known = [TITLES[mixer] for mixer in MIXERS if mixer in task.works]
    return [
        f"## {task.title} {{#{name}}}\n\n",
        f"{settings} By chance: {task.chance:.2f}. Source: {source}\n\n",
        f"**Expected** of one layer: works with {', '.join(known)}; not with the others. ",
        f"{task.why}\n\n",
        results(name, task, runs),
        "![Accuracy against length](images/beyond_induction.png)\n\n" * (name == "induction"),
        f'```sh\nmake reproduce ARGS="beyond {name} --seeds 3"\n```\n\n',
    ]


def said(settings):
    return ", ".join(f"{name} {value}" for name, value in settings.items()).replace("_", " ")


def results(name, task, runs):
    """All runs of a task: validation at both rates, and the tests at the better one."""
    first, *further = task.tests
    columns = ["", "parameters", *(f"as in training, rate {rate:g}" for rate in RATES)]
    columns += ["rate", first, *further, "minutes a run"]
    cells = []
    for (depth, equal), title in VARIANTS.items():
        for mixer in MIXERS:
            by_rate = runs[name, mixer, depth, equal]
            own = best(by_rate)
            if own:
                label = f"{TITLES[mixer]}; {title[0].lower()}{title[1:]}"
                cells.append([label, *figures(by_rate, own, further)])
    return as_table(columns, cells) if cells else "Not run yet.\n\n"


def figures(by_rate, own, further):
    return [
        f"{own[0]['parameters']:,}",
        *(cell(by_rate.get(rate, []), validation) for rate in RATES),
        f"{own[0]['settings']['learning_rate']:g}",
        cell(own, beyond),
        *(cell(own, lambda run, test=test: run["further"][test]) for test in further),
        f"{mean(own, lambda run: run['seconds']) / 60:.1f}",
    ]


def compute(runs):
    own = [run for by_rate in runs.values() for group in by_rate.values() for run in group]
    hours = sum(run["seconds"] for run in own) / 3600
    return f"""## What it cost

{len(own)} runs, {hours:.1f} hours of training in all, on one core that other programs used as well.
Each run is a file in `results/beyond/`, and runs that are there are not made again.

```sh
make reproduce ARGS="beyond --list"
make reproduce ARGS="beyond report"  # writes this page
```
"""


def draw(runs, file):
    """Accuracy on induction heads against the length, from training's on."""
    axes = plots.new_axes("symbols", "accuracy")
    lengths = [settings["length"] for settings in TASKS["induction"].tests.values()]
    lengths.insert(0, TASKS["induction"].train["length"])
    for mixer, color, mark in zip(MIXERS, COLORS, MARKS, strict=True):
        own = best(runs["induction", mixer, *FIRST])
        if own:
            curves = [[validation(run), beyond(run), *run["further"].values()] for run in own]
            heights = [statistics.mean(column) for column in zip(*curves, strict=True)]
            axes.plot(lengths, heights, color=color, marker=mark, ms=5, label=TITLES[mixer])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    # Seen on light ground and on dark.
    axes.tick_params(colors="gray", which="both")
    for part in (axes.xaxis.label, axes.yaxis.label):
        part.set_color("gray")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(labelcolor="gray", framealpha=0, fontsize="small")
    axes.figure.savefig(file, dpi=240, transparent=True)


OUTCOME = ""
