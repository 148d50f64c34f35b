"""Pictures for docs/results.md."""

import ih0
import records
from matplotlib.figure import Figure

# Which table a picture belongs to, and what it shows.
IMAGES = {
    "learning_curves.png": ("table1", "Validation accuracy of COFFEE and S6 over the training"),
    "accuracy_parameters.png": ("ablation", "Accuracy against the number of parameters"),
    "mnist_curves.png": ("mnist", "Validation accuracy on MNIST over the epochs"),
    "ih0.png": ("ih0", "Vectors, decision regions, states and gates of the six-parameter model"),
}
SEQUENCES = 512 * 10_000  # in an epoch of induction heads


def draw_all(rows, runs, folder):
    folder.mkdir(parents=True, exist_ok=True)
    learning_curves(runs, folder / "learning_curves.png")
    accuracy_parameters(rows, runs, folder / "accuracy_parameters.png")
    mnist_curves(rows, runs, folder / "mnist_curves.png")
    for run in runs["ih0-embeddings"][:1]:
        ih0.draw(ih0.model_with(run["vectors"]), folder / "ih0.png")


def learning_curves(runs, file):
    figure, axes = new_axes("training sequences", "validation accuracy")
    for name, label, colour in (("coffee", "COFFEE, 512", "C0"), ("s6", "S6, 784", "C1")):
        for row in (f"curve-{name}", f"table1-{name}"):
            for run in runs[row]:
                steps = run["settings"]["steps"] * run["settings"]["batch_size"]
                accuracy = run["history"]["val_accuracy"]
                seen = [steps * (k + 1) for k in range(len(accuracy))]
                own = f"{label} parameters" if row.startswith("curve") else None
                axes.plot(seen, accuracy, ".-", color=colour, label=own, ms=3, lw=1)
    axes.set_xscale("log")
    axes.legend(loc="upper left")
    figure.savefig(file, dpi=120)


def accuracy_parameters(rows, runs, file):
    figure, axes = new_axes("parameters", "accuracy")
    for row in rows:
        length = row.name.startswith(("table1", "table2", "ablation"))
        own = records.main_runs(runs[row.name])
        if length and own:
            marker = "s" if "s6" in row.name or "linearized" in row.name else "o"
            best = max(run["accuracy"] for run in own)
            axes.plot(own[0]["parameters"], best, marker, label=row.label)
    axes.set_xscale("log")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(file, dpi=120)


def mnist_curves(rows, runs, file):
    figure, axes = new_axes("epochs", "validation accuracy")
    for number, row in enumerate(row for row in rows if row.table == "mnist"):
        for index, run in enumerate(records.main_runs(runs[row.name])):
            accuracy = run["history"]["val_accuracy"]
            label = f"{row.label}, {run['parameters']:,} parameters" if index == 0 else None
            axes.plot(range(1, len(accuracy) + 1), accuracy, color=f"C{number}", label=label, lw=1)
    axes.legend()
    figure.savefig(file, dpi=120)


def new_axes(xlabel, ylabel):
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    return figure, axes
