"""The base classes of recurrences."""

from typing import Any, ClassVar, Literal

from keras import ops

from keras_coffee._typing import Tensor

Structure = Literal["diagonal", "dense"]


class Cell:
    """One step of a recurrence.

        x(k) = f(x(k-1), u(k)),   y(k) = g(x(k), u(k))

    Subclass it as a frozen dataclass and write `step` in `keras.ops`. Fields that hold tensors are
    the weights, and gradients flow to them, except to integers and booleans. All other fields are
    options, and must be hashable. State, inputs and outputs are tensors, or nested tuples, lists
    and dictionaries of tensors.

    `step` and `read` get the tensors of one step, `(B, ...)`, and must treat each element of the
    batch alike: backends also pass them several steps at once, as a longer batch. Parallel solvers
    pass all steps with their axis, `(B, T, ...)`. A step is run again for its gradient, so it must
    draw no random numbers. Masked inputs are zeros, where a step must have a finite derivative.

    Class attributes:
        structure: The structure of the state's Jacobian. `"diagonal"`: the state is one tensor, and
            each of its elements depends on its own predecessor only. Gradients are then computed
            for many steps at once. A complex step must be holomorphic in its state. `"dense"`, the
            default: anything else. For parallel solvers a dense state is `(..., H)`, and axes
            before the last are independent of each other.
        broadcasts: Whether weights may have a batch axis in front, which is right if every
            operation on them is elementwise. Gradients are then summed over the batch once, not at
            every step. Defaults to False.
        SEQUENCES: Names of the inputs, in the order in which a kernel lists them.
        OPTIONS: Names of the fields that are options, for a cell that has a kernel.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass(frozen=True)
        ... class LeakyCell(Cell):
        ...     decay: Tensor
        ...     structure = "diagonal"
        ...
        ...     def step(self, state, inputs):
        ...         return keras.ops.sigmoid(self.decay) * state + inputs
        >>> cell = LeakyCell(keras.ops.zeros(3))
        >>> cell.step(keras.ops.ones((2, 3)), keras.ops.ones((2, 3))).shape
        (2, 3)
    """

    structure: ClassVar[Structure] = "dense"
    broadcasts: ClassVar[bool] = False
    SEQUENCES: ClassVar[tuple[str, ...]] = ()
    OPTIONS: ClassVar[tuple[str, ...]] = ()

    @property
    def kernel_name(self) -> str | None:
        """Name of the compiled kernels of this recurrence, if backends have any."""
        return None

    def step(self, state: Any, inputs: Any) -> Any:
        """The next state, of the structure, shapes and dtypes of `state`."""
        raise NotImplementedError(f"{type(self).__name__} has no `step`.")

    def read(self, state: Any, inputs: Any) -> Any:
        """The outputs at a step, from the state after it. By default the state itself."""
        return state

    def jacobian(self, state: Tensor, inputs: Any) -> Tensor:
        """∂x(k)/∂x(k-1), for parallel solvers; [..., i, j] is by element j of the old state.

        Its diagonal `(..., H)` if the structure is diagonal, else `(..., H, H)`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no `jacobian`, which parallel solvers and `nonlinear_scan` "
            "need. Write one, or run the cell by `cell_scan` with the sequential solver."
        )


class LinearCell(Cell):
    """A cell that is linear in its state, elementwise: x(k) = a(k) x(k-1) + b(k).

    A subclass writes `affine` instead of `step`. Its states then come from one linear scan.
    `affine` and `read` get the tensors of one step, `(B, ...)`, or of all steps, `(B, T, ...)`, so
    they must count axes from the last, as in `x[..., 0]`.
    """

    structure: ClassVar[Structure] = "diagonal"

    def affine(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Decay a(k) and drive b(k), which broadcast to the state."""
        raise NotImplementedError(f"{type(self).__name__} has no `affine`.")

    def step(self, state: Tensor, inputs: Any) -> Tensor:
        decay, drive = self.affine(inputs)
        return decay * state + drive

    def jacobian(self, state: Tensor, inputs: Any) -> Tensor:
        # A Python number alone would become float32.
        decay = ops.convert_to_tensor(self.affine(inputs)[0], state.dtype)
        return ops.broadcast_to(decay, ops.shape(state))
