"""COFFEE over whole sequences."""

from typing import get_args

from keras_coffee import solvers
from keras_coffee._checks import one_of
from keras_coffee._typing import Tensor
from keras_coffee.cells.coffee import CoffeeCell, Feedback
from keras_coffee.ops import arguments, masking
from keras_coffee.ops.cell_scan import run

FEEDBACKS = get_args(Feedback)


def coffee_scan(
    inputs: Tensor,
    transition: Tensor,
    gate: Tensor,
    readout: Tensor,
    *,
    input_matrix: Tensor | None = None,
    output_gate: Tensor | None = None,
    gate_inputs: Tensor | None = None,
    gate_bias: Tensor | None = None,
    feedback: Feedback = "sigmoid",
    initial_state: Tensor | None = None,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
    solver: str | solvers.Solver = "auto",
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """A state-space model whose update gate looks at its own state.

        Δ(k) = σ(w ⊙ x(k-1)),   or σ(w ⊙ x(k-1) + v(k) + β) with gate inputs and a gate bias
        x(k) = (1 + λ Δ(k)) x(k-1) + Δ(k) b u(k)
        y(k) = C x(k),   or σ(w_γ · x(k)) C x(k) with an output gate

    Each of the D features has its own n states. Differentiable once, in reverse, by every tensor
    argument; the final state has a gradient too.

    Args:
        inputs: u, `(B, T, D)`, floating-point, T ≥ 1. float16 and bfloat16 are accumulated in
            float32.
        transition: λ, the diagonal of A, `(D, n)`. Stable in [-2, 0] while 0 ≤ Δ ≤ 1.
        gate: w, the feedback gate, `(D, n)`.
        readout: C, `(D, n)`.
        input_matrix: b, `(D, n)`. None: ones.
        output_gate: w_γ, the output filter, `(D, n)`. None: no filter.
        gate_inputs: v, `(B, T, D)`, added to the argument of the gate of all states of a feature.
            None: nothing is added.
        gate_bias: β, `(D, n)`, added to the argument of the gate. None: nothing is added.
        feedback: `"sigmoid"`, the default, is the model; `"linear"` drops the sigmoid, Δ(k) = w ⊙
            x(k-1); None gates from the input, Δ(k) = σ(w u(k)). v and β are added in each of them.
        initial_state: x(0), `(B, D, n)`. None: zeros.
        mask: `(B, T)`, False or 0 at steps to skip: the state is held there and the output
            repeated, zero before the first step that counts. Values at such a step have no effect,
            not even NaN. None: every step counts.
        reset: `(B, T)`, True or 1 where a new sequence begins: the state is zero before the step,
            whatever came before it, and no gradient goes back past it. A masked step holds these
            zeros. None: nowhere.
        solver: `"auto"`, the default, `"sequential"`, `"newton"`, `"elk"` or a `Newton` or `Elk` of
            `keras_coffee.solvers`; these are parallel in time, and keep all states for the
            gradient.
        recompute: If True, keep about √T states for the gradient instead of all T, and compute the
            others again. No effect on values. Needs the sequential solver. Defaults to False.

    Returns:
        Outputs y, `(B, T, D)`, in the dtype of the inputs, and the final state x(T), `(B, D, n)`,
        in float32 at least.

    Raises:
        ValueError: if a shape does not fit, T is 0, `feedback` or `solver` is unknown, or
            `recompute` meets a parallel solver.
        TypeError: if the inputs are not floating-point, or a tensor is complex or symbolic.

    Example:
        >>> u = np.random.normal(size=(2, 5, 3)).astype("float32")
        >>> weights = np.zeros((3, 4)), np.ones((3, 4)), np.ones((3, 4))
        >>> outputs, final_state = coffee_scan(u, *weights)
        >>> outputs.shape, final_state.shape
        ((2, 5, 3), (2, 3, 4))

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equations
        (Delta-feedback), (final_model) and the remark "Model with output filtering". v and β are
        not in the paper.
    """
    one_of("feedback", feedback, FEEDBACKS)
    inputs = arguments.as_sequences(inputs)
    dtype = arguments.accumulation_dtype(inputs)
    mask = masking.as_mask(mask, inputs)
    reset = masking.as_mask(reset, inputs, "reset")
    source = masking.zero_masked(arguments.cast(inputs, dtype), mask)
    transition = arguments.as_transition(transition, inputs, dtype)
    shape = tuple(transition.shape)

    def weight(value, name, is_optional=False):
        if value is None and is_optional:
            return None
        return arguments.as_parameter(value, name, shape, dtype)

    cell = CoffeeCell(
        transition,
        weight(gate, "gate"),
        weight(readout, "readout"),
        weight(input_matrix, "input_matrix", is_optional=True),
        weight(output_gate, "output_gate", is_optional=True),
        weight(gate_bias, "gate_bias", is_optional=True),
        feedback,
    )
    state = arguments.as_initial_state(initial_state, source, transition)
    sequences = source
    if gate_inputs is not None:
        gate_inputs = arguments.as_parameter(gate_inputs, "gate_inputs", tuple(inputs.shape), dtype)
        sequences = source, masking.zero_masked(gate_inputs, mask)
    outputs, final_state = run(cell, sequences, state, mask, reset, solver, recompute)
    outputs = masking.zero_before_first(outputs, mask, reset)
    return arguments.cast(outputs, arguments.dtype_of(inputs)), final_state
