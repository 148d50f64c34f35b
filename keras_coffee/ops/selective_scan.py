"""Selective state-space models over whole sequences: S6, Mamba's recurrence, the linearized S6."""

from typing import get_args

from keras_coffee import solvers
from keras_coffee._checks import one_of
from keras_coffee._typing import Tensor
from keras_coffee.cells.selective import Discretization, SelectiveCell
from keras_coffee.ops import arguments, masking
from keras_coffee.ops.cell_scan import run

DISCRETIZATIONS = get_args(Discretization)

# Its softplus is zero, even with a bias. Not -∞, which would give gradients of zero times infinity.
NO_STEP = -1e30


def selective_scan(
    inputs: Tensor,
    delta: Tensor,
    transition: Tensor,
    input_matrix: Tensor,
    output_matrix: Tensor,
    *,
    discretization: Discretization = "zoh",
    skip: Tensor | None = None,
    delta_softplus: bool = False,
    delta_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
    solver: str | solvers.Solver = "auto",
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """A diagonal state-space model whose step size depends on the input.

        x(k) = e^(λΔ(k)) x(k-1) + (e^(λΔ(k)) - 1)/λ B(k) u(k)    "zoh"
        x(k) = (1 + λΔ(k)) x(k-1) + Δ(k) B(k) u(k)               "euler"
        x(k) = e^(λΔ(k)) x(k-1) + Δ(k) B(k) u(k)                 "mamba"
        y(k) = C(k) x(k) + s u(k)

    Each of the D features has its own n states. Differentiable once, in reverse, by every tensor
    argument; the final state has a gradient too. λΔ = 0 is an ordinary value. `selective_scan(u, d,
    A, B, C, discretization="mamba", skip=D, delta_bias=b, delta_softplus=True)` is the function of
    that name in Mamba's code, without its gate z.

    Args:
        inputs: u, `(B, T, D)`, floating-point, T ≥ 1. float16 and bfloat16 are accumulated in
            float32.
        delta: Δ, the step sizes, `(B, T, D)`, or what they are computed from: see `delta_softplus`.
        transition: λ, the diagonal of A, `(D, n)`.
        input_matrix: B: `(B, T, n)`, over time and shared by the features, or `(D, n)`, constant
            over time and one for each feature.
        output_matrix: C, likewise `(B, T, n)` or `(D, n)`.
        discretization: `"zoh"`, the default: the exact zero-order hold of S6; `"euler"`, its first
            order, or `"mamba"`, the decay of the first with the gain of the second.
        skip: s, `(D,)`. None: no skip connection.
        delta_softplus: If True, the step sizes are softplus(delta + delta_bias). Defaults to
            False: they are delta + delta_bias.
        delta_bias: `(D,)`. None: zeros.
        initial_state: x(0), `(B, D, n)`. None: zeros.
        mask: `(B, T)`, False or 0 at steps to skip: the state is held there and the output
            repeated, zero before the first step that counts. Values at such a step have no effect,
            not even NaN. None: every step counts.
        reset: `(B, T)`, True or 1 where a new sequence begins: the state is zero before the step,
            whatever came before it, and no gradient goes back past it. A masked step holds these
            zeros. None: nowhere.
        solver: `"auto"`, the default, `"sequential"`, `"associative"` (parallel in time; keeps all
            states), or a `Sequential` or `Associative` of `keras_coffee.solvers`.
        recompute: If True, keep about √T states for the gradient instead of all T, and compute the
            others again. No effect on values. Needs the sequential solver. Defaults to False.

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
        and (linearized_model); A. Gu and T. Dao, "Mamba", 2023, section 3, and its code,
        `selective_scan_ref`, for `"mamba"`.
    """
    one_of("discretization", discretization, DISCRETIZATIONS)
    inputs = arguments.as_sequences(inputs)
    dtype = arguments.accumulation_dtype(inputs)
    mask, reset = masking.as_mask(mask, inputs), masking.as_mask(reset, inputs, "reset")
    sequences = arguments.cast(inputs, dtype)
    if skip is None:
        sequences = masking.zero_masked(sequences, mask)
    else:  # it reads the inputs, which a masked step repeats with its output
        sequences = masking.repeat_last(sequences, mask, reset)
    delta = arguments.as_parameter(delta, "delta", tuple(inputs.shape), dtype)
    transition = arguments.as_transition(transition, inputs, dtype)
    input_matrix = _as_matrix(input_matrix, "input_matrix", inputs, transition, dtype)
    output_matrix = _as_matrix(output_matrix, "output_matrix", inputs, transition, dtype)
    per_feature, fixed = (inputs.shape[2],), {}
    if delta_bias is not None:
        delta = delta + arguments.as_parameter(delta_bias, "delta_bias", per_feature, dtype)
    if skip is not None:  # with an axis of length 1 for the states
        fixed["skip"] = arguments.as_parameter(skip, "skip", per_feature, dtype)[:, None]
    # Δ = 0 is the identity in all discretizations, so no backend needs the mask itself.
    delta = masking.fill_masked(delta, mask, NO_STEP if delta_softplus else 0.0)
    varying = [sequences, delta]
    if len(input_matrix.shape) == 3:
        varying.append(masking.zero_masked(input_matrix, mask))
    else:
        fixed["input_matrix"] = input_matrix
    if len(output_matrix.shape) == 3:
        varying.append(masking.repeat_last(output_matrix, mask, reset))
    else:
        fixed["output_matrix"] = output_matrix
    cell = SelectiveCell(
        transition, **fixed, discretization=discretization, delta_softplus=bool(delta_softplus)
    )
    state = arguments.as_initial_state(initial_state, sequences, transition)
    # On most devices the fused pass is a kernel, parallel in time where that pays.
    solver = "sequential" if solver == "auto" else solver
    outputs, final_state = run(cell, tuple(varying), state, None, reset, solver, recompute)
    outputs = masking.zero_before_first(outputs, mask, reset)
    return arguments.cast(outputs, arguments.dtype_of(inputs)), final_state


def _as_matrix(value: Tensor, name: str, inputs: Tensor, transition: Tensor, dtype: str) -> Tensor:
    value = arguments.as_tensor(value, name, like=dtype)
    (batch, length, dim), n = inputs.shape, transition.shape[1]
    shape = (batch, length, n) if len(value.shape) == 3 else (dim, n)
    arguments.check_shape(value, shape, name, f"(batch, time, {n}) or {(dim, n)}")
    return arguments.in_dtype(value, name, dtype)
