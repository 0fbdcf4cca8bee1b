"""Lanes begin as early as the bound on lag allows, and the oldest iterations are consumed first.

`test_schedules` tests how lanes and the consumer interleave.
"""

from collections import Counter
from typing import Any

import pytest

from weft.runtime.channel import RunControl, Stopwatch, Stuck
from weft.runtime.lanes import Admission, PublishedValue, Register


def admission_of(count: int, take: int = 1, *, iterations: int = 100, max_lag: int | None = None) -> Admission:
    """An admission whose waits fail almost at once."""
    names = tuple(f"a[{i}]" for i in range(count))
    return Admission(RunControl(0.01), "learner[0]", names, take, iterations, max_lag, PublishedValue("0"))


def begin(admission: Admission, index: int) -> bool:
    return admission.begin(index, admission.lanes[index].begun + 1, Stopwatch(f"a[{index}]"))


def can_begin(admission: Admission, index: int) -> bool:
    return admission.can_begin(admission.lanes[index])


def mark_ready(admission: Admission, index: int) -> None:
    admission.mark_ready(index, admission.lanes[index].begun)


def iterate(admission: Admission, *indices: int) -> None:
    """Lanes begin an iteration, read the register and become ready."""
    for index in indices:
        assert begin(admission, index)
        admission.read(index)
        mark_ready(admission, index)


def learn(admission: Admission) -> list[int]:
    """The consumer executes an iteration, and publishes its result."""
    chosen = admission.form_batch()
    admission.publish(str(admission.batches))
    return chosen


def test_a_lane_can_begin_again_after_its_iteration_is_consumed() -> None:
    admission = admission_of(2)
    iterate(admission, 0)
    assert (can_begin(admission, 0), can_begin(admission, 1)) == (False, True)
    assert admission.form_batch() == [0]
    assert can_begin(admission, 0)


def test_the_error_of_a_lane_that_cannot_begin_names_the_consumer() -> None:
    admission = admission_of(2)
    iterate(admission, 1)
    message = r"a\[1\] has waited 0.01 s for learner\[0\] to consume its last iteration, or to come within max_lag"
    with pytest.raises(Stuck, match=message):
        begin(admission, 1)


def test_the_error_of_a_consumer_without_a_batch_names_the_lanes_that_are_not_ready() -> None:
    admission = admission_of(3, take=2)
    iterate(admission, 1)
    assert begin(admission, 2)
    message = r"learner\[0\] has waited 0.01 s for 2 of its 3 lanes \(not ready: a\[0\], a\[2\]\)"
    with pytest.raises(Stuck, match=message):
        admission.form_batch()


def test_batches_take_the_oldest_version_then_the_earliest_ready_lane_and_list_lanes_by_index() -> None:
    admission = admission_of(4, take=2)
    for index in range(4):
        assert begin(admission, index)
    for index in (3, 1, 0):
        mark_ready(admission, index)
    assert learn(admission) == [1, 3]
    iterate(admission, 1, 3)
    mark_ready(admission, 2)
    assert [learn(admission), learn(admission)] == [[0, 2], [1, 3]]


def test_the_replicas_of_a_lane_begin_an_iteration_together() -> None:
    admission = admission_of(1)
    assert admission.begin(0, 1, Stopwatch("env[0]")) and admission.begin(0, 1, Stopwatch("inference[0]"))
    assert (admission.begun, admission.lanes[0].begun) == (1, 1)


@pytest.mark.parametrize("take", [1, 2, 3, 6])
@pytest.mark.parametrize("max_lag", [None, 0, 1, 2])
def test_as_many_lanes_begin_as_can_be_consumed_within_max_lag(take: int, max_lag: int | None) -> None:
    admission = admission_of(6, take, max_lag=max_lag)
    begun = 0
    while begun < 6 and can_begin(admission, begun):
        iterate(admission, begun)
        begun += 1
    assert begun == (6 if max_lag is None else min(6, take * (max_lag + 1)))


def test_max_lag_of_zero_with_all_lanes_consumed_is_synchronous() -> None:
    admission = admission_of(2, 2, max_lag=0)
    for version in range(3):
        iterate(admission, 0, 1)
        assert admission.form_batch() == [0, 1]
        assert not can_begin(admission, 0), "the next version is not published yet"
        admission.publish(str(version + 1))
        assert can_begin(admission, 0)
    assert admission.lags == {0: 6}


def test_the_consumer_waits_for_a_slow_lane_before_max_lag_is_exceeded() -> None:
    admission = admission_of(2, max_lag=1)
    assert begin(admission, 0)
    iterate(admission, 1)
    assert learn(admission) == [1]
    iterate(admission, 1)
    assert not admission.choose_lanes()
    mark_ready(admission, 0)
    assert learn(admission) == [0]
    assert admission.lags == {0: 1, 1: 1}


def test_without_max_lag_the_consumer_does_not_wait_for_a_slow_lane() -> None:
    admission = admission_of(2)
    assert begin(admission, 0)
    for _ in range(5):
        iterate(admission, 1)
        assert learn(admission) == [1]
    mark_ready(admission, 0)
    assert learn(admission) == [0]
    assert admission.lags == {0: 5, 5: 1} and admission.batch_lags == [5]


def test_the_lag_counts_from_the_first_version_read_in_an_iteration() -> None:
    admission = admission_of(2)
    iterate(admission, 0)
    learn(admission)
    assert begin(admission, 0) and admission.lanes[0].version == 1
    for version in ("2", "3"):
        iterate(admission, 1)
        learn(admission)
        assert admission.read(0) == version and admission.lanes[0].version == 2
    mark_ready(admission, 0)
    admission.form_batch()
    assert admission.batch_lags == [1]


def test_every_lane_executes_at_least_one_iteration() -> None:
    admission = admission_of(3, iterations=6)
    for _ in range(4):
        iterate(admission, 0)
        assert learn(admission) == [0]
    assert [can_begin(admission, index) for index in range(3)] == [False, True, True]
    iterate(admission, 2, 1)
    assert admission.all_begun and [learn(admission), learn(admission)] == [[2], [1]]
    assert not any(begin(admission, index) for index in range(3))
    assert [lane.consumed for lane in admission.lanes] == [4, 1, 1]


def test_the_latest_version_is_copied_to_a_device_once() -> None:
    admission = admission_of(2)
    copies: Counter[str] = Counter()

    def transfer(value: Any) -> Any:
        copies[value] += 1
        return f"{value} on a"

    assert [admission.read(index, "a", transfer) for index in (0, 1)] == ["0 on a"] * 2
    iterate(admission, 0)
    learn(admission)
    assert admission.read(0, "a", transfer) == "1 on a"
    assert admission.read(0, "b", lambda value: f"{value} on b") == "1 on b"
    assert copies == {"0": 1, "1": 1}


def test_ready_lanes_are_counted() -> None:
    admission = admission_of(3)
    iterate(admission, 0, 2)
    admission.form_batch()
    iterate(admission, 1)
    assert (admission.ready_count, admission.max_ready) == (2, 2)


def test_a_register_holds_the_latest_version_and_copies_it_to_a_device_once() -> None:
    register, copies = Register(RunControl(0.01), PublishedValue("0")), Counter[str]()

    def transfer(value: Any) -> Any:
        copies[value] += 1
        return f"{value} on a"

    assert [register.read("a", transfer) for _ in range(3)] == ["0 on a"] * 3
    register.publish("1")
    assert [register.read("a", transfer) for _ in range(3)] == ["1 on a"] * 3
    assert register.read("b", lambda value: f"{value} on b") == "1 on b"
    assert copies == {"0": 1, "1": 1}
