"""A language model learns a text character by character, and then writes on.

The text is Python's own help, which comes with Python, or a file:

    KERAS_BACKEND=torch python examples/language_model/characters.py --prompt "The statement "
    KERAS_BACKEND=jax python examples/language_model/characters.py --minutes 10
"""

import argparse
import math
import os
import time
from pathlib import Path
from pydoc_data import topics

os.environ.setdefault("KERAS_BACKEND", "jax")

# With 96 features the first three models have about 148,000 parameters.
MIXERS = {
    "mamba": lambda dim: MambaMixer(16),
    "coffee": lambda dim: MambaMixer(mixer=CoffeeLayer(20)),
    "gru": lambda dim: MambaMixer(mixer=GRU(80), expand=1),
    "min-gru": lambda dim: MinGRU(dim),
}


def parser() -> argparse.ArgumentParser:
    """What can be set."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--text", type=Path, help="a text file; by default Python's help")
    p.add_argument("--mixer", choices=MIXERS, default="mamba")
    p.add_argument("--dim", type=int, default=96, help="features between the blocks")
    p.add_argument("--blocks", type=int, default=2)
    p.add_argument("--length", type=int, default=128, help="characters in a row")
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--minutes", type=float, help="train for this time instead of --epochs")
    p.add_argument("--learning-rate", type=float, default=0.004)
    p.add_argument("--prompt", default="The statement ")
    p.add_argument("--new", type=int, default=300, help="characters to write")
    p.add_argument("--temperature", type=float, default=0.7)
    p.add_argument("--seed", type=int, default=0)
    return p


if __name__ == "__main__":
    parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import keras
import numpy as np
from gru import GRU
from keras import ops

from keras_coffee import CoffeeLayer, Stream
from keras_coffee.layers import MambaMixer, MinGRU
from keras_coffee.models import language_model

# Characters outside of ASCII become question marks.
VOCABULARY = 128


def encode(text: str) -> np.ndarray:
    """The characters as integers."""
    return np.frombuffer(text.encode("ascii", "replace"), "uint8").astype("int32")


def decode(tokens: np.ndarray) -> str:
    """The text of integers."""
    return bytes(tokens.astype("uint8")).decode("ascii")


def python_help() -> str:
    """The texts that `help()` prints about the language."""
    return "\n".join(topics.topics.values())


def rows_of(text: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of the text, `(B, length + 1)`; of these the last tenth, to judge by."""
    tokens = encode(text)
    if len(tokens) < 2 * (length + 1):
        raise ValueError(
            f"The text must have at least {2 * (length + 1)} characters, for two rows of "
            f"length + 1 = {length + 1}; received {len(tokens)}."
        )
    rows = tokens[: len(tokens) // (length + 1) * (length + 1)].reshape(-1, length + 1)
    kept = max(1, len(rows) // 10)
    return rows[:-kept], rows[-kept:]


def choose(logits: np.ndarray, temperature: float, generator: np.random.Generator) -> int:
    """The most likely token, or one drawn from the softmax of the logits over the temperature."""
    scores = logits.astype("float64")
    if temperature > 0:
        # The largest of logits and Gumbel's noise is such a draw.
        scores = scores / temperature + generator.gumbel(size=scores.shape)
    return int(scores.argmax())


def generate(
    model: keras.Model, prompt: str, length: int, temperature: float = 0.0, seed: int = 0
) -> str:
    """What the model writes behind a prompt.

    Args:
        model: Made by `language_model`.
        prompt: At least one character.
        length: How many characters to write.
        temperature: 0: always the most likely character. Otherwise one is drawn, with the logits
            divided by it.
        seed: Of what is drawn.
    """
    generator = np.random.default_rng(seed)
    stream, written = Stream(model), []
    logits, state = stream(encode(prompt)[None], stream.get_initial_state(batch_size=1))
    last = ops.convert_to_numpy(logits[0, -1])
    state = {name: ops.convert_to_numpy(x) for name, x in state.items()}
    step = stream.as_model()  # Keras compiles it, where the backend can
    for _ in range(length):
        written.append(choose(last, temperature, generator))
        tokens = {"inputs": np.array(written[-1:], "int32")}
        results = step.predict_on_batch(tokens | state)
        state = {name: results[f"new.{name}"] for name in state}
        last = results["outputs"][0]
    return decode(np.array(written))


class Clock(keras.callbacks.Callback):
    """Prints the loss every quarter of a minute, and ends the training after some minutes.

    Args:
        minutes: How long to train. The step that is running then is the last.
    """

    def __init__(self, minutes: float):
        super().__init__()
        self.minutes = minutes

    def on_train_begin(self, logs=None):
        self.begin = self.printed = time.perf_counter()
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.steps += 1
        self.model.stop_training = now - self.begin >= 60 * self.minutes
        if self.model.stop_training or now - self.printed >= 15:
            self.printed = now
            bits = float(logs["loss"]) / math.log(2)
            print(f"{now - self.begin:.0f} s, {self.steps} steps: {bits:.3f} bits in this epoch")


def train(text: str, arguments: argparse.Namespace) -> tuple[keras.Model, float]:
    """A trained model, and its bits per character on the last tenth of the text."""
    rows, kept = rows_of(text, arguments.length)
    keras.utils.set_random_seed(arguments.seed)
    mixers = [MIXERS[arguments.mixer](arguments.dim) for _ in range(arguments.blocks)]
    model = language_model(VOCABULARY, arguments.dim, mixers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(arguments.learning_rate, clipnorm=1.0), loss)
    history = model.fit(
        rows[:, :-1],
        rows[:, 1:],
        batch_size=arguments.batch_size,
        epochs=10**6 if arguments.minutes else arguments.epochs,
        validation_data=(kept[:, :-1], kept[:, 1:]),
        callbacks=[Clock(arguments.minutes)] if arguments.minutes else [],
        verbose=2,
    )
    return model, history.history["val_loss"][-1] / math.log(2)


def main(given: list[str] | None = None) -> None:
    """Trains, and prints what the model writes, greedy and drawn."""
    arguments = parser().parse_args(given)
    text = arguments.text.read_text() if arguments.text else python_help()
    model, bits = train(text, arguments)
    print(f"{model.count_params()} parameters, {bits:.3f} bits per character")
    for name, temperature in (("greedy", 0.0), ("drawn", arguments.temperature)):
        written = generate(model, arguments.prompt, arguments.new, temperature, arguments.seed)
        print(f"\n--- {name}\n{arguments.prompt}{written}")


if __name__ == "__main__":
    main()
