"""Data for the scans, and their comparison with the oracles."""

import contextlib

import keras
import numpy as np
from gradients import differentiated
from keras import ops
from rounding import Rounded, assert_agrees


def coffee_arrays(shape, *, gate_scale=2.0, input_scale=3.0, optional=True, gated=False, seed=0):
    """Arrays of a COFFEE scan of shape (B, T, D, n), by name, hard ones by default.

    `gated`: with inputs and a bias of the gate, as large as the gate's weights.
    """
    batch, length, dim, n = shape
    generator = np.random.default_rng(seed)
    arrays = {
        "inputs": input_scale * generator.normal(size=(batch, length, dim)),
        "transition": transitions(generator, dim, n),
        "gate": gate_scale * generator.normal(size=(dim, n)),
        "readout": generator.normal(size=(dim, n)),
        "initial_state": generator.normal(size=(batch, dim, n)),
    }
    if optional:
        arrays["input_matrix"] = generator.normal(size=(dim, n))
        arrays["output_gate"] = generator.normal(size=(dim, n))
    if gated:
        arrays["gate_inputs"] = gate_scale * generator.normal(size=(batch, length, dim))
        arrays["gate_bias"] = gate_scale * generator.normal(size=(dim, n))
    return as_float32(arrays)


def selective_arrays(
    shape,
    *,
    varying=(True, True),
    input_scale=3.0,
    skip=False,
    delta_bias=False,
    delta_softplus=False,
    seed=0,
):
    """Arrays of a selective scan of shape (B, T, D, n), by name; matrices over time or fixed."""
    batch, length, dim, n = shape
    generator = np.random.default_rng(seed)
    matrices = [(batch, length, n) if v else (dim, n) for v in varying]
    inputs = input_scale * generator.normal(size=(batch, length, dim))
    delta = 2 * generator.normal(size=(batch, length, dim))
    arrays = {
        "inputs": inputs,
        "delta": delta if delta_softplus else np.logaddexp(0, delta),
        "transition": transitions(generator, dim, n),
        "input_matrix": generator.normal(size=matrices[0]),
        "output_matrix": generator.normal(size=matrices[1]),
        "initial_state": generator.normal(size=(batch, dim, n)),
    }
    if skip:
        arrays["skip"] = generator.normal(size=dim)
    if delta_bias:
        arrays["delta_bias"] = abs(generator.normal(size=dim))
    return as_float32(arrays)


def transitions(generator, dim, n):
    """Uniform in [-2, 0], both ends included."""
    transition = generator.uniform(-2, 0, size=(dim, n))
    if transition.size:
        transition.flat[0], transition.flat[-1] = -2, 0
    return transition


def cotangents_of(arrays):
    """One for the outputs and one for the final state."""
    generator = np.random.default_rng(1)
    shapes = arrays["inputs"].shape, arrays["initial_state"].shape
    return [generator.normal(size=shape).astype("float32") for shape in shapes]


def as_float32(arrays):
    return {name: array.astype("float32") for name, array in arrays.items()}


def assert_matches(scan, oracle, arrays, cotangents, dtype="float32"):
    """Values of `scan`, and gradients with cotangents on all its results, agree with the oracle."""
    wide = {name: Rounded(widened(array)) for name, array in arrays.items()}
    results, gradients = oracle(wide, [Rounded(widened(c)) for c in cotangents])
    with precision(dtype):
        if dtype == "float64":
            arrays = {name: widened(array) for name, array in arrays.items()}
            cotangents = [widened(c) for c in cotangents]
        actual_results, actual_gradients = differentiate(scan, arrays, cotangents)
    pairs = zip(actual_results, cotangents, results, strict=True)
    for k, (actual, cotangent, expected) in enumerate(pairs):
        assert actual.dtype == cotangent.dtype
        assert_agrees(actual, expected, f"result {k}")
    for name, array in arrays.items():
        assert actual_gradients[name].dtype == array.dtype
        assert_agrees(actual_gradients[name], gradients[name], f"gradient by {name}")


def differentiate(scan, arrays, cotangents):
    """What `scan` returns, and the gradients of Σ results * cotangents by the arrays, by name.

    The results come from the very run that is differentiated: they are the gradients by the
    cotangents.
    """
    return differentiated_scan(scan, list(arrays))(arrays, cotangents)


def differentiated_scan(scan, names):
    """`differentiate` as a function of arrays of these names and cotangents: compiled once."""

    def loss(*tensors):
        results = scan(**dict(zip(names, tensors, strict=False)))
        results = results if isinstance(results, tuple) else (results,)
        pairs = zip(results, tensors[len(names) :], strict=True)
        return sum(_inner(result, cotangent) for result, cotangent in pairs)

    run_back = differentiated(loss)

    def run(arrays, cotangents):
        _, gradients = run_back(*(arrays[name] for name in names), *cotangents)
        # JAX's gradient by a + ib is dL/da - i dL/db, the conjugate of the others'.
        if keras.backend.backend() == "jax":
            gradients = [np.conj(gradient) for gradient in gradients]
        return gradients[len(names) :], dict(zip(names, gradients, strict=False))

    return run


def in_pieces(scan, reset):
    """What a scan with resets must be: each piece of a row alone, from zeros after a reset."""

    def run(initial_state, **tensors):
        rows = []
        for row, begins in enumerate(reset):
            starts = sorted({0, *np.flatnonzero(begins)})
            outputs, state = [], initial_state[row : row + 1]
            for start, stop in zip(starts, [*starts[1:], len(begins)], strict=True):
                state = ops.zeros_like(state) if begins[start] else state
                piece = {
                    name: x[row : row + 1, start:stop] if len(x.shape) == 3 else x
                    for name, x in tensors.items()
                }
                output, state = scan(initial_state=state, **piece)
                outputs.append(output)
            rows.append((ops.concatenate(outputs, axis=1), state))
        return tuple(ops.concatenate(parts, axis=0) for parts in zip(*rows, strict=True))

    return run


def assert_same(scan, expected_scan, arrays, dtype="float64", tolerance=1e-12):
    """Two scans agree in values and gradients, to a part of the largest element of each."""
    cotangents = cotangents_of(arrays)
    if dtype == "float64":
        arrays = {name: widened(array) for name, array in arrays.items()}
        cotangents = [widened(x) for x in cotangents]
    with precision(dtype):
        results, gradients = differentiate(scan, arrays, cotangents)
        expected_results, expected = differentiate(expected_scan, arrays, cotangents)
    pairs = {f"result {k}": x for k, x in enumerate(zip(results, expected_results, strict=True))}
    for name, pair in (pairs | {k: (gradients[k], expected[k]) for k in arrays}).items():
        actual, exact = pair
        scale = max(abs(exact).max(), tolerance)
        np.testing.assert_allclose(actual / scale, exact / scale, 0, tolerance, err_msg=name)


def _inner(result, cotangent):
    if "complex" not in keras.backend.standardize_dtype(result.dtype):
        # TensorFlow adds no two dtypes.
        total = ops.sum(result * cotangent)
        return ops.cast(total, "float32") if "float16" in str(total.dtype) else total
    parts = (part(result) * part(cotangent) for part in (ops.real, ops.imag))
    return ops.sum(sum(parts))


def widened(array):
    """In double precision, real or complex."""
    return array.astype(np.result_type(array.dtype, "float64"))


@contextlib.contextmanager
def precision(dtype):
    """Lets JAX compute in float64 if `dtype` asks for it; the other backends always can."""
    if keras.backend.backend() != "jax" or dtype != "float64":
        yield
        return
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)
