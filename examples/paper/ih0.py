"""IH0: a model of six parameters, small enough to see how it works.

Symbols are 1 to 3, the trigger is 1, and a sequence has four of them: eight sequences in all. The
transition is 0, gate and readout are 1, so the state is the output, a point of the plane, and only
the vectors of the three symbols are learned, from a start that follows the paper's principles.

    KERAS_BACKEND=jax python examples/paper/ih0.py

trains the model, answers all eight sequences and draws them; `reproduce.py ih0` keeps the result.
"""

import argparse
import pathlib
import tempfile


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("outputs/ih0.png"), metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import numpy as np
import training
from induction_heads import IH0_PAPER, Ih0
from matplotlib.figure import Figure

from keras_coffee.visualization import plot_decision_regions, plot_gates, plot_state_trajectory

# The two sequences of the paper's figure, numbered from 0 as the embedding numbers its symbols.
FIGURE = ((0, 1, 2, 0), (2, 0, 1, 0))


def model_with(vectors):
    model = Ih0().build_model()
    model.get_layer("symbols").set_weights([np.array(vectors)])
    return model


def draw(model, file):
    """The figure of the paper, and the gates of its two sequences over time."""
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    plane, gates = figure.subfigures(1, 2, width_ratios=(1.2, 1))
    axes = plane.subplots()
    names = ("1", "2", "3")
    plot_decision_regions(model, labels=names, axes=axes)
    labels = ["‖".join(names[symbol] for symbol in sequence) for sequence in FIGURE]
    plot_state_trajectory(model, np.array(FIGURE), labels=labels, axes=axes)
    for axes, sequence, label in zip(gates.subplots(2, 1), FIGURE, labels, strict=True):
        plot_gates(model, np.array([sequence]), axes=axes)
        axes.set_title(f"gates while {label} is read")
        axes.set_xticks(range(len(sequence)), label.split("‖"))
    figure.savefig(file, dpi=200)


def main(argv=None):
    args = make_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        result = training.run(Ih0(), args.seed, pathlib.Path(folder), budget_minutes=10)
    for symbol, vector in enumerate(result["vectors"], start=1):
        print(f"symbol {symbol}: {vector}; the paper has {list(IH0_PAPER[symbol - 1])}")
    print("{answered} of {sequences} sequences answered, {epochs} epochs".format(**result))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    draw(model_with(result["vectors"]), args.output)
    print(f"The figure is {args.output}.")


if __name__ == "__main__":
    main()
