"""Selective state-space models over whole sequences: S6 (Mamba's) and its linearization."""

from keras import ops

from keras_coffee import solvers
from keras_coffee._typing import Tensor
from keras_coffee.cells.selective import Discretization, SelectiveCell
from keras_coffee.ops import arguments, masking
from keras_coffee.ops.cell_scan import run

DISCRETIZATIONS = ("zoh", "euler")


def selective_scan(
    inputs: Tensor,
    delta: Tensor,
    transition: Tensor,
    input_matrix: Tensor,
    output_matrix: Tensor,
    *,
    discretization: Discretization = "zoh",
    initial_state: Tensor | None = None,
    mask: Tensor | None = None,
    solver: str | solvers.Solver = "auto",
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """A diagonal state-space model whose step size depends on the input.

        x(k) = e^(λΔ(k)) x(k-1) + (e^(λΔ(k)) - 1)/λ B(k) u(k)    "zoh"
        x(k) = (1 + λΔ(k)) x(k-1) + Δ(k) B(k) u(k)               "euler"
        y(k) = C(k) x(k)

    Each of the D features has n states of its own. Differentiable once, in reverse, by every
    tensor argument; the final state has a gradient too. λΔ = 0 is an ordinary value.

    Args:
        inputs: u, `(B, T, D)`, floating-point, T ≥ 1. float16 and bfloat16 are accumulated in
            float32.
        delta: Δ, the step sizes, `(B, T, D)`.
        transition: λ, the diagonal of A, `(D, n)`.
        input_matrix: B: `(B, T, n)`, over time and shared by the features, or `(D, n)`, constant
            over time and each feature's own.
        output_matrix: C, likewise `(B, T, n)` or `(D, n)`.
        discretization: `"zoh"`, the exact zero-order hold of S6, or `"euler"`, its first order.
        initial_state: x(0), `(B, D, n)`. None: zeros.
        mask: `(B, T)`, False or 0 where a step is to be passed over: the state is held there and
            the output repeated, zero before the first step that counts. Whatever stands in the
            tensors at such a step, NaN included, has no effect. None: every step counts.
        solver: `"auto"`, `"sequential"`, `"associative"` (parallel in time; keeps all states),
            or a `Sequential` or `Associative` of `keras_coffee.solvers`.
        recompute: keep about √T states for the gradient instead of all T, and compute the others
            again. No effect on values. For the sequential solver only.

    Returns:
        Outputs y, `(B, T, D)`, in the dtype of the inputs, and the final state x(T), `(B, D, n)`,
        in float32 at least.

    Raises:
        ValueError: if a shape does not fit, T is 0, `discretization` or `solver` is unknown, or
            `recompute` meets a parallel solver.
        TypeError: if the inputs are not floating-point, or symbolic.

    Example:
        >>> u = np.random.normal(size=(2, 5, 3)).astype("float32")
        >>> matrix = np.random.normal(size=(2, 5, 4))
        >>> outputs, _ = selective_scan(u, np.ones_like(u), -np.ones((3, 4)), matrix, matrix)
        >>> outputs.shape
        (2, 5, 3)

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations (S6_model)
        and (linearized_model); A. Gu and T. Dao, "Mamba", 2023, section 3.
    """
    if discretization not in DISCRETIZATIONS:
        raise ValueError(
            f"`discretization` must be one of {DISCRETIZATIONS}, received {discretization!r}."
        )
    inputs = arguments.as_sequences(inputs)
    dtype = arguments.accumulation_dtype(inputs)
    mask = masking.as_mask(mask, inputs)
    sequences = masking.zero_masked(ops.cast(inputs, dtype), mask)
    delta = arguments.as_parameter(delta, "delta", tuple(inputs.shape), dtype)
    transition = arguments.as_transition(transition, inputs, dtype)
    input_matrix = _as_matrix(input_matrix, "input_matrix", inputs, transition, dtype)
    output_matrix = _as_matrix(output_matrix, "output_matrix", inputs, transition, dtype)
    # Δ = 0 is the identity in both discretizations, so no backend needs the mask itself.
    delta = masking.zero_masked(delta, mask)
    varying, fixed = [sequences, delta], {}
    if len(input_matrix.shape) == 3:
        varying.append(masking.zero_masked(input_matrix, mask))
    else:
        fixed["input_matrix"] = input_matrix
    if len(output_matrix.shape) == 3:
        varying.append(masking.repeat_last(output_matrix, mask))
    else:
        fixed["output_matrix"] = output_matrix
    cell = SelectiveCell(transition, **fixed, discretization=discretization)
    state = arguments.as_initial_state(initial_state, sequences, transition)
    # On most devices the fused pass is a kernel, which is parallel in time itself where that pays.
    solver = "sequential" if solver == "auto" else solver
    outputs, final_state = run(cell, tuple(varying), state, None, solver, recompute)
    return ops.cast(masking.zero_before_first(outputs, mask), inputs.dtype), final_state


def _as_matrix(value: Tensor, name: str, inputs: Tensor, transition: Tensor, dtype: str) -> Tensor:
    value = arguments.as_tensor(value, name)
    (batch, length, dim), n = inputs.shape, transition.shape[1]
    shape = (batch, length, n) if len(value.shape) == 3 else (dim, n)
    arguments.check_shape(value, shape, name, f"(batch, time, {n}) or {(dim, n)}")
    return arguments.as_parameter(value, name, shape, dtype)
