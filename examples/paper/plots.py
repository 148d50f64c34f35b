"""Plots for docs/results.md."""

import itertools

import ih0
import records
from matplotlib.figure import Figure
from rows import OPEN_MNIST

# Which table a plot belongs to, and what it shows.
IMAGES = {
    "learning_curves.png": ("table1", "Validation accuracy of COFFEE and S6 over the training"),
    "accuracy_parameters.png": ("ablation", "Accuracy against the number of parameters"),
    "mnist_curves.png": ("mnist", "Validation accuracy on MNIST over the epochs"),
    "mnist_readings.png": ("tried", "Validation accuracy on MNIST, one reading at a time"),
    "ih0.png": ("ih0", "Vectors, decision regions, states and gates of the six-parameter model"),
}
# Four of Okabe and Ito's.
COLOR_BLIND_SAFE = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00")


def draw_all(rows, runs, folder):
    folder.mkdir(parents=True, exist_ok=True)
    learning_curves(runs, folder / "learning_curves.png")
    accuracy_parameters(rows, runs, folder / "accuracy_parameters.png")
    mnist_curves(rows, runs, folder / "mnist_curves.png")
    mnist_readings(runs, folder / "mnist_readings.png")
    for run in runs["ih0-embeddings"][:1]:
        ih0.draw(ih0.model_with(run["vectors"]), folder / "ih0.png")


def learning_curves(runs, file):
    """The first steps, looked at often, and after them the epochs of Table 1."""
    axes = new_axes("training sequences", "validation accuracy")
    for name, label, color in (("coffee", "COFFEE", "C0"), ("s6", "S6", "C1")):
        own = records.main_runs(runs[f"curve-{name}"]) + records.main_runs(runs[f"table1-{name}"])
        for run in own:
            settings, accuracy = run["settings"], run["history"]["val_accuracy"]
            epoch = settings["steps"] * settings["batch_size"]
            seen = [epoch * (k + 1) for k in range(len(accuracy))]
            own_label = f"{label}, {run['parameters']} parameters" if run is own[0] else None
            axes.plot(seen, accuracy, ".-", color=color, label=own_label, ms=3, lw=1)
    axes.set_xscale("log")
    finish(axes, file, loc="center right")


def accuracy_parameters(rows, runs, file):
    """Every seed, sequences of sixteen symbols."""
    axes = new_axes("parameters", "accuracy")
    for row in rows:
        own = records.main_runs(runs[row.runs_of])
        if not own or not row.name.startswith(("table1", "table2", "ablation")) or row.same_as:
            continue
        marker = "s" if "s6" in row.name or "linearized" in row.name else "o"
        for run in own:
            point = run["parameters"], run["accuracy"]
            axes.plot(*point, marker, color="C0", fillstyle="none")
        highest = own[0]["parameters"], max(run["accuracy"] for run in own)
        place = {"xytext": (0, -10), "textcoords": "offset points", "ha": "right", "va": "top"}
        axes.annotate(row.label.removeprefix("COFFEE, "), highest, fontsize=8, **place)
    axes.set_xscale("log", base=2)
    axes.set_xlim(left=4)
    axes.xaxis.set_major_formatter("{x:.0f}")
    finish(axes, file)


def mnist_curves(rows, runs, file):
    axes = new_axes("epochs", "validation accuracy")
    own_rows = (row for row in rows if row.table == "mnist")
    for row, color in zip(own_rows, COLOR_BLIND_SAFE, strict=True):
        for index, run in enumerate(records.main_runs(runs[row.name])):
            label = f"{row.label}, {run['parameters']:,} parameters" if index == 0 else None
            by_epochs(axes, run, color=color, label=label)
    finish(axes, file)


def mnist_readings(runs, file):
    """Of the first seed, beside Table 7's COFFEE."""
    axes = new_axes("epochs", "validation accuracy")
    labels = {"mnist-coffee": "as in Table 7"}
    labels |= {f"tried-mnist-{name}": label for name, (label, _) in OPEN_MNIST.items()}
    styles = itertools.product(("-", "--", ":"), COLOR_BLIND_SAFE)
    for (name, label), (style, color) in zip(labels.items(), styles, strict=False):
        for run in records.main_runs(runs[name])[:1]:
            by_epochs(axes, run, linestyle=style, color=color, label=label)
    axes.set_ylim(0.92, 0.975)
    finish(axes, file, fontsize=7, ncols=2)


def by_epochs(axes, run, **line):
    accuracy = run["history"]["val_accuracy"]
    axes.plot(range(1, len(accuracy) + 1), accuracy, lw=1, **line)


def finish(axes, file, **legend):
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**legend)
    axes.figure.savefig(file, dpi=200)


def new_axes(xlabel, ylabel):
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    return axes
