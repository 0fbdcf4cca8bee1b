"""Under any schedule nothing is lost, doubled or late, and nobody is left waiting: see `scheduler`.

The computations are small, but the code that synchronises them is the real one. `make schedules` tries many more.
"""

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.runtime.lane_model import Failed, Model, Setup, Work, fake_projection, refuse_stopping, setups
from tests.runtime.scheduler import Controlled, Deadlock, Interleaving
from weft.layout.layout import Role
from weft.runtime import batching, snapshots
from weft.runtime import lanes as lanes_module
from weft.runtime.batching import Batcher
from weft.runtime.channel import AllReduce, Stopped, Stopwatch, Stream
from weft.runtime.lanes import Admission
from weft.runtime.metrics_assembler import MAX_ITERATIONS_AHEAD, MetricsAssembler
from weft.runtime.snapshots import ReplicaId, Snapshots

schedules = Interleaving.any()
few = st.integers(1, 3)


def stoppable(wait: Controlled, work: Work) -> Work:
    """A task as the engine runs it: it leaves when the run stops, and stops the run if it fails."""

    def life() -> Any:
        try:
            return work()
        except Stopped:
            assert wait.stopping
        except Failed:
            wait.stop()

    return life


def stopping(wait: Controlled, after: int) -> Work:
    """A task that ends the run at some moment."""

    def stop() -> None:
        for _ in range(after):
            wait.scheduler.point()
        wait.stop()

    return stop


def test_the_scheduler_finds_a_notification_that_is_missing() -> None:
    def notify_nobody(stream: Stream) -> None:
        with stream.condition:
            stream.items.append("hello")

    def exchange(seed: int) -> None:
        wait = Controlled(Interleaving(seed))
        stream = Stream(wait, "one", "two", "x")
        wait.scheduler.run(one=partial(notify_nobody, stream), two=stream.get)

    with pytest.raises(Deadlock, match=r"two waits for x from one \(which is there, but nobody said so\)"):
        for seed in range(20):
            exchange(seed)


def test_the_scheduler_finds_locks_that_are_taken_crosswise() -> None:
    def cross(seed: int) -> None:
        wait = Controlled(Interleaving(seed))
        conditions = [wait.condition(), wait.condition()]

        def both(first: int) -> None:
            with conditions[first], conditions[1 - first]:
                pass

        wait.scheduler.run(one=partial(both, 0), two=partial(both, 1))

    with pytest.raises(Deadlock, match="nobody can go on: one waits for a lock; two waits for a lock"):
        for seed in range(20):
            cross(seed)


@given(schedules, st.lists(st.lists(few, min_size=1, max_size=3), min_size=1, max_size=3), st.integers(0, 6))
def test_chains_of_streams_pass_everything_on_once_in_order(
    schedule: Interleaving, chains: list[list[int]], count: int
) -> None:
    wait = Controlled(schedule)
    streams = [
        [Stream(wait, f"{c}.{s}", f"{c}.{s + 1}", "x", capacity) for s, capacity in enumerate(chain)]
        for c, chain in enumerate(chains)
    ]

    def bounded() -> None:
        assert all(len(stream.items) <= stream.capacity for chain in streams for stream in chain)

    def strand(chain: list[Stream], place: int) -> list[int]:
        got = []
        for number in range(count):
            got.append(number if place == 0 else chain[place - 1].get())
            if place < len(chain):
                chain[place].put(got[-1])
        return got

    wait.scheduler.invariant = bounded
    tasks = {f"{c}.{s}": partial(strand, chain, s) for c, chain in enumerate(streams) for s in range(len(chain) + 1)}
    got = wait.scheduler.run(**tasks)
    assert all(values == list(range(count)) for values in got.values())
    assert all(stream.sent == count and not stream.items for chain in streams for stream in chain)


@given(schedules, few, st.lists(st.integers(0, 4), min_size=1, max_size=3), few)
def test_a_stream_with_several_senders_and_receivers_loses_and_doubles_nothing(
    schedule: Interleaving, capacity: int, senders: list[int], receivers: int
) -> None:
    wait = Controlled(schedule)
    stream = Stream(wait, "senders", "receivers", "x", capacity)
    shares = [range(sum(senders))[r::receivers] for r in range(receivers)]

    def send(sender: int) -> None:
        for number in range(senders[sender]):
            stream.put((sender, number))

    tasks = {f"sender {s}": partial(send, s) for s in range(len(senders))}
    tasks |= {f"receiver {r}": lambda share=share: [stream.get() for _ in share] for r, share in enumerate(shares)}
    done = wait.scheduler.run(**tasks)
    lists = [done[f"receiver {r}"] for r in range(receivers)]
    assert sorted(sum(lists, [])) == [(s, n) for s, count in enumerate(senders) for n in range(count)]
    for got in lists:
        in_order = sorted(got, key=lambda item: item[1])
        assert all([i for i in got if i[0] == s] == [i for i in in_order if i[0] == s] for s in range(len(senders)))


@given(schedules, few, st.integers(0, 30), st.integers(1, 2))
def test_nobody_is_left_at_a_stream_when_the_run_stops(
    schedule: Interleaving, capacity: int, after: int, pairs: int
) -> None:
    wait = Controlled(schedule)
    streams = [Stream(wait, f"sender {p}", f"receiver {p}", "x", capacity) for p in range(pairs)]

    def send(stream: Stream) -> None:
        number = 0
        while True:
            stream.put(number)
            number += 1

    def receive(stream: Stream) -> None:
        number = 0
        while True:
            assert stream.get() == number
            number += 1

    tasks: dict[str, Work] = {"stopper": stopping(wait, after)}
    for pair, stream in enumerate(streams):
        tasks[f"sender {pair}"] = stoppable(wait, partial(send, stream))
        tasks[f"receiver {pair}"] = stoppable(wait, partial(receive, stream))
    wait.scheduler.run(**tasks)


@given(schedules, setups())
def test_lanes_are_taken_once_each_in_time_and_never_lock_up(schedule: Interleaving, setup: Setup) -> None:
    model = Model(setup, Controlled(schedule))
    model.check(model.wait.scheduler.run(**model.tasks()))


@given(schedules, setups().filter(lambda setup: setup.lanes < 4 and setup.times < 3))
def test_lanes_hold_what_they_promise_line_by_line(schedule: Interleaving, setup: Setup) -> None:
    model = Model(replace(setup, reports=False), Controlled(schedule, fine=lanes_module.__file__))
    model.check(model.wait.scheduler.run(**model.tasks()))


@given(schedules)
def test_a_lane_begins_again_as_soon_as_it_is_taken(schedule: Interleaving) -> None:
    wait = Controlled(schedule)
    lanes, begun = Admission(wait, "taker", ("lane",), 1, 2), Stream(wait, "lane", "taker", "news")

    def lane() -> None:
        assert lanes.begin(0, 1, Stopwatch("lane"))
        lanes.arrive(0, lanes.lanes[0].begun)
        assert lanes.begin(0, 2, Stopwatch("lane"))
        begun.put("again")

    def taker() -> None:
        assert lanes.form() == [0]
        begun.get()

    wait.scheduler.run(lane=lane, taker=taker)


@given(schedules)
def test_a_lane_knows_as_soon_as_there_is_no_more_work(schedule: Interleaving) -> None:
    wait = Controlled(schedule)
    lanes, ended = Admission(wait, "taker", ("one", "two"), 1, 2), Stream(wait, "one", "two", "news")

    def one() -> None:
        assert lanes.begin(0, 1, Stopwatch("one"))
        lanes.arrive(0, lanes.lanes[0].begun)
        assert not lanes.begin(0, 2, Stopwatch("one"))
        ended.put("no more")

    def two() -> None:
        assert lanes.form() == [0]
        assert lanes.begin(1, 1, Stopwatch("two"))
        ended.get()

    wait.scheduler.run(one=one, two=two)


@given(schedules)
def test_a_taker_goes_on_as_soon_as_slow_work_turns_out_to_be_younger(schedule: Interleaving) -> None:
    wait = Controlled(schedule)
    lanes = Admission(wait, "taker", ("slow", "fast"), 1, 4, max_lag=1)
    begun, published, taken = (Stream(wait, "one", "other", "news") for _ in range(3))

    def slow() -> None:
        assert lanes.begin(0, 1, Stopwatch("slow"))
        begun.put("from version 0")
        published.get()
        lanes.read(0)
        taken.get()
        lanes.arrive(0, lanes.lanes[0].begun)

    def fast() -> None:
        begun.get()
        for number in (1, 2):
            assert lanes.begin(1, number, Stopwatch("fast"))
            lanes.arrive(1, lanes.lanes[1].begun)

    def taker() -> None:
        assert lanes.form() == [1]
        lanes.publish(1)
        published.put("version 1")
        assert lanes.form() == [1]
        taken.put("ahead of it")
        lanes.publish(2)
        assert lanes.form() == [0]

    wait.scheduler.run(slow=slow, fast=fast, taker=taker)


@given(schedules, setups(), st.integers(0, 60), st.booleans())
def test_nobody_is_left_in_a_lane_when_the_run_stops_or_a_strand_fails(
    schedule: Interleaving, setup: Setup, after: int, fails: bool
) -> None:
    wait = Controlled(schedule)
    model = Model(setup, wait, acts_left=after if fails else -1)
    tasks = {name: stoppable(wait, work) for name, work in model.tasks().items()}
    if not fails:
        tasks["stopper"] = stopping(wait, after)
    wait.scheduler.run(**tasks)


@given(schedules, st.integers(1, 4), st.integers(0, 4), st.none() | st.integers(0, 20))
def test_meetings_merge_what_was_brought_in_each_round(
    schedule: Interleaving, replicas: int, rounds: int, stop: int | None
) -> None:
    wait = Controlled(schedule)
    names = tuple(f"a[{index}]" for index in range(replicas))
    meeting = AllReduce(wait, "m", names, tuple)

    def replica(index: int) -> list[Any]:
        return [meeting.join(index, (index, number)) for number in range(rounds)]

    tasks = {name: stoppable(wait, partial(replica, index)) for index, name in enumerate(names)}
    if stop is not None:
        tasks["stopper"] = stopping(wait, stop)
    done = wait.scheduler.run(**tasks)
    merged = [tuple((index, number) for index in range(replicas)) for number in range(rounds)]
    assert all(done[name] == merged or (done[name] is None and stop is not None) for name in names)


@dataclass
class Doubling:
    """In place of a compiled run: doubles numbers, one batch at a time and only when it should."""

    wait: Controlled
    most: int
    seconds: int
    batches_left: int = -1
    """How many are made before one fails, if any does."""
    busy: bool = False

    def __call__(self, calls: Any) -> list[list[int]]:
        assert not self.busy and 1 <= len(calls) <= self.most
        came = calls[0][1][1]
        assert len(calls) == self.most or self.wait.scheduler.now >= came + self.seconds or self.wait.stopping
        self.busy = True
        self.wait.scheduler.point()
        self.busy = False
        if self.batches_left == 0:
            raise Failed
        self.batches_left -= 1
        return [[2 * value] for _, (value, _) in calls]


def calling(wait: Controlled, doubling: Doubling, callers: int, pauses: list[int]) -> tuple[Batcher, dict[str, Work]]:
    """Callers that each call once after each of some pauses."""
    run: Any = doubling
    together = Batcher(wait, run, doubling.most, doubling.seconds)

    def caller(index: int) -> list[int]:
        clock, got = Stopwatch(f"caller {index}"), []
        for number, pause in enumerate(pauses):
            wait.scheduler.now += pause
            got += together(0, clock, (100 * index + number, wait.scheduler.now))
        assert got == [200 * index + 2 * number for number in range(len(pauses))]
        return got

    return together, {f"caller {index}": stoppable(wait, partial(caller, index)) for index in range(callers)}


def under_its_time(wait: Controlled) -> Any:
    return patch.object(batching, "time", SimpleNamespace(perf_counter=lambda: wait.scheduler.now))


pauses_between = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@given(schedules, st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), pauses_between)
def test_calls_made_as_one_give_everybody_its_own_result(
    schedule: Interleaving, callers: int, most: int, seconds: int, pauses: list[int]
) -> None:
    wait = Controlled(schedule)
    together, tasks = calling(wait, Doubling(wait, most, seconds), callers, pauses)
    with under_its_time(wait):
        done = wait.scheduler.run(**tasks)
    assert all(len(got) == len(pauses) for got in done.values())
    assert sum(size * count for size, count in together.sizes.items()) == callers * len(pauses)
    assert not together.calls and not together.busy


@given(schedules, st.integers(1, 4), st.integers(1, 3))
def test_a_full_batch_does_not_wait_for_its_time(schedule: Interleaving, most: int, rounds: int) -> None:
    wait = Controlled(schedule, timeouts=False)
    together, tasks = calling(wait, Doubling(wait, most, 1), most, [0] * rounds)
    with under_its_time(wait):
        wait.scheduler.run(**tasks)
    assert together.sizes == {most: rounds}


@given(schedules, st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.integers(0, 3))
def test_nobody_is_left_in_a_batch_when_one_fails(
    schedule: Interleaving, callers: int, most: int, seconds: int, after: int
) -> None:
    wait = Controlled(schedule)
    _, tasks = calling(wait, Doubling(wait, most, seconds, after), callers, [0, 1, 0])
    with under_its_time(wait):
        wait.scheduler.run(**tasks)


@given(schedules, st.integers(1, 4), st.integers(1, 3), st.integers(0, 12), st.booleans())
def test_nobody_is_left_in_a_batch_when_the_run_stops(
    schedule: Interleaving, callers: int, most: int, after: int, timeouts: bool
) -> None:
    wait = Controlled(schedule, timeouts=timeouts)
    _, tasks = calling(wait, Doubling(wait, most, 1), callers, [0, 1, 0])
    tasks["stopper"] = stopping(wait, after)
    with under_its_time(wait):
        wait.scheduler.run(**tasks)


@given(schedules, st.tuples(few, st.integers(1, 2)), st.integers(1, 7), st.booleans(), st.none() | st.integers(0, 40))
def test_a_ledger_puts_every_report_into_one_row(
    schedule: Interleaving, replicas: tuple[int, int], times: int, in_lanes: bool, stop: int | None
) -> None:
    wait = Controlled(schedule)
    roles = (
        Role("a", ("a",), replicas=replicas[0]),
        Role("b", ("b",), replicas=replicas[1], take=1 if in_lanes else None, lanes_per_replica=2 if in_lanes else 1),
    )
    ledger = MetricsAssembler(wait, fake_projection(*roles, lanes=2 * replicas[1] if in_lanes else 0))

    def bounded() -> None:
        assert all(row <= ledger.done + MAX_ITERATIONS_AHEAD for row in ledger.rows)

    def report(role: Role, replica: int) -> None:
        clock, output = Stopwatch(f"{role.name}[{replica}]"), "ab".index(role.name)
        for number in range(1, times * role.lanes_per_replica + 1):
            # A count, and a number that tells reports apart.
            ledger.report(role, replica, number, {output: np.array([1, 10**replica * number])}, clock, (number,))

    tasks = {
        f"{role.name}[{index}]": stoppable(wait, partial(report, role, index))
        for role in roles
        for index in range(role.replicas)
    }
    tasks["follower"] = stoppable(wait, lambda: [ledger.next(partial(refuse_stopping, wait)) for _ in range(times)])
    if stop is not None:
        tasks["stopper"] = stopping(wait, stop)
    wait.scheduler.invariant = bounded
    rows = wait.scheduler.run(**tasks)["follower"]
    if rows is not None:
        check_rows(rows, roles, times, in_lanes)
    assert rows is not None or stop is not None


def check_rows(rows: list[Any], roles: tuple[Role, ...], times: int, in_lanes: bool) -> None:
    for role in roles:
        count, all_replicas = (
            role.replicas * role.lanes_per_replica,
            sum(10**replica for replica in range(role.replicas)),
        )
        found = [row[role.name].tolist() for row in rows]
        assert [each[0] for each in found] == [count] * times
        assert sum(each[1] for each in found) == all_replicas * sum(range(1, times * role.lanes_per_replica + 1))
        if not in_lanes:
            assert [each[1] for each in found] == [all_replicas * number for number in range(1, times + 1)]


@given(schedules, few, st.integers(3, 6), st.just({1}) | st.sets(st.integers(1, 6)), st.booleans())
def test_snapshots_are_complete_and_leave_nothing_behind(
    schedule: Interleaving, strands: int, times: int, due: set[int], in_step: bool
) -> None:
    wait = Controlled(schedule, fine=snapshots.__file__)
    here: list[ReplicaId] = [("a", index) for index in range(strands)]
    taken = Snapshots(frozenset(here), in_step, due.__contains__)
    reports = [Stream(wait, f"a[{index}]", "follower", "report", times) for index in range(strands)]

    def strand(index: int) -> None:
        for number in range(1, times + 1):
            taken.offer(here[index], number, lambda number=number: {0: number})
            reports[index].put(number)
        taken.ended[here[index]] = {0: times}

    def follow() -> dict[int, Any]:
        found = {}
        for number in range(1, times + 1):
            assert [stream.get() for stream in reports] == [number] * strands
            found[number] = taken.take(number)
        return {number: parts for number, parts in found.items() if parts is not None}

    tasks: dict[str, Work] = {f"a[{index}]": partial(strand, index) for index in range(strands)}
    found = wait.scheduler.run(follower=follow, **tasks)["follower"]
    assert all(parts.keys() == set(here) for parts in found.values())
    assert taken.parts.keys() <= {taken.asked}
    if in_step:
        assert found == {number: dict.fromkeys(here, {0: number}) for number in due if number <= times}
