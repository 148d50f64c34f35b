"""Two blocks in Mamba's shape, its convolution included, each around another recurrence.

The blocks of experiments.py leave out the convolution, so that a layer sees one symbol at a time.
Here it sees four, as in Mamba.
"""

import dataclasses
import functools
import pathlib
import sys

from experiments import Beyond, Task
from models import WIDTH
from recall import InContextRecall, SelectiveCopying
from rows import Row

from keras_coffee import CoffeeLayer
from keras_coffee.layers import MambaMixer
from keras_coffee.models import language_model

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "language_model"))

from gru import GRU

RATES = (0.003, 0.01)
DEPTH = 2
# Sizes that give a block about 8,400 parameters.
MIXERS = {
    "mamba": lambda: MambaMixer(8),
    "coffee": lambda: MambaMixer(mixer=CoffeeLayer(10)),
    "inputgate": lambda: MambaMixer(mixer=CoffeeLayer(43, input_gate="full"), expand=1),
    "gru": lambda: MambaMixer(mixer=GRU(29), expand=1),
}
TITLES = {
    "mamba": "Mamba, n = 8",
    "coffee": "COFFEE, n = 10",
    "inputgate": 'COFFEE, `input_gate="full"`, n = 43',
    "gru": "GRU, 29 units",
}
two_thousand = functools.partial(Task, epochs=20, works=())
TASKS = {
    "copying": two_thousand(
        title="Selective copying, 8 of 64 symbols",
        make=SelectiveCopying,
        train={"length": 64, "copied": 8, "symbols": 16},
        tests={"64 symbols": {"length": 64}, "128 symbols": {"length": 128}},
        chance=1 / 14,
        why="Mamba is ahead, as its step size and matrices see the symbol: 0.98. The GRU has 0.95, "
        "COFFEE 0.7 to 0.9, and a gate that sees the input is worth less than 0.05.",
    ),
    "recall": two_thousand(
        title="Recall in context, 8 keys",
        make=InContextRecall,
        train={"length": 64, "symbols": 16},
        tests={"64 symbols": {"length": 64}, "128 symbols": {"length": 128}},
        chance=1 / 8,
        why="The convolution joins a key and its value, so the GRU gains most by it: above 0.8, "
        "and all others above 0.9.",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks(Beyond):
    """One task with one recurrence in two blocks."""

    depth: int = DEPTH
    tasks = TASKS

    def build_model(self):
        task = self._data("train", 1, 1, 0)
        mixers = [MIXERS[self.mixer]() for _ in range(self.depth)]
        return language_model(task.vocabulary, WIDTH, mixers, head="untied")


ROWS = [
    Row(
        f"blocks-{task}-{mixer}-rate{rate:g}",
        f"{TITLES[mixer]} in two blocks of Mamba's shape, {TASKS[task].title}, rate {rate:g}",
        Blocks.of(task, mixer=mixer, learning_rate=rate),
        None,
    )
    for rate in RATES
    for task in TASKS
    for mixer in MIXERS
]
