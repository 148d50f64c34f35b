"""COFFEE over whole sequences."""

from keras import ops

from keras_coffee import backend, solvers
from keras_coffee._typing import Tensor
from keras_coffee.cells.coffee import CoffeeCell, Feedback
from keras_coffee.cells.masked import masked
from keras_coffee.cells.readout import read_state
from keras_coffee.ops import arguments, masking
from keras_coffee.solvers import trajectory

FEEDBACKS = ("sigmoid", "linear", None)


def coffee_scan(
    inputs: Tensor,
    transition: Tensor,
    gate: Tensor,
    readout: Tensor,
    *,
    input_matrix: Tensor | None = None,
    output_gate: Tensor | None = None,
    feedback: Feedback = "sigmoid",
    initial_state: Tensor | None = None,
    mask: Tensor | None = None,
    solver: str | solvers.Solver = "auto",
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """A state-space model whose update gate looks at its own state.

        Δ(k) = σ(w ⊙ x(k-1))
        x(k) = (1 + λ Δ(k)) x(k-1) + Δ(k) b u(k)
        y(k) = C x(k),   or σ(w_γ · x(k)) C x(k) with an output gate

    Each of the D features has n states of its own. Differentiable once, in reverse, by every
    tensor argument; the final state has a gradient too.

    Args:
        inputs: u, `(B, T, D)`, floating-point, T ≥ 1. float16 and bfloat16 are accumulated in
            float32.
        transition: λ, the diagonal of A, `(D, n)`. Stable in [-2, 0] while 0 ≤ Δ ≤ 1.
        gate: w, the feedback gate, `(D, n)`.
        readout: C, `(D, n)`.
        input_matrix: b, `(D, n)`. None: ones.
        output_gate: w_γ, the output filter, `(D, n)`. None: no filter.
        feedback: `"sigmoid"` is the model; `"linear"` drops the sigmoid, Δ(k) = w ⊙ x(k-1);
            None gates from the input, Δ(k) = σ(w u(k)).
        initial_state: x(0), `(B, D, n)`. None: zeros.
        mask: `(B, T)`, False or 0 where a step is to be passed over: the state is held there and
            the output repeated, zero before the first step that counts. Whatever stands in the
            tensors at such a step, NaN included, has no effect. None: every step counts.
        solver: `"auto"`, `"sequential"`, `"newton"`, `"elk"` or a `Newton` or `Elk` of
            `keras_coffee.solvers`; these are parallel in time, and keep all states for the
            gradient.
        recompute: keep about √T states for the gradient instead of all T, and compute the others
            again. No effect on values. For the sequential solver only.

    Returns:
        Outputs y, `(B, T, D)`, and the final state x(T), `(B, D, n)`, in the dtype of the inputs.

    Raises:
        ValueError: if a shape does not fit, T is 0, `feedback` or `solver` is unknown, or
            `recompute` meets a parallel solver.
        TypeError: if the inputs are not floating-point, or symbolic.

    Example:
        >>> u = np.random.normal(size=(2, 5, 3)).astype("float32")
        >>> weights = np.zeros((3, 4)), np.ones((3, 4)), np.ones((3, 4))
        >>> outputs, final_state = coffee_scan(u, *weights)
        >>> outputs.shape, final_state.shape
        ((2, 5, 3), (2, 3, 4))

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations
        (Delta-feedback), (final_model) and the remark "Model with output filtering".
    """
    if feedback not in FEEDBACKS:
        raise ValueError(f"`feedback` must be one of {FEEDBACKS}, received {feedback!r}.")
    inputs = arguments.as_sequences(inputs)
    dtype = arguments.accumulation_dtype(inputs)
    mask = masking.as_mask(mask, inputs)
    sequences = masking.zero_masked(ops.cast(inputs, dtype), mask)
    transition = arguments.as_transition(transition, inputs, dtype)
    shape = tuple(transition.shape)

    found = solvers.choose(
        solver, "nonlinear", inputs, transition.shape[0] * transition.shape[1], recompute=recompute
    )

    def optional(weight, name):
        return None if weight is None else arguments.as_parameter(weight, name, shape, dtype)

    gate = arguments.as_parameter(gate, "gate", shape, dtype)
    readout = arguments.as_parameter(readout, "readout", shape, dtype)
    input_matrix = optional(input_matrix, "input_matrix")
    output_gate = optional(output_gate, "output_gate")
    state = arguments.as_initial_state(initial_state, sequences, transition)
    if isinstance(found, solvers.Sequential):
        outputs, final_state = backend.coffee_scan(
            sequences,
            transition,
            gate,
            readout,
            input_matrix,
            output_gate,
            state,
            None if mask is None else ops.cast(mask, dtype),
            feedback=feedback,
            recompute=recompute,
        )
    else:
        cell, sequences = masked(
            CoffeeCell(transition, gate, input_matrix, feedback), sequences, mask
        )
        outputs, final_state = trajectory.outputs(
            found, cell, state, sequences, lambda states: read_state(states, readout, output_gate)
        )
    outputs = masking.zero_before_first(outputs, mask)
    return ops.cast(outputs, inputs.dtype), ops.cast(final_state, inputs.dtype)
