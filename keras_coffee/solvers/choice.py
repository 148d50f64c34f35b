"""Solvers by name, and the choice of `"auto"`."""

from typing import Any, Literal

import keras

from keras_coffee import backend
from keras_coffee._typing import Tensor
from keras_coffee.solvers.associative import Associative
from keras_coffee.solvers.elk import Elk
from keras_coffee.solvers.newton import Newton
from keras_coffee.solvers.sequential import Sequential
from keras_coffee.solvers.solver import Solver

Kind = Literal["linear", "nonlinear"]

_BY_NAME: dict[Kind, dict[str, type[Solver]]] = {
    "linear": {"sequential": Sequential, "associative": Associative},
    "nonlinear": {"sequential": Sequential, "newton": Newton, "elk": Elk},
}
# Estimates from counts of kernel launches and of bytes moved (docs/solvers.md); nothing was timed
# on an accelerator. T steps are T launches and a parallel scan takes about 60 log2 T; with more
# than 2^13 states it loses, because it moves forty times as many bytes.
_LONG, _FEW = 2048, 2**13


def get(
    identifier: str | dict[str, Any] | Solver, kind: Kind = "nonlinear", *, recompute: bool = False
) -> Solver | str:
    """The solver for a name, a serialized solver or a solver. `"auto"` stays `"auto"`.

    Raises:
        ValueError: for anything else, for a solver of another kind of recurrence, for an unknown
            kind, and for a parallel solver together with `recompute`.
    """
    solver = _get(identifier, kind)
    if recompute and not isinstance(solver, Sequential | str):
        raise ValueError(
            "recompute=True keeps few states and computes the others again, for the sequential "
            f"solver. {type(solver).__name__} needs them all at once. Leave out one of the two."
        )
    return solver


def _get(identifier, kind):
    if kind not in _BY_NAME:
        raise ValueError(
            f"A recurrence is one of {list(_BY_NAME)} in its state, received {kind!r}. A layer "
            "says so by `KIND`."
        )
    by_name = _BY_NAME[kind]
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, str):
        if identifier == "auto":
            return identifier
        if identifier in by_name:
            return by_name[identifier]()
    if isinstance(identifier, tuple(by_name.values())):
        return identifier
    raise ValueError(
        f"A recurrence that is {kind} in its state takes as `solver` one of {['auto', *by_name]}, "
        f"or an object {', '.join(c.__name__ for c in by_name.values())} of keras_coffee.solvers, "
        f"received {identifier!r}."
    )


def fastest(kind: Kind, device: str, length: int | None, states: int | None) -> Solver:
    """The solver for `"auto"`: sequential, except for long linear scans on an accelerator.

    Args:
        kind: Whether the recurrence is linear in its state.
        device: `"cpu"`, `"gpu"` or `"tpu"`.
        length: T, or None if it is not known.
        states: States of a whole batch, B·D·n, or None if not known.
    """
    if device == "cpu" or kind == "nonlinear":
        return Sequential()
    if length is None or states is None or length < _LONG or states > _FEW:
        return Sequential()
    return Associative()


def choose(
    identifier: str | dict[str, Any] | Solver,
    kind: Kind,
    inputs: Tensor,
    states_per_sequence: int | None,
    *,
    recompute: bool = False,
) -> Solver:
    """The solver to run on inputs `(B, T, ...)`. Raises what `get` does."""
    solver = get(identifier, kind, recompute=recompute)
    batch, length = inputs.shape[:2]
    # A single step is not parallel, and an exporter cannot follow a loop that inspects its data.
    if recompute or length == 1 or not backend.can_iterate(inputs):
        return Sequential()
    if isinstance(solver, Solver):
        return solver
    unknown = batch is None or states_per_sequence is None
    states = None if unknown else batch * states_per_sequence
    return fastest(kind, backend.device_kind(inputs), length, states)
