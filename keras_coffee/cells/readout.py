"""From states to outputs."""

from keras import ops

from keras_coffee._typing import Tensor


def read_state(state: Tensor, readout: Tensor, output_gate: Tensor | None = None) -> Tensor:
    """Outputs y = C x, or filtered, y = σ(w_γ · x) C x.

    Args:
        state: x, `(..., D, n)`.
        readout: C, `(D, n)`.
        output_gate: w_γ, `(D, n)`, or None for no filter.

    Returns:
        Outputs `(..., D)`.

    Reference:
        "Context-Selective State Space Models: Feedback is All You Need", equation (final_model);
        the filter is the remark "Model with output filtering".
    """
    outputs = ops.sum(readout * state, axis=-1)
    if output_gate is None:
        return outputs
    return outputs * ops.sigmoid(ops.sum(output_gate * state, axis=-1))
