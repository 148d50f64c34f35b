"""A cell as backends see it: lists of tensors, and functions of them."""

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

import keras
from keras import ops

from keras_coffee import backend
from keras_coffee._checks import one_of
from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell, Structure
from keras_coffee.cells.functions import align

Tensors = list[Tensor]

_STRUCTURES = get_args(Structure)


def tensors_of(
    cell: Cell,
    inputs: Any,
    mask: Tensor | None,
    reset: Tensor | None,
    state: Any,
    *,
    may_use_kernel: bool = True,
) -> tuple["Recurrence", Tensors]:
    """A cell without its tensors, and these in a list."""
    marks = {name: x for name, x in (("mask", mask), ("reset", reset)) if x is not None}
    recurrence = Recurrence(cell, state, inputs, tuple(marks), may_use_kernel=may_use_kernel)
    leaves = [*leaves_of(inputs), *marks.values()]
    states, weights = leaves_of(state), recurrence.weights_of(cell)
    if not may_use_kernel:
        weights = [_in_dtype_of(states[0], ops.convert_to_tensor(w)) for w in weights]
    return recurrence, [*leaves, *weights, *states]


class Recurrence:
    """A cell without its tensors.

    Two are equal if the same program runs them, so backends compile each program once. Tensors come
    as flat lists, in the order sequences, weights, state. The sequences are the inputs and after
    them the marks, booleans `(B, T)`: a mask, False where the state is held, and resets, True where
    the state is zero before the step.

    Args:
        cell: The recurrence. A cell in one of its fields is a part of it.
        state: The initial state, for its structure.
        inputs: Inputs, for their structure.
        marks: Which of `"mask"` and `"reset"` there are, in this order.
        may_use_kernel: Whether kernels may run it, if the cell has any that take the marks. Then
            its weights are tensors, in the dtype of the state.

    Raises:
        TypeError: if the cell is no frozen dataclass, or an option is not hashable.
        ValueError: if the structure is unknown, or diagonal and the state is not one tensor.
    """

    def __init__(
        self,
        cell: Cell,
        state: Any,
        inputs: Any,
        marks: tuple[str, ...] = (),
        *,
        may_use_kernel: bool = True,
    ):
        self._template = _Template(cell)
        self.marks = marks
        one_of(f"{type(cell).__name__}.structure", cell.structure, _STRUCTURES)
        takes_marks = all(mark in cell.SEQUENCES for mark in marks)
        self.kernel = cell.kernel_name if may_use_kernel and takes_marks else None
        self.structure, self.broadcasts = cell.structure, cell.broadcasts
        self._state, self._inputs = _Structure(state), _Structure(inputs)
        if cell.structure == "diagonal" and self.state_count != 1:
            raise ValueError(
                f'{type(cell).__name__} has structure = "diagonal", so its state must be one '
                f'tensor; received {self.state_count}. Declare it "dense", or join them in one.'
            )
        self._key = self._template.key, self._state.key, self._inputs.key, self.kernel, marks
        try:
            self._hash = hash(self._key)
        except TypeError as error:
            raise TypeError(
                f"The fields of {type(cell).__name__} that hold no tensors are options and must be "
                f"hashable: {error}."
            ) from error

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recurrence) and self._key == other._key

    def __repr__(self) -> str:
        return f"Recurrence of {self._template.cell_class.__name__}"

    def split(self, tensors: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """Sequences, weights and state of a flat list of them."""
        first = self._inputs.count + len(self.marks)
        second = first + self._template.count
        return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])

    def unmarked(self, sequences: Tensors) -> tuple[Tensors, Tensor | None, Tensor | None]:
        """Inputs, mask and resets of the sequences, None where one is absent."""
        count = self._inputs.count
        marks = dict(zip(self.marks, sequences[count:], strict=True))
        return sequences[:count], marks.get("mask"), marks.get("reset")

    def steps(self, weights: Tensors) -> "Steps":
        """Its steps with these weights."""
        return Steps(self, self.cell(weights))

    @property
    def state_count(self) -> int:
        """Tensors of the state."""
        return self._state.count

    def weights_of(self, cell: Cell) -> Tensors:
        """The tensors of a cell, then those of the cells in its fields."""
        return self._template.weights_of(cell)

    def cell(self, weights: Tensors) -> Cell:
        """The cell with these weights."""
        return self._template.build(iter(weights))

    @property
    def has_one_state(self) -> bool:
        """Whether the state is one tensor."""
        return self._state.is_tensor

    def pack_state(self, leaves: Tensors) -> Any:
        """A state of the structure of the initial one."""
        return self._state.pack(leaves)

    def pack_inputs(self, leaves: Tensors) -> Any:
        """Inputs of their structure."""
        return self._inputs.pack(leaves)

    def check(self, cell: Cell, state: Any) -> None:
        """Raises if the structure of a state differs from that of the initial one."""
        self._state.check(cell, state)

    def checked_outputs(self, outputs: Any, states: Tensor | None = None) -> Tensor:
        """What `read` returned: one tensor, with the batch and steps of the states it was given."""
        name = f"`{self._template.cell_class.__name__}.read`"
        if not _is_tensor(outputs):
            raise ValueError(
                f"{name} must return one tensor, received a {type(outputs).__name__}. By default "
                "it returns the state: write one that picks or joins its parts."
            )
        if states is not None and not _fit(outputs.shape[:2], states.shape[:2]):
            raise ValueError(
                f"{name} must return (B, T, ...) for states of all steps, "
                f"{tuple(states.shape)}; received {tuple(outputs.shape)}. Count axes from the "
                "last, as in x[..., 0]."
            )
        return outputs

    # For kernels.

    def arguments(self, sequences: Tensors, weights: Tensors) -> list[Tensor | None]:
        """Sequences, then weights, in the order of a kernel, None where one is absent."""
        cell_class = self._template.cell_class
        named = dict(zip(self._template.tensors, weights, strict=True))
        order = [x for x in cell_class.SEQUENCES if x not in named and x not in ("mask", "reset")]
        # Inputs that may be absent come last.
        order = [*order[: self._inputs.count], *self.marks]
        given = dict(zip(order, sequences, strict=True))
        names = [name for name in self._template.names if name not in cell_class.OPTIONS]
        ordered = [given.get(name) for name in cell_class.SEQUENCES]
        return [*ordered, *(named.get(name) for name in names)]

    @property
    def options(self) -> dict[str, Any]:
        """Options of a kernel, by name."""
        names = self._template.cell_class.OPTIONS
        return {name: self._template.options[name] for name in names}


class Steps:
    """Single steps of a recurrence: the next state, and the outputs, from flat lists of tensors."""

    def __init__(self, recurrence: Recurrence, cell: Any):
        self._recurrence, self._cell = recurrence, cell
        self._is_checked = False

    def step(self, state: Tensors, sequences: Tensors) -> Tensors:
        """The next state, which a mask may hold and a reset make start from zero."""
        if not self._recurrence.marks:
            return self._new_state(state, sequences)
        inputs, mask, reset = self._recurrence.unmarked(sequences)
        if reset is not None:
            state = [backend.where(align(reset, x), ops.zeros_like(x), x) for x in state]
        new = self._new_state(state, inputs)
        if mask is None:
            return new
        pairs = zip(new, state, strict=True)
        return [backend.where(align(mask, x), x, old) for x, old in pairs]

    def read(self, state: Tensors, sequences: Tensors) -> Tensor:
        """The outputs."""
        inputs, _, _ = self._recurrence.unmarked(sequences)
        outputs = self._cell.read(
            self._recurrence.pack_state(state), self._recurrence.pack_inputs(inputs)
        )
        return self._recurrence.checked_outputs(outputs)

    def _new_state(self, state: Tensors, inputs: Tensors) -> Tensors:
        recurrence = self._recurrence
        result = self._cell.step(recurrence.pack_state(state), recurrence.pack_inputs(inputs))
        new = leaves_of(result)
        if not self._is_checked:  # all steps are alike, and a check costs as much as an operation
            recurrence.check(self._cell, result)
            _check_step(type(self._cell), new, state)
            self._is_checked = True
        return new


class _Template:
    """A cell whose tensors are left out."""

    def __init__(self, cell: Cell):
        if not (isinstance(cell, Cell) and dataclasses.is_dataclass(cell)):
            raise TypeError(
                "`cell` must be a keras_coffee.cells.Cell and a frozen dataclass, whose fields are "
                f"its weights and options; received {type(cell).__name__}."
            )
        fields = _fields(cell)
        self.cell_class: Any = type(cell)
        self.names: tuple[str, ...] = tuple(fields)
        self.tensors: tuple[str, ...] = tuple(
            name for name, value in fields.items() if _is_tensor(value)
        )
        self.cells: dict[str, _Template] = {
            k: _Template(v) for k, v in fields.items() if isinstance(v, Cell)
        }
        parts = (*self.tensors, *self.cells)
        self.options: dict[str, Any] = {
            name: value for name, value in fields.items() if name not in parts
        }
        self.count: int = len(self.tensors) + sum(part.count for part in self.cells.values())
        cells = tuple((name, part.key) for name, part in self.cells.items())
        options = tuple((name, _key_of(value)) for name, value in self.options.items())
        self.key: tuple[Any, ...] = self.cell_class, self.tensors, options, cells

    def weights_of(self, cell: Any) -> Tensors:
        own = [getattr(cell, name) for name in self.tensors]
        parts = (part.weights_of(getattr(cell, name)) for name, part in self.cells.items())
        return own + [weight for part in parts for weight in part]

    def build(self, tensors: Iterator[Tensor]) -> Any:
        own = {name: next(tensors) for name in self.tensors}
        cells = {name: part.build(tensors) for name, part in self.cells.items()}
        return self.cell_class(**own, **cells, **self.options)


def _fields(cell: Any) -> dict[str, Any]:
    return {field.name: getattr(cell, field.name) for field in dataclasses.fields(cell)}


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _key_of(option: Any) -> Any:
    """A key that tells 1, 1.0 and True apart and finds NaN equal to NaN."""
    if isinstance(option, float):
        return option.hex()
    if isinstance(option, tuple):
        return type(option), *map(_key_of, option)
    if _is_tensor(option) or isinstance(option, keras.layers.Layer):
        raise TypeError(
            f"A cell holds a {type(option).__name__} where no gradient could reach it. Give each "
            "weight a field of its own."
        )
    return type(option), option


def _in_dtype_of(state: Tensor, weight: Tensor) -> Tensor:
    """A real weight in the precision of the state: files and policies may have it in another."""
    if weight.dtype == state.dtype:
        return weight
    own, wide = (keras.backend.standardize_dtype(x.dtype) for x in (weight, state))
    wide = {"complex64": "float32", "complex128": "float64"}.get(wide, wide)
    return ops.cast(weight, wide) if "float" in own and own != wide else weight


class _Structure:
    """A tree without its tensors."""

    def __init__(self, tree: Any):
        if _is_tensor(tree):
            self.count, self._kind, self.key = 1, None, None
            return
        self.count = len(leaves_of(tree))
        self._kind = type(tree) if _is_flat(tree) else dict
        # With zeros instead of tensors, so that no tensor is kept alive.
        is_deep = self._kind is dict
        self._tree = keras.tree.map_structure(lambda _: 0, tree) if is_deep else None
        self.key = self._kind, self.count, repr(self._tree)

    @property
    def is_tensor(self) -> bool:
        return self._kind is None

    def check(self, cell: Cell, state: Any) -> None:
        """Raises if the structure differs, for example a tuple instead of a dictionary."""
        if self._kind is dict and _Structure(state).key != self.key:
            raise ValueError(
                f"`{type(cell).__name__}.step` must return a state of the structure that it is "
                "given, with the same keys."
            )

    def pack(self, leaves: Tensors) -> Any:
        if self._kind is None:
            return leaves[0]
        if self._kind is dict:
            return keras.tree.pack_sequence_as(self._tree, leaves)
        return self._kind(leaves)


def leaves_of(tree: Any) -> Tensors:
    """The tensors of a tree. Keras' own `flatten` costs as much as an operation on PyTorch."""
    if _is_tensor(tree):
        return [tree]
    return list(tree) if _is_flat(tree) else keras.tree.flatten(tree)


def _is_flat(tree: Any) -> bool:
    return type(tree) in (tuple, list) and all(_is_tensor(x) for x in tree)


def _check_step(cell_class: Any, new: Tensors, old: Tensors) -> None:
    if len(new) == len(old) and all(
        _is_tensor(n) and n.dtype == o.dtype and _fit(n.shape, o.shape)
        for n, o in zip(new, old, strict=True)
    ):
        return
    pairs = [map(_described, states) for states in (old, new)]
    raise ValueError(
        f"`{cell_class.__name__}.step` must return a state of the shapes and dtypes that it is "
        f"given, {', '.join(pairs[0])}; it returned {', '.join(pairs[1])}."
    )


def _described(value: Any) -> str:
    return f"{value.dtype}{tuple(value.shape)}" if _is_tensor(value) else repr(value)


def _fit(new, old):
    pairs = zip(new, old, strict=False)
    return len(new) == len(old) and all(a == b or None in (a, b) for a, b in pairs)
