"""A cell as backends see it: lists of tensors, and functions of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_coffee._typing import Tensor
from keras_coffee.cells.cell import Cell

Tensors = list[Tensor]


def tensors_of(cell: Cell, inputs: Any, mask: Tensor | None, state: Any) -> tuple["Recurrence", Tensors]:
    """A cell without its tensors, and these in a list."""
    recurrence = Recurrence(cell, state, inputs)
    weights = [ops.convert_to_tensor(getattr(cell, name)) for name in recurrence.weights]
    leaves = keras.tree.flatten(inputs)
    if mask is not None:
        leaves.append(mask)
    return recurrence, [*leaves, *weights, *keras.tree.flatten(state)]


class Recurrence:
    """A cell without its tensors.

    Two are equal if the same program runs them, so that backends compile one program for each.
    Tensors come as flat lists, in the order inputs, mask, weights, state.

    Args:
        cell: The recurrence.
        state: The initial state, for its structure.
        inputs: Inputs, for their structure.

    Raises:
        TypeError: if the cell is no frozen dataclass, or an option is not hashable.
    """

    def __init__(self, cell: Cell, state: Any, inputs: Any):
        if not (isinstance(cell, Cell) and dataclasses.is_dataclass(cell)):
            raise TypeError(
                "`cell` must be a keras_coffee.cells.Cell, a frozen dataclass whose fields are its "
                f"weights and options; received {type(cell).__name__}."
            )
        fields = {field.name: getattr(cell, field.name) for field in dataclasses.fields(cell)}
        self.weights = tuple(name for name, value in fields.items() if is_tensor(value))
        self._options = {k: value for k, value in fields.items() if k not in self.weights}
        self._class, self.kernel = type(cell), cell.kernel_name
        self.structure, self.broadcasts = cell.structure, cell.broadcasts
        self._state, self._inputs = _Structure(state), _Structure(inputs)
        self._key = (
            self._class,
            self.weights,
            tuple(self._options.items()),
            self._state.key,
            self._inputs.key,
        )
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
        return f"{self._class.__name__}({self._options})"

    def split(self, tensors: Tensors) -> tuple[Tensors, Tensor | None, Tensors, Tensors]:
        """Inputs, mask or None, weights and state of a flat list of them."""
        inputs, rest = tensors[: self._inputs.count], tensors[self._inputs.count :]
        state = rest[len(rest) - self._state.count :]
        rest = rest[: len(rest) - self._state.count]
        has_mask = len(rest) > len(self.weights)
        return list(inputs), rest[0] if has_mask else None, list(rest[has_mask:]), list(state)

    def functions(
        self, weights: Tensors
    ) -> tuple[Callable[[Tensors, Tensors], Tensors], Callable[[Tensors, Tensors], Tensor]]:
        """`step(state, inputs) -> state` and `read(state, inputs) -> outputs`, of flat lists."""
        cell, pack, pack_inputs = self.cell(weights), self.pack_state, self.pack_inputs

        def step(state: Tensors, inputs: Tensors) -> Tensors:
            new = keras.tree.flatten(cell.step(pack(state), pack_inputs(inputs)))
            _check_step(self._class.__name__, new, state)
            return new

        def read(state: Tensors, inputs: Tensors) -> Tensor:
            outputs = cell.read(pack(state), pack_inputs(inputs))
            if keras.tree.is_nested(outputs):
                raise ValueError(
                    f"`{self._class.__name__}.read` must return one tensor, received a "
                    f"{type(outputs).__name__}. By default it returns the state: write one that "
                    "picks or joins its parts."
                )
            return outputs

        return step, read

    @property
    def state_count(self) -> int:
        """Tensors of the state."""
        return self._state.count

    def cell(self, weights: Tensors) -> Cell:
        """The cell with these weights."""
        return self._class(**dict(zip(self.weights, weights, strict=True)), **self._options)

    def pack_state(self, leaves: Tensors) -> Any:
        """A state of the structure of the initial one."""
        return self._state.pack(leaves)

    def pack_inputs(self, leaves: Tensors) -> Any:
        """Inputs of their structure."""
        return self._inputs.pack(leaves)

    # For kernels.

    def arguments(
        self, inputs: Tensors, mask: Tensor | None, weights: Tensors
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Sequences and weights in the order of a kernel, None where one is absent."""
        named = dict(zip(self.weights, weights, strict=True))
        fields = [f.name for f in dataclasses.fields(self._class)]
        order = [name for name in self._class.SEQUENCES if name not in named and name != "mask"]
        given = dict(zip(order, inputs, strict=True)) | {"mask": mask}
        sequences = [given.get(name) for name in self._class.SEQUENCES]
        return sequences, [named.get(k) for k in fields if k not in self._class.OPTIONS]

    @property
    def options(self) -> dict[str, Any]:
        """Options of a kernel, by name."""
        return {name: self._options[name] for name in self._class.OPTIONS}


class _Structure:
    """A tree without its tensors."""

    def __init__(self, tree: Any):
        leaves = keras.tree.flatten(tree)
        self.count = len(leaves)
        self._tree = None if leaves and leaves[0] is tree else tree_of(tree)
        self.key = repr(self._tree)

    def pack(self, leaves: Tensors) -> Any:
        return leaves[0] if self._tree is None else keras.tree.pack_sequence_as(self._tree, leaves)


def tree_of(tree: Any) -> Any:
    """The tree with zeros for its leaves, so that no tensor is kept alive."""
    return keras.tree.map_structure(lambda _: 0, tree)


def is_tensor(value: Any) -> bool:
    """Whether a field of a cell is a weight."""
    return isinstance(value, keras.Variable) or hasattr(value, "dtype")


def _check_step(name: str, new: Tensors, old: Tensors) -> None:
    if len(new) == len(old) and all(
        n.dtype == o.dtype and _fit(n.shape, o.shape) for n, o in zip(new, old, strict=True)
    ):
        return
    pairs = [[f"{x.dtype}{tuple(x.shape)}" for x in states] for states in (old, new)]
    raise ValueError(
        f"`{name}.step` must return a state of the shapes and dtypes that it is given, "
        f"{', '.join(pairs[0])}; it returned {', '.join(pairs[1])}."
    )


def _fit(new, old):
    pairs = zip(new, old, strict=False)
    return len(new) == len(old) and all(a == b or None in (a, b) for a, b in pairs)
