"""What it costs to turn and move images, beside a training step on them.

    KERAS_BACKEND=jax python benchmarks/augmentation.py
    KERAS_BACKEND=torch python benchmarks/augmentation.py --rounds 10

Times `AugmentedImages`, Keras' layers for the same, and a training step of the four-direction
classifier of MNIST, without Keras' layers and with them inside the model. Batches of 512 images of
28 × 28 pixels, which are random: what they show makes no difference.
"""

import argparse
import itertools

import arguments


def make_parser() -> argparse.ArgumentParser:
    parser = arguments.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="times that each is measured")
    return parser


if __name__ == "__main__":
    make_parser().parse_args()  # --help and mistakes end here: what follows needs a backend

import measuring
import numpy as np

BATCH, SIZE, IMAGES = 512, 28, 50_000
ROTATION, TRANSLATION = 5, 0.01


def random_images():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (IMAGES, SIZE, SIZE), np.uint8)
    return images, generator.integers(0, 10, IMAGES, np.int32)


def keras_layers(keras):
    settings = {"fill_mode": "constant", "interpolation": "bilinear", "seed": 0}
    return [
        keras.layers.Reshape((SIZE, SIZE, 1)),
        keras.layers.RandomRotation(ROTATION / 360, **settings),
        keras.layers.RandomTranslation(TRANSLATION, TRANSLATION, **settings),
        keras.layers.Reshape((SIZE, SIZE)),
    ]


def classifier(keras, first=()):
    from keras_coffee import CoffeeLayer
    from keras_coffee.layers import FourDirections

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE)),
            *first,
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((SIZE, SIZE, 1)),
            keras.layers.CenterCrop(25, 25),
            keras.layers.Reshape((25, 25)),
            FourDirections(CoffeeLayer(n=2, output_filter=True)),
            keras.layers.Dense(25, "gelu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def sides(keras):
    """Names, and calls without arguments; each call gets through one batch."""
    from keras_coffee.datasets import AugmentedImages

    images, labels = random_images()
    ours = AugmentedImages(images, labels, BATCH, ROTATION, TRANSLATION)
    # All but the last batch, which is smaller.
    numbers = itertools.cycle(range(len(ours) - 1))
    batch = images[:BATCH].astype(np.float32), labels[:BATCH]
    layers = keras.Sequential([keras.Input((SIZE, SIZE)), *keras_layers(keras)])
    plain, augmenting = classifier(keras), classifier(keras, keras_layers(keras))
    return {
        "AugmentedImages": lambda: ours[next(numbers)],
        "Keras' layers, called": lambda: keras.ops.convert_to_numpy(
            layers(batch[0], training=True)
        ),
        "training step": lambda: plain.train_on_batch(*batch),
        "training step, Keras' layers in the model": lambda: augmenting.train_on_batch(*batch),
    }


def table(names, times):
    """Milliseconds of the processor, and how they compare with a training step, round by round."""
    milliseconds = {
        name: np.array([1e3 * processor for processor, _ in rounds.values()])
        for name, rounds in zip(names, times, strict=True)
    }
    step = milliseconds["training step"]
    yield measuring.line(["", "ms a batch", "× training step"])
    yield "|---|---|---|"
    for name, taken in milliseconds.items():
        ratio = np.median(taken / step)
        yield measuring.line([name, f"{np.median(taken):.1f}", f"{ratio:.2f}"])


def main():
    options = make_parser().parse_args()
    where, _, reference = measuring.prepare(options.core)
    import keras

    runs = sides(keras)
    for run in runs.values():
        # Compiles.
        run(), run()
    times = measuring.take_turns(list(runs.values()), [options.rounds] * len(runs))
    print(*measuring.environment(reference, where), *table(runs, times), sep="\n")


if __name__ == "__main__":
    main()
