"""The figures of docs/beyond_the_paper.md."""

import statistics

import plots
from experiments import TASKS
from matplotlib.figure import Figure
from models import MIXERS
from newton import ROWS as NEWTON_ROWS
from newton import WINDOW
from outcomes import (
    BEST_KNOWN_FIRST,
    FIRST,
    TITLES,
    VARIANTS,
    best,
    beyond,
    first,
    mean,
    validation,
)

# Colours that the colour-blind can tell apart, by Okabe and Ito, and a mark for each.
COLORS = ("#d55e00", "#e69f00", "#cc79a7", "#0072b2", "#56b4e9", "#009e73", "#999999", "#7f4f24")
COLORS += ("#5d3a9b", "#882255")
MARKS = "osD^vP*Xhp"


def draw_all(runs, by_row, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, task in TASKS.items():
        draw_task(name, task, runs, folder / f"beyond_{name}.png")
    draw_lengths(runs, folder / "beyond_lengths.png")
    draw_iterations(by_row, folder / "beyond_newton.png")


def draw_task(name, task, runs, file):
    """Each mixer, in a panel for each number of layers and each size."""
    variants = {variant: title for variant, title in VARIANTS.items() if variant != (2, "states")}
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    panels = figure.subplots(1, len(variants), sharey=True)
    for axes, (variant, title) in zip(panels, variants.items(), strict=True):
        axes.set(xlim=(-0.03, 1.03), xlabel="accuracy")
        axes.set_title(title, color="gray", fontsize="small")
        axes.grid(alpha=0.3)
        axes.axvline(task.chance, color="gray", ls=":", lw=1)
        for mixer, color in zip(MIXERS, COLORS, strict=False):
            height = -BEST_KNOWN_FIRST.index(mixer)
            draw_mixer(axes, best(runs[name, mixer, *variant]), height, color)
        fade(axes)
    panels[0].set_yticks(range(0, -len(MIXERS), -1), [TITLES[x] for x in BEST_KNOWN_FIRST])
    figure.savefig(file, dpi=200, transparent=True)


def draw_mixer(axes, own, height, color):
    """A ring in training, a disk in the hardest test, and a line for each of its seeds."""
    if own:
        ends = mean(own, validation), mean(own, beyond)
        axes.plot(ends, [height] * 2, color=color, lw=1)
        axes.plot(ends[0], height, "o", color=color, fillstyle="none")
        axes.plot(ends[1], height, "o", color=color)
        axes.plot([beyond(run) for run in own], [height] * len(own), "|", color=color)


def draw_lengths(runs, file):
    """Accuracy on induction heads against the length, from training's on."""
    axes = plots.new_axes("symbols", "accuracy")
    lengths = [settings["length"] for settings in TASKS["induction"].tests.values()]
    lengths.insert(0, TASKS["induction"].train["length"])
    for mixer, color, mark in zip(MIXERS, COLORS, MARKS, strict=False):
        own = best(runs["induction", mixer, *FIRST])
        if own:
            curves = [[validation(run), first(run), *run["further"].values()] for run in own]
            heights = [statistics.mean(column) for column in zip(*curves, strict=True)]
            axes.plot(lengths, heights, color=color, marker=mark, ms=5, label=TITLES[mixer])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.axhline(TASKS["induction"].chance, color="gray", ls=":", lw=1, label="by chance")
    save(axes, file, loc="lower center", ncols=3)


def draw_iterations(by_row, file):
    """Of the first seed: where the solver was looked at, over the share of the training."""
    axes = plots.new_axes("share of the training", f"iterations for windows of {WINDOW} steps")
    axes.set_ylim(0, WINDOW * 1.05)
    for row, color, mark in zip(NEWTON_ROWS, COLORS, MARKS, strict=True):
        for run in by_row.get(row.name, [])[:1]:
            every, last = row.experiment.every, row.experiment.epochs
            epochs = sorted({1, *range(every, last, every), last})
            counts = [run["history"]["coffee_iterations"][epoch - 1] for epoch in epochs]
            title = TASKS[run["settings"]["task"]].title
            shares = [epoch / last for epoch in epochs]
            axes.plot(shares, counts, color=color, marker=mark, ms=4, lw=1, label=title)
    save(axes, file, ncols=2)


def save(axes, file, **legend):
    """Twice as fine as the others, and to be seen on light ground and on dark."""
    fade(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(labelcolor="gray", framealpha=0, fontsize="small", **legend)
    axes.figure.savefig(file, dpi=240, transparent=True)


def fade(axes):
    axes.tick_params(colors="gray", which="both")
    for part in (axes.xaxis.label, axes.yaxis.label):
        part.set_color("gray")
