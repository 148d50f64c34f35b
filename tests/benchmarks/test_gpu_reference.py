"""The float64 loops that kernels are checked against on a card, beside the oracles of the tests."""

import argparse

import numpy as np
import oracles
import pytest

SHAPE = (2, 7, 3, 2)


@pytest.fixture(scope="module")
def parts(benchmark):
    return argparse.Namespace(
        problems=benchmark("gpu_parts.problems"), reference=benchmark("gpu_parts.reference")
    )


def by_name(problem):
    """What the oracles take."""
    inputs, _, weights, state = problem.tensors
    names = ["transition", "gate", "readout"]
    names += [name for name in ("input_matrix", "output_gate") if problem.options[f"has_{name}"]]
    arrays = {"inputs": inputs, "initial_state": state, **dict(zip(names, weights, strict=True))}
    return {name: array.astype("float64") for name, array in arrays.items()}, names


@pytest.mark.parametrize("options", [(), ("input_matrix", "output_gate")], ids=str)
@pytest.mark.parametrize("feedback", ["sigmoid", "linear", None])
def test_the_reference_of_coffee_agrees_with_the_oracle(parts, feedback, options):
    case = parts.problems.Case("COFFEE", feedback=feedback, options=options)
    problem = parts.problems.problem(case, SHAPE)
    found = parts.problems.expected(case, SHAPE)
    arrays, names = by_name(problem)
    cotangents = [grad.astype("float64") for grad in problem.grads]
    results, gradients = oracles.coffee(arrays, cotangents, feedback)
    weights = np.stack([gradients[name] for name in names])
    right = (*results, gradients["inputs"], weights, gradients["initial_state"])
    for x, y in zip(found, right, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_the_reference_of_masked_coffee_holds_states_and_their_gradients(parts):
    # The masked sequence computes what is left of it without the masked step.
    case = parts.problems.Case("COFFEE", options=("mask",))
    problem = parts.problems.problem(case, SHAPE)
    inputs, _, weights, state = problem.tensors
    by_outputs, by_final = (grad.astype("float64") for grad in problem.grads)
    mask = np.ones(SHAPE[:2])
    mask[:, 3] = 0
    merged = np.delete(by_outputs, 3, 1)
    merged[:, 2] += by_outputs[:, 3]  # the output of the step before repeats itself
    short = np.delete(inputs, 3, 1), None, weights, state, merged, by_final
    run, options = parts.reference.coffee, problem.options
    found = list(run(inputs, mask, weights, state, by_outputs, by_final, **options))
    assert not found[2][:, 3].any()
    np.testing.assert_array_equal(found[0][:, 3], found[0][:, 2])
    found[0], found[2] = np.delete(found[0], 3, 1), np.delete(found[2], 3, 1)
    for x, y in zip(found, run(*short, **options), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("varying", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("discretization", ["zoh", "euler"])
def test_the_reference_of_the_selective_scan_agrees_with_the_oracle(parts, discretization, varying):
    case = parts.problems.Case("S6", discretization=discretization, varying=varying)
    problem = parts.problems.problem(case, SHAPE)
    names = "inputs", "delta", "transition", "input_matrix", "output_matrix", "initial_state"
    arrays = {n: x.astype("float64") for n, x in zip(names, problem.tensors, strict=True)}
    cotangents = [grad.astype("float64") for grad in problem.grads]
    results, gradients = oracles.selective(arrays, cotangents, discretization)
    right = (*results, *(gradients[name] for name in names))
    for x, y in zip(parts.problems.expected(case, SHAPE), right, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


def test_cases_differ_and_low_precision_is_rounded_beforehand(parts):
    for place in ("usual", "windows"):
        cases = [*parts.problems.cases(place), *parts.problems.other_places()]
        assert len({case.name for case in cases}) == len(cases)
    case = parts.problems.Case("COFFEE", dtype="bfloat16")
    problem = parts.problems.problem(case, SHAPE)
    for array in (problem.tensors[0], problem.grads[0]):
        assert array.dtype == "float32" and not (array.view("uint32") & 0xFFFF).any()
