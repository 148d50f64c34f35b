"""Random numbers of the data sets: the same on every machine, and for every version of NumPy."""

import numpy as np


def generator_of(seed: int, *key: int) -> np.random.Generator:
    """Independent streams for different keys of a seed."""
    # The bit generator is named because numpy's default one may change.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
