import os
from pathlib import Path

import numpy as np
import pytest
from nightly import once

pytestmark = once


@pytest.fixture(scope="module")
def measuring(benchmark):
    return benchmark("measuring")


def answers():
    return tuple(np.arange(1, 7, dtype="float32").reshape(2, 3) for _ in range(3))


def test_differences_are_relative_to_the_largest_element(measuring):
    other = answers()
    other[1][0, 0] += 0.6
    found = measuring.differences(other, answers())
    assert found[0] == found[2] == 0
    assert found[1] == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_differs_infinitely(measuring, wrong):
    other = answers()
    other[2][1, 2] = wrong
    assert measuring.differences(other, answers()) == [0, 0, np.inf]


def test_other_shapes_and_another_number_of_arrays(measuring):
    assert measuring.differences([answers()[0][:1]], answers()[:1]) == [np.inf]
    with pytest.raises(ValueError, match="longer"):
        measuring.differences(answers()[:2], answers())


def test_sides_take_turns_and_follow_each_other_evenly(measuring):
    calls = []
    runs = [lambda side=side: calls.append(side) for side in range(3)]
    times = measuring.take_turns(runs, [300] * 3)
    assert all(sorted(calls[i : i + 3]) == [0, 1, 2] for i in range(0, 900, 3))
    for side in range(3):
        before = [calls[i - 1] for i in range(1, 900) if calls[i] == side]
        assert all(before.count(other) > 75 for other in range(3) if other != side)
    assert [list(side) for side in times] == [list(range(300))] * 3
    assert all(len(time) == 2 for side in times for time in side.values())


def test_a_side_with_fewer_repeats_joins_rounds_evenly(measuring):
    often, seldom, once = measuring.take_turns([lambda: None] * 3, [6, 2, 1])
    assert [list(often), list(seldom), list(once)] == [[0, 1, 2, 3, 4, 5], [2, 5], [5]]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read on Linux")
def test_the_most_that_a_call_holds(measuring):
    def run():
        first = np.ones(8_000_000)  # 64 MB
        total = first.sum()
        del first
        return np.full(4_000_000, total)

    run()
    # Again: what was given back is neither resident before nor reused unseen.
    times, result, megabytes = measuring.watched(run)
    assert result[0] == 8_000_000 and min(times) > 0
    assert 62 < megabytes < 68


def test_where_memory_is_not_told(measuring, monkeypatch):
    monkeypatch.setattr(measuring, "_give_back", lambda: False)
    _, result, megabytes = measuring.watched(lambda: 3)
    assert (result, megabytes) == (3, None)


def test_more_threads_than_cores_are_refused(measuring, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    taken = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, x: taken.append(x), raising=False)
    with pytest.raises(SystemExit, match=r"3 threads need as many cores up to the last one"):
        measuring.use_cores(None, 3)
    assert measuring.use_cores(None, 2) == "2 threads, core 0, 3"
    assert measuring.use_cores(0, 1) == "one thread, core 0"
    assert taken == [[0, 3], [0]]
    assert os.environ["OMP_NUM_THREADS"] == "1"
