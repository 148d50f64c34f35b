"""The least that a step costs on a card."""

import math

COFFEE, S6, LINEAR, GRU = "COFFEE", "S6", "linear", "GRU"
INFERENCE, TRAINING, RECOMPUTE = "inference", "training", "training, recompute"


def least_bytes(family: str, shape: tuple, mode: str) -> int:
    """To and from the memory of the card, in float32, each array read or written once."""
    batch, length, dim, n = shape
    features, states, steps = batch * length * dim, batch * dim * n, batch * length
    forward, backward = 2 * states, 2 * states
    if family == LINEAR:
        forward += 3 * features * n
        backward += 5 * features * n
    else:
        keep = math.isqrt(length) if mode == RECOMPUTE else 1
        kept = 0 if mode == INFERENCE else -(-length // keep) * states
        forward += 2 * features + kept
        backward += 3 * features + kept
    if family == S6:
        forward += features + 2 * steps * n
        backward += 2 * features + 4 * steps * n
    return 4 * (forward if mode == INFERENCE else forward + backward)


def special_functions(family: str, shape: tuple, mode: str) -> int:
    """Exponentials and reciprocals: two for a sigmoid, one for the decay of S6, in each pass."""
    passes = {INFERENCE: 1, TRAINING: 2, RECOMPUTE: 3}[mode]
    return passes * math.prod(shape) * {COFFEE: 2, S6: 1, LINEAR: 0}[family]


def limit(record: dict, ceilings: dict) -> tuple[float, str] | None:
    """Milliseconds that a timed row takes at least on this card, and what binds."""
    if len(ceilings) < 2 or record["family"] == GRU:
        return None
    what = record["family"], record["shape"], record["mode"]
    times = {
        "memory": 1e3 * least_bytes(*what) / ceilings["bytes_per_second"],
        "special functions": 1e3 * special_functions(*what) / ceilings["special_per_second"],
    }
    binds = max(times, key=lambda name: times[name])
    return times[binds], binds
