"""Lanes begin as soon as they may and are taken oldest first; how they interleave is tried in `test_schedules`."""

from collections import Counter
from typing import Any

import pytest

from weft.runtime.channel import RunControl, Stopwatch, Stuck
from weft.runtime.lanes import Admission, PublishedValue, Register


def lanes_of(count: int, take: int = 1, *, work: int = 100, max_lag: int | None = None) -> Admission:
    """Lanes under a limit so short that whoever would wait fails."""
    return Admission(
        RunControl(0.01), "learner[0]", tuple(f"a[{i}]" for i in range(count)), take, work, max_lag, PublishedValue("0")
    )


def begin(lanes: Admission, index: int) -> bool:
    return lanes.begin(index, lanes.lanes[index].begun + 1, Stopwatch(f"a[{index}]"))


def may_begin(lanes: Admission, index: int) -> bool:
    return lanes.may_begin(lanes.lanes[index])


def work(lanes: Admission, *indices: int) -> None:
    """Some lanes begin, and each has its work ready."""
    for index in indices:
        assert begin(lanes, index)
        lanes.read(index)
        lanes.arrive(index, lanes.lanes[index].begun)


def learn(lanes: Admission) -> list[int]:
    """An iteration of the taker."""
    chosen = lanes.form()
    lanes.publish(str(lanes.taken))
    return chosen


def test_a_lane_begins_again_when_its_work_was_taken() -> None:
    lanes = lanes_of(2)
    work(lanes, 0)
    assert (may_begin(lanes, 0), may_begin(lanes, 1)) == (False, True)
    assert lanes.form() == [0]
    assert may_begin(lanes, 0)


def test_a_lane_that_may_not_begin_says_whom_it_waits_for() -> None:
    lanes = lanes_of(2)
    work(lanes, 1)
    message = r"a\[1\] has waited 0.01 s for learner\[0\] to take what it has, or to be less behind"
    with pytest.raises(Stuck, match=message):
        begin(lanes, 1)


def test_a_taker_that_lacks_lanes_says_which_are_not_ready() -> None:
    lanes = lanes_of(3, take=2)
    work(lanes, 1)
    assert begin(lanes, 2)
    message = r"learner\[0\] has waited 0.01 s for 2 of its 3 lanes \(not ready: a\[0\], a\[2\]\)"
    with pytest.raises(Stuck, match=message):
        lanes.form()


def test_work_is_taken_in_the_order_of_versions_then_of_arrivals_and_handed_over_in_that_of_lanes() -> None:
    lanes = lanes_of(4, take=2)
    for index in range(4):
        assert begin(lanes, index)
    for index in (3, 1, 0):
        lanes.arrive(index, lanes.lanes[index].begun)
    assert learn(lanes) == [1, 3]
    work(lanes, 1, 3)
    lanes.arrive(2, lanes.lanes[2].begun)
    assert [learn(lanes), learn(lanes)] == [[0, 2], [1, 3]]


def test_strands_of_a_lane_begin_an_iteration_together() -> None:
    lanes = lanes_of(1)
    assert lanes.begin(0, 1, Stopwatch("env[0]")) and lanes.begin(0, 1, Stopwatch("inference[0]"))
    assert (lanes.begun, lanes.lanes[0].begun) == (1, 1)


@pytest.mark.parametrize("take", [1, 2, 3, 6])
@pytest.mark.parametrize("max_lag", [None, 0, 1, 2])
def test_as_many_lanes_begin_as_can_be_taken_in_time(take: int, max_lag: int | None) -> None:
    lanes = lanes_of(6, take, max_lag=max_lag)
    begun = 0
    while begun < 6 and may_begin(lanes, begun):
        work(lanes, begun)
        begun += 1
    assert begun == (6 if max_lag is None else min(6, take * (max_lag + 1)))


def test_a_bound_of_zero_with_all_lanes_is_in_step() -> None:
    lanes = lanes_of(2, 2, max_lag=0)
    for version in range(3):
        work(lanes, 0, 1)
        assert lanes.form() == [0, 1]
        assert not may_begin(lanes, 0), "the version that it should begin from is not there yet"
        lanes.publish(str(version + 1))
        assert may_begin(lanes, 0)
    assert lanes.lags == {0: 6}


def test_a_slow_lane_is_waited_for_before_it_is_too_late() -> None:
    lanes = lanes_of(2, max_lag=1)
    assert begin(lanes, 0)
    work(lanes, 1)
    assert learn(lanes) == [1]
    work(lanes, 1)
    assert not lanes.choice()
    lanes.arrive(0, lanes.lanes[0].begun)
    assert learn(lanes) == [0]
    assert lanes.lags == {0: 1, 1: 1}


def test_without_a_bound_a_slow_lane_is_left_behind() -> None:
    lanes = lanes_of(2)
    assert begin(lanes, 0)
    for _ in range(5):
        work(lanes, 1)
        assert learn(lanes) == [1]
    lanes.arrive(0, lanes.lanes[0].begun)
    assert learn(lanes) == [0]
    assert lanes.lags == {0: 5, 5: 1} and lanes.latest == [5]


def test_work_is_as_old_as_the_first_that_was_read_for_it() -> None:
    lanes = lanes_of(2)
    work(lanes, 0)
    learn(lanes)
    assert begin(lanes, 0) and lanes.lanes[0].version == 1
    for version in ("2", "3"):
        work(lanes, 1)
        learn(lanes)
        assert lanes.read(0) == version and lanes.lanes[0].version == 2
    lanes.arrive(0, lanes.lanes[0].begun)
    lanes.form()
    assert lanes.latest == [1]


def test_every_lane_is_left_one_piece_of_the_work() -> None:
    lanes = lanes_of(3, work=6)
    for _ in range(4):
        work(lanes, 0)
        assert learn(lanes) == [0]
    assert [may_begin(lanes, index) for index in range(3)] == [False, True, True]
    work(lanes, 2, 1)
    assert lanes.finished and [learn(lanes), learn(lanes)] == [[2], [1]]
    assert not any(begin(lanes, index) for index in range(3))
    assert [lane.taken for lane in lanes.lanes] == [4, 1, 1]


def test_a_value_is_brought_to_a_place_once_for_each_version() -> None:
    lanes = lanes_of(2)
    brought: Counter[str] = Counter()

    def bring(value: Any) -> Any:
        brought[value] += 1
        return f"{value} here"

    assert [lanes.read(index, "here", bring) for index in (0, 1)] == ["0 here"] * 2
    work(lanes, 0)
    learn(lanes)
    assert lanes.read(0, "here", bring) == "1 here"
    assert lanes.read(0, "there", lambda value: f"{value} there") == "1 there"
    assert brought == {"0": 1, "1": 1}


def test_what_waits_to_be_taken_is_counted() -> None:
    lanes = lanes_of(3)
    work(lanes, 0, 2)
    lanes.form()
    work(lanes, 1)
    assert (lanes.ready, lanes.most) == (2, 2)


def test_a_free_role_s_register_holds_the_newest_and_brings_it_to_a_place_once() -> None:
    register, brought = Register(RunControl(0.01), PublishedValue("0")), Counter[str]()

    def bring(value: Any) -> Any:
        brought[value] += 1
        return f"{value} here"

    assert [register.read("here", bring) for _ in range(3)] == ["0 here"] * 3
    register.publish("1")
    assert [register.read("here", bring) for _ in range(3)] == ["1 here"] * 3
    assert register.read("there", lambda value: f"{value} there") == "1 there"
    assert brought == {"0": 1, "1": 1}
