"""The options of a scan as macros of the C files, which say what they mean."""

# The numbers that the macro FEEDBACK of coffee.c takes.
_FEEDBACKS = {None: 0, "sigmoid": 1, "linear": 2}


def coffee(
    bits: int,
    *,
    feedback: str | None = "sigmoid",
    has_mask: bool = False,
    has_input_matrix: bool = False,
    has_output_gate: bool = False,
) -> dict[str, int]:
    """Of coffee.c, for floats of 32 or 64 bits."""
    return {
        "REAL_BITS": bits,
        "FEEDBACK": _FEEDBACKS[feedback],
        "HAS_MASK": has_mask,
        "HAS_INPUT_MATRIX": has_input_matrix,
        "HAS_OUTPUT_GATE": has_output_gate,
    }


def selective(
    bits: int, *, discretization: str, input_varies: bool, output_varies: bool
) -> dict[str, int]:
    """Of selective.c."""
    return {
        "REAL_BITS": bits,
        "IS_EULER": discretization == "euler",
        "INPUT_VARIES": input_varies,
        "OUTPUT_VARIES": output_varies,
    }
