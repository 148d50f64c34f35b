import itertools

import numpy as np
import oracles
import pytest
import rounding
from nightly import once
from rounding import Rounded
from scans import coffee_arrays, cotangents_of, selective_arrays, widened

pytestmark = once
SHAPE = (2, 4, 2, 2)
STEP = 1e-30


def check_by_complex_steps(oracle, arrays):
    """f'(x) = Im f(x + ih)/h, exact to rounding, since nothing is subtracted."""
    arrays = {name: widened(array) for name, array in arrays.items()}
    cotangents = [widened(c) for c in cotangents_of(arrays)]
    _, gradients = oracle(arrays, cotangents)
    for name, array in arrays.items():
        expected = np.empty_like(array)
        for k in np.ndindex(array.shape):
            stepped = array.astype(complex)
            stepped[k] += 1j * STEP
            results, _ = oracle(arrays | {name: stepped}, cotangents)
            pairs = zip(results, cotangents, strict=True)
            expected[k] = sum((r * c).sum() for r, c in pairs).imag / STEP
        np.testing.assert_allclose(gradients[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("optional", "gated"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_gradients_of_coffee(feedback, optional, gated):
    arrays = coffee_arrays(SHAPE, gate_scale=0.3, input_scale=1.0, optional=optional, gated=gated)
    check_by_complex_steps(lambda a, c: oracles.coffee(a, c, feedback), arrays)


@pytest.mark.parametrize("varying", [(True, False), (False, True)])
@pytest.mark.parametrize("discretization", ["zoh", "euler", "mamba"])
def test_gradients_of_selective(discretization, varying):
    arrays = selective_arrays(SHAPE, varying=varying)
    check_by_complex_steps(lambda a, c: oracles.selective(a, c, discretization), arrays)


@pytest.mark.parametrize("delta_softplus", [False, True])
def test_gradients_of_selective_with_skip_and_bias(delta_softplus):
    arrays = selective_arrays(SHAPE, skip=True, delta_bias=True, delta_softplus=delta_softplus)
    check_by_complex_steps(lambda a, c: oracles.selective(a, c, "mamba", delta_softplus), arrays)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_linear(reverse):
    # Differences, since complex steps want real arguments. The loss is a polynomial of degree 5.
    generator = np.random.default_rng(0)
    shapes = {"decay": (5, 3), "inputs": (2, 5, 3), "initial_state": (2, 3)}
    arrays = {k: generator.normal(size=(2, *s)) for k, s in shapes.items()}
    arrays = {k: a + 1j * b for k, (a, b) in arrays.items()}
    cotangent = arrays["inputs"][::-1]

    def loss(**changed):
        (states,), _ = oracles.linear(arrays | changed, [cotangent], reverse)
        return (rounding.exact(states) * cotangent.conj()).sum().real

    _, gradients = oracles.linear(arrays, [cotangent], reverse)
    for name, array in arrays.items():
        for k, direction in itertools.product(np.ndindex(array.shape), (1, 1j)):
            step = np.zeros_like(array)
            step[k] = 1e-3 * direction
            slopes = [
                (loss(**{name: array + h * step}) - loss(**{name: array - h * step})) / (2e-3 * h)
                for h in (1, 2, 3)
            ]
            # Richardson: exact for polynomials up to degree 6.
            slope = 1.5 * slopes[0] - 0.6 * slopes[1] + 0.1 * slopes[2]
            actual = rounding.exact(gradients[name])[k]
            np.testing.assert_allclose((actual * np.conj(direction)).real, slope, atol=1e-9)


FAR = np.array([-1e3, -50, -3, -1 - 1e-9, 1.5])
NEAR = np.array([-1 + 1e-9, -0.1, -1e-4, -1e-8, 0, 1e-8, 0.5, 1 - 1e-9])


@pytest.mark.parametrize(
    ("function", "derivative", "x"),
    [
        (oracles.sigmoid, oracles.sigmoid_slope, np.append(FAR, NEAR)),
        (oracles.sigmoid_slope, oracles._sigmoid_curvature, np.append(FAR, NEAR)),
        (oracles.softplus, oracles.softplus_slope, np.append(FAR, NEAR)),
        (oracles.expm1_ratio, oracles.expm1_ratio_slope, FAR),
        (oracles.expm1_ratio_slope, oracles._ratio_curvature, FAR),
        # (e^z - 1)/z loses the derivative near zero; its integral does not.
        (lambda z: oracles._moment(0, z), oracles.expm1_ratio_slope, NEAR),
        (oracles.expm1_ratio_slope, oracles._ratio_curvature, NEAR),
    ],
)
def test_derivatives_of_functions(function, derivative, x):
    np.testing.assert_allclose(derivative(x), function(x + 1j * STEP).imag / STEP, 1e-12, 1e-15)


def test_expm1_ratio_is_its_integral():
    np.testing.assert_allclose(oracles.expm1_ratio(NEAR), oracles._moment(0, NEAR), rtol=1e-14)


def test_rounded_bounds_what_float32_does():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 100, 7)).astype("float32")
    expected = (Rounded(widened(a)) * widened(b) + widened(a)).sum(0)
    rounding.assert_agrees((a * b + a).sum(0), expected)
    assert (expected.error * 2**-24 < 1e-4).all()


def test_disagreement_and_empty_bounds_are_told():
    expected = Rounded(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    rounding.assert_agrees(np.float32([1, 2 + 2**-23]), expected)
    for wrong in (2.000001, np.nan):
        with pytest.raises(AssertionError, match=r"result\[1\] is .*, expected 2.0"):
            rounding.assert_agrees(np.float32([1, wrong]), expected)
    with pytest.raises(AssertionError, match="rounding decides 100%"):
        rounding.assert_agrees(np.float32([1, 2]), Rounded(expected.value, 1e6))
