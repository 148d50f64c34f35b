"""What is run beyond the paper: every task with every mixer, and what is expected of them.

`examples/paper/reproduce.py beyond` runs these rows; docs/beyond_the_paper.md shows them.
"""

import dataclasses
import pathlib
import sys

import keras
from models import MIXERS, gated
from recall import AssociativeRecall, InContextRecall, InductionHeads, SelectiveCopying
from tracking import FlipFlop, ModularArithmetic, Parity, WordProblem

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "paper"))

from rows import Row  # noqa: E402
from training import Experiment, steps_per_execution  # noqa: E402

# Learning rates, the first of which is run first.
RATES = (0.003, 0.001)
# The accuracy, in the hardest of its tests, of what is said to work.
BEYOND_IT = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task: training, validation as in training, and tests beyond it.

    Args:
        title: What the page calls it.
        make: The data set.
        train: Its settings in training and validation.
        tests: Its settings in each test, by what the page calls it.
        epochs: Of 100 steps.
        batch_size: Sequences in a batch.
        test_sequences: How many there are in validation and in each test.
        chance: The accuracy of guesses in the tests.
        works: The mixers of which one layer is expected to work beyond training. Written down
            before anything was run.
        why: The reason.
    """

    title: str
    make: type
    train: dict
    tests: dict[str, dict]
    epochs: int
    batch_size: int = 64
    test_sequences: int = 1024
    chance: float
    works: tuple[str, ...]
    why: str

    def data(self, split, batch_size, sequences, seed, **settings):
        return self.make(
            batch_size=batch_size,
            steps_per_epoch=max(1, sequences // batch_size),
            split=split,
            seed=seed,
            **self.train | settings,
        )


TASKS = {
    "parity": Task(
        title="Parity",
        make=Parity,
        train={"min_length": 3, "max_length": 20},
        tests={
            "21 to 128 symbols": {"min_length": 21, "max_length": 128},
            "129 to 256 symbols": {"min_length": 129, "max_length": 256},
        },
        epochs=15,
        batch_size=128,
        chance=0.5,
        works=("inputgate", "linearized", "gru", "lstm"),
        why="To flip or to hold, as the symbol says, takes a multiplier of the state that depends "
        "on the symbol and can be negative. The multiplier of COFFEE depends on the state alone; "
        "those of S6 and minGRU are positive, those of LRU constant. Linearized S6 has 1 + λΔ(k) "
        "in [-1, 1].",
    ),
    "flipflop": Task(
        title="Flip-flop",
        make=FlipFlop,
        train={"length": 32, "ignore": 0.8},
        tests={
            "256 symbols, 10 % of them to be ignored": {"length": 256, "ignore": 0.1},
            "256 symbols, 98 %": {"length": 256, "ignore": 0.98},
        },
        epochs=15,
        chance=0.5,
        works=("inputgate", "linearized", "mamba", "mingru", "gru", "lstm"),
        why="To hold whatever is in the state and to overwrite it takes a gate that sees the "
        "symbol. The gate of COFFEE sees the state alone: one that is closed to what is to be "
        "ignored is closed to the next write. The decay of LRU is constant.",
    ),
    "arithmetic": Task(
        title="Modular arithmetic",
        make=ModularArithmetic,
        train={"min_length": 3, "max_length": 20},
        tests={"21 to 64 symbols": {"min_length": 21, "max_length": 64}},
        epochs=150,
        chance=0.2,
        works=("gru", "lstm"),
        why="Addition modulo 5 turns a state by a fifth, which a real diagonal multiplier cannot "
        "do, and a product kept back multiplies one state by another.",
    ),
    "z60": Task(
        title="Z60",
        make=WordProblem,
        train={"group": "Z60", "length": 8},
        tests={"16 symbols": {"length": 16}},
        epochs=60,
        chance=1 / 60,
        works=("gru", "lstm"),
        why="Z60 is solvable, but has elements of order 3 and 5; a real diagonal multiplier has "
        "order 1 or 2. The sum without the modulus can be kept, but grows beyond training.",
    ),
    "a5": Task(
        title="A5",
        make=WordProblem,
        train={"group": "A5", "length": 8},
        tests={"16 symbols": {"length": 16}},
        epochs=60,
        chance=1 / 60,
        works=("gru", "lstm"),
        why="A5 is not solvable: it takes multipliers that do not commute, or a nonlinear state "
        "that sees all of itself.",
    ),
    "copying": Task(
        title="Selective copying",
        make=SelectiveCopying,
        train={"length": 32, "copied": 4, "symbols": 8},
        tests={"96 symbols": {"length": 96}},
        epochs=15,
        chance=1 / 6,
        works=("coffee", "filter", "inputgate", "gru", "lstm"),
        why="A state that latches keeps what was written first, so COFFEE can keep the symbols "
        "apart by their order. Where the gate sees the symbol alone it does not know which of "
        "them it is.",
    ),
    "recall": Task(
        title="Recall in context",
        make=InContextRecall,
        train={"length": 32, "symbols": 8},
        tests={"96 symbols": {"length": 96}},
        epochs=15,
        chance=1 / 4,
        works=("coffee", "filter", "inputgate", "gru", "lstm"),
        why="At a value its key has to be known, which was the symbol before. One layer knows it "
        "only if its gate sees its own state, for there is no convolution here.",
    ),
    "noisy": Task(
        title="Recall in noise",
        make=InContextRecall,
        train={"length": 32, "symbols": 8, "noise_symbols": 8, "noise": 0.2},
        tests={"96 symbols": {"length": 96}},
        epochs=15,
        chance=1 / 4,
        works=("coffee", "filter", "inputgate", "gru", "lstm"),
        why="As without noise.",
    ),
    "mqar": Task(
        title="Multi-query recall",
        make=AssociativeRecall,
        train={"length": 24, "pairs": 3, "symbols": 16},
        tests={"48 symbols": {"length": 48}},
        epochs=15,
        chance=1 / 8,
        works=("coffee", "filter", "inputgate", "gru", "lstm"),
        why="As recall in context.",
    ),
    "induction": Task(
        title="Induction heads",
        make=InductionHeads,
        train={"length": 32, "symbols": 4},
        tests={
            f"{length:,} symbols": {"length": length} for length in (256, 1024, 4096, 16384, 65536)
        },
        epochs=100,
        test_sequences=512,
        chance=1 / 3,
        works=("coffee", "filter", "inputgate", "gru", "lstm"),
        why="The trigger is not known before the end, so what followed each symbol has to be kept. "
        "A symbol arms a state, which latches what comes next.",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beyond(Experiment):
    """One task with one mixer in one or two blocks."""

    task: str
    mixer: str
    depth: int = 1
    equal: str = "parameters"
    learning_rate: float
    epochs: int
    steps: int = 100
    batch_size: int
    test_sequences: int
    # By the names that `task` may have.
    tasks = TASKS

    @classmethod
    def of(cls, task, **settings):
        """With the task's own training."""
        own = cls.tasks[task]
        settings |= {"batch_size": own.batch_size, "test_sequences": own.test_sequences}
        return cls(task=task, epochs=own.epochs, **settings)

    def smoke(self):
        small = {"steps": 2, "batch_size": 4, "test_sequences": 4}
        return dataclasses.replace(self, epochs=2, **small)

    def build_model(self):
        task = self._data("train", 1, 1, 0)
        return gated(self.mixers(), task.vocabulary, task.classes)

    def mixers(self):
        """One for each block."""
        make = MIXERS[self.mixer][0]
        return [make(self.size) for _ in range(self.depth)]

    @property
    def size(self):
        """Of the mixer, as `MIXERS` has it."""
        return MIXERS[self.mixer][1 + ("parameters", "states").index(self.equal)]

    def load_data(self, seed):
        return (
            self._data("train", self.batch_size, self.steps * self.batch_size, seed),
            self._data("validation", *self._fresh(), seed),
            self._test(0, seed),
        )

    def compile(self, model):
        model.compile(
            keras.optimizers.Adam(self.learning_rate, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            ),
            weighted_metrics=["accuracy"],
            steps_per_execution=steps_per_execution(),
        )

    def callbacks(self):
        """The rate falls to a tenth in the last third, so that runs end where they are steady."""
        settled = 2 * self.epochs // 3
        lower = self.learning_rate / 10
        return [
            keras.callbacks.LearningRateScheduler(
                lambda epoch: lower if epoch >= settled else self.learning_rate
            )
        ]

    def facts(self, model):
        """The accuracy of all tests after the first."""
        names = list(self.tasks[self.task].tests)
        return {
            "further": {
                names[k]: model.evaluate(self._test(k, 0), verbose=0)[1]
                for k in range(1, len(names))
            }
        }

    def _fresh(self):
        return min(256, self.test_sequences), self.test_sequences

    def _test(self, number, seed):
        settings = list(self.tasks[self.task].tests.values())[number]
        batch_size, sequences = self._fresh()
        # Long sequences in small batches, and fewer of them.
        longest = settings.get("length", 0)
        if longest > 1024:
            batch_size = max(1, min(batch_size, 2**19 // longest))
            sequences = min(sequences, 128)
        return self._data("test", batch_size, sequences, seed, **settings)

    def _data(self, split, batch_size, sequences, seed, **settings):
        return self.tasks[self.task].data(split, batch_size, sequences, seed, **settings)


def named(experiment):
    own = experiment
    rate = f"rate{own.learning_rate:g}"
    name = f"{own.task}-{own.mixer}-{own.depth}-{own.equal}-{rate}"
    layers = "layer" if own.depth == 1 else "layers"
    label = f"{own.mixer}, {own.depth} {layers}, equal {own.equal}, {rate}"
    return Row(name, label, experiment, None)


# What decides most comes first: one layer before two, one size before the other.
ROWS = [
    named(Beyond.of(task, mixer=mixer, depth=depth, equal=equal, learning_rate=rate))
    for depth, equal in ((1, "parameters"), (2, "parameters"), (1, "states"), (2, "states"))
    for rate in RATES
    for task in TASKS
    for mixer in MIXERS
]
