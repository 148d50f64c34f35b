"""What the parts have in common: checks, then which rows may be timed, then timing them."""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from gpu_parts import problems
from gpu_parts.journal import Journal, LeftOut, Wrong
from gpu_parts.problems import COFFEE, S6, Case

# Of ours at the same shape, which was checked: all of them add up long sums in float32.
SAME = 1e-3
# What is kept in the check that a row must have passed.
_NEEDED = dict(zip(problems.MODES, (0, 1, "sqrt"), strict=True))


@dataclasses.dataclass(frozen=True)
class Kernels:
    """An implementation of both recurrences.

    Attributes:
        place: Of its main checks.
        functions: By family, forward and backward as `Problem` has their arguments.
        cases: What is checked.
    """

    name: str
    place: str
    functions: dict[str, tuple[Callable, Callable]]
    cases: Sequence[Case]

    def step(self, family: str, keep: int, tensors, grads, options: dict) -> tuple:
        """Outputs and final state, and all gradients if states are kept for them."""
        forward, backward = self.functions[family]
        outputs, final_state, kept = forward(*tensors, **options, keep=keep)
        if not keep:
            return outputs, final_state
        inputs = tensors[:-1]
        grads = backward(*grads, kept, *inputs, **options, keep=keep)
        return outputs, final_state, *grads


def check_all(
    journal: Journal,
    part: str,
    kernels: Sequence[Kernels],
    run: Callable,
    shapes: dict,
    deadline: float,
) -> None:
    """`run(kernels, case, problem)` has to give the answers of the problem, in NumPy.

    First those that the timed rows need.
    """
    pairs = [(x, case) for x in kernels for case in x.cases]
    for x, case in sorted(pairs, key=lambda pair: not is_needed(*pair)):
        name = name_of_check(part, x.name, case)
        about = {"part": part, "section": "check", "row": x.name}
        about |= {"family": case.family, "shape": shapes[case.place], "mode": case.name}
        work = functools.partial(check, x, case, run, shapes)
        journal.run(name, work, deadline, **about)


def is_needed(kernels: Kernels, case: Case) -> bool:
    needed = (Case(case.family, kernels.place, keep) for keep in _NEEDED.values())
    return case in needed


def check(kernels: Kernels, case: Case, run: Callable, shapes: dict) -> dict:
    is_dry = shapes is problems.DRY_PLACES
    problem = problems.problem(case, shapes[case.place])
    answers = run(kernels, case, problem)
    names, expected = problem.names, problems.expected(case, shapes[case.place])
    pairs = zip(names[: len(answers)], answers, expected[: len(answers)], strict=True)
    found = {name: problems.difference(answer, right) for name, answer, right in pairs}
    shares = {name: found[name] / problems.allowed(name, case.dtype, is_dry) for name in found}
    worst = max(shares, key=shares.get)
    if shares[worst] > 1:
        off = ", ".join(f"{name} {found[name]:.1e}" for name in found if shares[name] > 1)
        raise Wrong(f"off, of the largest element: {off}")
    return {"difference": max(found.values())}


def name_of_check(part: str, row: str, case: Case) -> str:
    return f"check, {part}, {row}, {case.name}"


def must_be_right(journal: Journal, part: str, kernels: Kernels, family: str, mode: str) -> None:
    """Leaves a row out unless its kernels passed the check of the same kind."""
    name = name_of_check(part, kernels.name, Case(family, kernels.place, _NEEDED[mode]))
    if not journal.is_ok(name):
        raise LeftOut("not timed: its check did not pass, or was not made")


def about_row(part: str, row: str, family: str, shape, mode: str) -> dict:
    """What a record says of a timed row, with what it costs at least."""
    cost = {}
    if family in (COFFEE, S6):
        cost["bytes"] = problems.least_bytes(family, shape, mode)
        cost["special"] = problems.special_functions(family, shape, mode)
    about = {"part": part, "section": "time", "row": row, "family": family}
    return about | {"shape": list(shape), "mode": mode} | cost


def same_as_first(
    first: list,
    answers: Sequence,
    names: Sequence[str],
    largest: Callable,
    is_checked: bool,
):
    """Compares with the first row that computed these; what no row did yet is added to `first`.

    `largest(x, unit)` is that of x over that of `unit`, as a number. A row that was not checked by
    itself must be compared in all of its answers.
    """
    if not is_checked and len(first) < len(answers):
        raise LeftOut("not timed: nothing that was checked has answered")
    pairs = zip(names[: len(first)], answers, first, strict=False)
    found = {name: largest(x - y, y) for name, x, y in pairs}
    first.extend(answers[len(first) :])
    if not found:
        return None
    worst = max(found, key=lambda name: np.nan_to_num(found[name], nan=np.inf))
    if not found[worst] <= SAME:
        raise Wrong(f"not timed: {worst} off by {found[worst]:.1e} of the largest element")
    return found[worst]


def rounds(measure: Callable[[int], float], seconds: float, most: int) -> float:
    """Seconds of a run: the median of five rounds of `measure(runs)`, which tells those of all."""
    once = measure(1)
    runs = max(1, min(most, int(seconds / 5 / max(once, 1e-9))))
    if runs == 1 and 5 * once > seconds:
        return min(once, measure(1)) if once < seconds else once
    return statistics.median(measure(runs) / runs for _ in range(5))
