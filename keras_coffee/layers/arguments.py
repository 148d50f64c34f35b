"""Checks that the layers share."""

import difflib
import inspect
from collections.abc import Collection, Sequence
from typing import Any

from keras_coffee._typing import Shape, Tensor
from keras_coffee.ops.arguments import dtype_of

# What layers need: its meaning, and an example.
_NEEDED = {
    "units": ("the width of its outputs", "32"),
    "n": ("the number of states", "8"),
    "kernel_size": ("the number of steps that it sees", "4"),
    "mixer": ("a recurrent layer", "CoffeeLayer(n=8)"),
}


# What other packages with Mamba call an argument, and its name here.
_HERE = {"d_state": "n", "d_conv": "kernel_size", "dt_rank": "step_rank"}


def check_given(layer: type, args: Sequence[Any], given: Collection[str]) -> None:
    """Raises if a layer's call lacks an argument, or has too many without names.

    Python's own messages do not say what the argument is for.

    Args:
        layer: The class.
        args: Arguments without names.
        given: Names of the others.
    """
    taken = [*inspect.signature(layer.__init__).parameters.values()][1:]  # type: ignore[misc]
    if any(p.kind is p.VAR_POSITIONAL for p in taken):
        return
    names = [p.name for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(names):
        taken_so = ", ".join(f"`{name}`" for name in names) or "no argument"
        raise TypeError(
            f"{layer.__name__} takes {taken_so} without a name, received {len(args)} of them. Name "
            "all other arguments."
        )
    required = [p.name for p in taken if p.name in _NEEDED and p.default is p.empty]
    missing = [name for name in required if name not in {*names[: len(args)], *given}]
    if not missing:
        return
    # What was given instead. The arguments of weights are not known here.
    known = {p.name for p in taken}
    for name in [name for name in given if name not in known]:
        if name == "units":
            raise TypeError(_no_units(layer))
        if missing[0] == ("units" if name == "n" else _HERE.get(name)):
            raise TypeError(_not_known(layer, name, _did_you_mean(missing[0])))
    example = ", ".join(f"{name}={_NEEDED[name][1]}" for name in required)
    raise TypeError(
        f"{layer.__name__} needs `{missing[0]}`, {_NEEDED[missing[0]][0]}, for example "
        f"{layer.__name__}({example})."
    )


def _not_known(layer: type, name: str, instead: str) -> str:
    return f"{layer.__name__} has no argument `{name}`. {instead}"


def _did_you_mean(name: str) -> str:
    return f"Did you mean `{name}`?"


def _no_units(layer: type) -> str:
    has_n = "n" in inspect.signature(layer.__init__).parameters  # type: ignore[misc]
    return (
        f"{layer.__name__} has no `units`: its outputs are as wide as its inputs. "
        + "Pass `n`, the number of states per feature. " * has_n
        + "Put a keras.layers.Dense(units) in front to change the width."
    )


_INITIALIZERS = "Each of its weights has an initializer of its own; help() lists them."
# What layers of Keras take and none here does, with what to do instead.
_INSTEAD = {
    "activation": "Put a keras.layers.Activation behind it.",
    "bias_initializer": _INITIALIZERS,
    "d_model": "Its width is that of its inputs.",
    "dropout": "Put a keras.layers.Dropout in front of it.",
    "filters": "Put a keras.layers.Dense(filters) in front of it to change the width.",
    "implementation": "Leave it out.",
    "kernel_initializer": _INITIALIZERS,
    "recurrent_activation": "Leave it out.",
    "recurrent_dropout": "Put a keras.layers.Dropout in front of it: the state is never dropped.",
    "recurrent_initializer": _INITIALIZERS,
    "reset_after": "Leave it out.",
    "seed": "Give the seed to an initializer, or call keras.utils.set_random_seed.",
    "time_major": "Inputs are (batch, time, features): keras.ops.swapaxes(x, 0, 1) makes them so.",
    "unroll": "Leave it out: all steps are computed in one fused pass.",
    "use_bias": "Leave it out; keras.layers.Dense(units) in front of it has a bias.",
    "use_cudnn": "Leave it out.",
}


def check_known(layer: type, names: Collection[str], of_keras: Collection[str]) -> None:
    """Raises for an argument that a layer does not have, if there is something to do instead.

    Args:
        layer: The class.
        names: Arguments that neither it nor its weights take.
        of_keras: Those of them that every layer of Keras takes.
    """
    taken = inspect.signature(layer.__init__).parameters  # type: ignore[misc]
    for name in [name for name in names if name not in of_keras]:
        if name == "units":
            raise TypeError(_no_units(layer))
        similar = difflib.get_close_matches(_HERE.get(name, name), taken, n=1, cutoff=0.8)
        instead = _INSTEAD.get(name) or (_did_you_mean(similar[0]) if similar else None)
        if instead:
            raise TypeError(_not_known(layer, name, instead))


def check_not_ragged(name: str, inputs: Tensor) -> None:
    """Raises for a tensor of rows of different lengths, which TensorFlow alone has."""
    if hasattr(inputs, "ragged_rank"):
        raise TypeError(
            f"{name} must not be ragged. Pad it by inputs.to_tensor(), and pass "
            "mask=tf.sequence_mask(inputs.row_lengths()) beside it."
        )


def at_least_float32(*tensors: Tensor) -> str:
    """Names float64 if one of the tensors has it, float32 otherwise."""
    # keras.backend.result_type would name float32 for float64 on JAX and PyTorch.
    dtypes = set(map(dtype_of, tensors))
    return "float64" if "float64" in dtypes else "float32"


def check_real(name: str, tensor: Tensor) -> None:
    """Raises if a tensor is complex, since a cast to real numbers would drop a part of it."""
    dtype = dtype_of(tensor)
    if dtype.startswith("complex"):
        raise TypeError(
            f"{name} must be real, received dtype {dtype}. Pass keras.ops.real(x) or "
            "keras.ops.imag(x), or both side by side as features."
        )


def check_forwards(layer: Any) -> None:
    """Raises unless a recurrent layer reads forwards, as a stream does."""
    if layer.go_backwards:
        raise ValueError(
            f"{layer.name!r} goes backwards: its first output needs the last input, so it can't "
            "follow a stream."
        )


def check_not_solved(layer: Any, solver: Any, recompute: Any, instead: str) -> None:
    """Raises for a solver, or `recompute`, of a layer that has no recurrence of its own.

    Args:
        layer: The layer.
        solver: What it was given.
        recompute: What it was given.
        instead: Why, and what to do; `{given}` in it stands for the argument.
    """
    for name, value, default in (("solver", solver, "auto"), ("recompute", recompute, False)):
        if value != default:
            given = f"{name}={value!r}"
            raise ValueError(
                f"{type(layer).__name__} must not have {given}: {instead.format(given=given)}"
            )


def _advice_for_several(shapes: Any) -> str:
    shapes = shapes.values() if isinstance(shapes, dict) else shapes
    if all(len(shape) == 2 for shape in shapes):
        return (
            "Pad sequences of different lengths by keras.utils.pad_sequences(x, padding='post', "
            "dtype='float32'), and pass mask=, which is True where a step counts."
        )
    return "Join features by keras.layers.Concatenate. Pass a state as initial_state=."


def sequence_shape(layer: str, shape: Shape) -> tuple[int | None, int | None, int]:
    """Batch, time and features of a shape, if it is one of sequences of known features."""
    if isinstance(shape, dict) or any(isinstance(axis, (list, tuple)) for axis in shape):
        raise ValueError(
            f"{layer} expects one tensor (batch, time, features), received a "
            f"{type(shape).__name__} of {len(shape)}. {_advice_for_several(shape)}"
        )
    if len(shape) == 3 and shape[2] is not None:
        return shape[0], shape[1], shape[2]
    if len(shape) < 3:
        advice = (
            "Add the missing axis: integers that are symbols get one from a "
            "keras.layers.Embedding, a series of numbers from x[..., None] or "
            "keras.layers.Reshape. A recurrent layer in front needs return_sequences=True."
        )
    elif len(shape) > 3:
        advice = "Put it in a keras.layers.TimeDistributed, or merge axes by keras.layers.Reshape."
    else:
        advice = "Give the number of features, as in keras.Input((None, features))."
    raise ValueError(
        f"{layer} expects inputs of shape (batch, time, features) with known features, received "
        f"{tuple(shape)}. {advice}"
    )
