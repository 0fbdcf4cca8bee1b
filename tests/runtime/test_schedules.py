"""Under every thread schedule, all messages arrive once, no lag passes its bound, and no thread waits for ever.

The computations are trivial, but the synchronisation code is the real one: see `tests/runtime/scheduler.py`. `make
schedules` tries many more schedules.
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

from tests.runtime.lane_model import Failed, Model, Setup, TaskFunction, fake_projection, raise_stopped, setups
from tests.runtime.scheduler import Deadlock, Interleaving, ScheduledControl
from weft.layout.layout import Role
from weft.runtime import batching, snapshots
from weft.runtime import lanes as lanes_module
from weft.runtime.batching import Batcher
from weft.runtime.channel import AllReduce, Stopped, Stopwatch, Stream
from weft.runtime.lanes import Admission
from weft.runtime.metrics_assembler import MAX_ITERATIONS_AHEAD, MetricsAssembler
from weft.runtime.scatter import ReplicaId
from weft.runtime.snapshots import Snapshots

interleavings = Interleaving.any()
up_to_three = st.integers(1, 3)


def stoppable(control: ScheduledControl, function: TaskFunction) -> TaskFunction:
    """A task that behaves like a replica's thread: it exits when the run stops, and stops the run if it fails."""

    def run() -> Any:
        try:
            return function()
        except Stopped:
            assert control.stopping
        except Failed:
            control.stop()

    return run


def stop_after(control: ScheduledControl, steps: int) -> TaskFunction:
    """A task that stops the run after some steps of its own."""

    def stop() -> None:
        for _ in range(steps):
            control.scheduler.switch_point()
        control.stop()

    return stop


def test_the_scheduler_finds_a_missing_notification() -> None:
    def put_without_notification(stream: Stream) -> None:
        with stream.condition:
            stream.items.append("hello")

    def exchange(seed: int) -> None:
        control = ScheduledControl(Interleaving(seed))
        stream = Stream(control, "one", "two", "x")
        control.scheduler.run(one=partial(put_without_notification, stream), two=stream.get)

    with pytest.raises(Deadlock, match=r"two waits for x from one \(true, but not notified\)"):
        for seed in range(20):
            exchange(seed)


def test_the_scheduler_finds_locks_acquired_in_opposite_orders() -> None:
    def acquire_both(seed: int) -> None:
        control = ScheduledControl(Interleaving(seed))
        conditions = [control.condition(), control.condition()]

        def acquire(first: int) -> None:
            with conditions[first], conditions[1 - first]:
                pass

        control.scheduler.run(one=partial(acquire, 0), two=partial(acquire, 1))

    with pytest.raises(Deadlock, match="no thread can continue: one waits for a lock; two waits for a lock"):
        for seed in range(20):
            acquire_both(seed)


@given(
    interleavings, st.lists(st.lists(up_to_three, min_size=1, max_size=3), min_size=1, max_size=3), st.integers(0, 6)
)
def test_chains_of_streams_deliver_every_item_once_in_order(
    interleaving: Interleaving, chains: list[list[int]], count: int
) -> None:
    control = ScheduledControl(interleaving)
    streams = [
        [Stream(control, f"{c}.{s}", f"{c}.{s + 1}", "x", capacity) for s, capacity in enumerate(chain)]
        for c, chain in enumerate(chains)
    ]

    def check_capacity() -> None:
        assert all(len(stream.items) <= stream.capacity for chain in streams for stream in chain)

    def relay(chain: list[Stream], position: int) -> list[int]:
        items = []
        for number in range(count):
            items.append(number if position == 0 else chain[position - 1].get())
            if position < len(chain):
                chain[position].put(items[-1])
        return items

    control.scheduler.invariant = check_capacity
    tasks = {f"{c}.{s}": partial(relay, chain, s) for c, chain in enumerate(streams) for s in range(len(chain) + 1)}
    results = control.scheduler.run(**tasks)
    assert all(items == list(range(count)) for items in results.values())
    assert all(stream.sent == count and not stream.items for chain in streams for stream in chain)


@given(interleavings, up_to_three, st.lists(st.integers(0, 4), min_size=1, max_size=3), up_to_three)
def test_a_stream_with_several_senders_and_receivers_delivers_every_item_once(
    interleaving: Interleaving, capacity: int, senders: list[int], receivers: int
) -> None:
    control = ScheduledControl(interleaving)
    stream = Stream(control, "senders", "receivers", "x", capacity)
    shares = [range(sum(senders))[r::receivers] for r in range(receivers)]

    def send(sender: int) -> None:
        for number in range(senders[sender]):
            stream.put((sender, number))

    tasks = {f"sender {s}": partial(send, s) for s in range(len(senders))}
    tasks |= {f"receiver {r}": lambda share=share: [stream.get() for _ in share] for r, share in enumerate(shares)}
    results = control.scheduler.run(**tasks)
    received = [results[f"receiver {r}"] for r in range(receivers)]
    assert sorted(sum(received, [])) == [(s, n) for s, count in enumerate(senders) for n in range(count)]
    for items in received:
        in_order = sorted(items, key=lambda item: item[1])
        assert all([i for i in items if i[0] == s] == [i for i in in_order if i[0] == s] for s in range(len(senders)))


@given(interleavings, up_to_three, st.integers(0, 30), st.integers(1, 2))
def test_all_senders_and_receivers_exit_when_the_run_stops(
    interleaving: Interleaving, capacity: int, after: int, pairs: int
) -> None:
    control = ScheduledControl(interleaving)
    streams = [Stream(control, f"sender {p}", f"receiver {p}", "x", capacity) for p in range(pairs)]

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

    tasks: dict[str, TaskFunction] = {"stopper": stop_after(control, after)}
    for pair, stream in enumerate(streams):
        tasks[f"sender {pair}"] = stoppable(control, partial(send, stream))
        tasks[f"receiver {pair}"] = stoppable(control, partial(receive, stream))
    control.scheduler.run(**tasks)


@given(interleavings, setups())
def test_every_lane_iteration_is_consumed_once_within_max_lag_without_deadlock(
    interleaving: Interleaving, setup: Setup
) -> None:
    model = Model(setup, ScheduledControl(interleaving))
    model.check_finished(model.control.scheduler.run(**model.tasks()))


@given(interleavings, setups().filter(lambda setup: setup.lanes < 4 and setup.times < 3))
def test_lanes_are_correct_when_threads_switch_before_any_line(interleaving: Interleaving, setup: Setup) -> None:
    control = ScheduledControl(interleaving, traced_file=lanes_module.__file__)
    model = Model(replace(setup, reports=False), control)
    model.check_finished(control.scheduler.run(**model.tasks()))


@given(interleavings)
def test_a_lane_can_begin_again_as_soon_as_it_is_consumed(interleaving: Interleaving) -> None:
    control = ScheduledControl(interleaving)
    admission, begun = Admission(control, "consumer", ("lane",), 1, 2), Stream(control, "lane", "consumer", "signal")

    def lane() -> None:
        assert admission.begin(0, 1, Stopwatch("lane"))
        admission.mark_ready(0, admission.lanes[0].begun)
        assert admission.begin(0, 2, Stopwatch("lane"))
        begun.put("begun again")

    def consumer() -> None:
        assert admission.form_batch() == [0]
        begun.get()

    control.scheduler.run(lane=lane, consumer=consumer)


@given(interleavings)
def test_a_lane_ends_as_soon_as_no_iterations_are_left(interleaving: Interleaving) -> None:
    control = ScheduledControl(interleaving)
    admission, ended = Admission(control, "consumer", ("one", "two"), 1, 2), Stream(control, "one", "two", "signal")

    def one() -> None:
        assert admission.begin(0, 1, Stopwatch("one"))
        admission.mark_ready(0, admission.lanes[0].begun)
        assert not admission.begin(0, 2, Stopwatch("one"))
        ended.put("no iterations left")

    def two() -> None:
        assert admission.form_batch() == [0]
        assert admission.begin(1, 1, Stopwatch("two"))
        ended.get()

    control.scheduler.run(one=one, two=two)


@given(interleavings)
def test_the_consumer_continues_as_soon_as_a_slow_lane_has_read_a_newer_version(interleaving: Interleaving) -> None:
    control = ScheduledControl(interleaving)
    admission = Admission(control, "consumer", ("slow", "fast"), 1, 4, max_lag=1)
    begun, published, consumed = (Stream(control, "one", "other", "signal") for _ in range(3))

    def slow() -> None:
        assert admission.begin(0, 1, Stopwatch("slow"))
        begun.put("from version 0")
        published.get()
        admission.read(0)
        consumed.get()
        admission.mark_ready(0, admission.lanes[0].begun)

    def fast() -> None:
        begun.get()
        for iteration in (1, 2):
            assert admission.begin(1, iteration, Stopwatch("fast"))
            admission.mark_ready(1, admission.lanes[1].begun)

    def consumer() -> None:
        assert admission.form_batch() == [1]
        admission.publish(1)
        published.put("version 1")
        assert admission.form_batch() == [1]
        consumed.put("before the slow lane")
        admission.publish(2)
        assert admission.form_batch() == [0]

    control.scheduler.run(slow=slow, fast=fast, consumer=consumer)


@given(interleavings, setups(), st.integers(0, 60), st.booleans())
def test_all_lane_replicas_exit_when_the_run_stops_or_one_of_them_fails(
    interleaving: Interleaving, setup: Setup, after: int, fails: bool
) -> None:
    control = ScheduledControl(interleaving)
    model = Model(setup, control, steps_until_failure=after if fails else -1)
    tasks = {name: stoppable(control, function) for name, function in model.tasks().items()}
    if not fails:
        tasks["stopper"] = stop_after(control, after)
    control.scheduler.run(**tasks)


@given(interleavings, st.integers(1, 4), st.integers(0, 4), st.none() | st.integers(0, 20))
def test_all_reduce_combines_the_values_of_each_round(
    interleaving: Interleaving, replicas: int, rounds: int, stop: int | None
) -> None:
    control = ScheduledControl(interleaving)
    names = tuple(f"a[{index}]" for index in range(replicas))
    all_reduce = AllReduce(control, "m", names, tuple)

    def replica(index: int) -> list[Any]:
        return [all_reduce.contribute(index, (index, number)) for number in range(rounds)]

    tasks = {name: stoppable(control, partial(replica, index)) for index, name in enumerate(names)}
    if stop is not None:
        tasks["stopper"] = stop_after(control, stop)
    results = control.scheduler.run(**tasks)
    expected = [tuple((index, number) for index in range(replicas)) for number in range(rounds)]
    assert all(results[name] == expected or (results[name] is None and stop is not None) for name in names)


@dataclass
class Doubling:
    """Replaces a compiled batch: doubles numbers. Checks that batches do not overlap and do not start too early."""

    control: ScheduledControl
    max_size: int
    max_wait: int
    batches_until_failure: int = -1
    """The number of batches after which one fails. Negative means never."""
    executing: bool = False

    def __call__(self, calls: Any) -> list[list[int]]:
        assert not self.executing and 1 <= len(calls) <= self.max_size
        timed_out = self.control.scheduler.now >= calls[0][1][1] + self.max_wait
        assert len(calls) == self.max_size or timed_out or self.control.stopping
        self.executing = True
        self.control.scheduler.switch_point()
        self.executing = False
        if self.batches_until_failure == 0:
            raise Failed
        self.batches_until_failure -= 1
        return [[2 * value] for _, (value, _) in calls]


def batched_callers(
    control: ScheduledControl, doubling: Doubling, callers: int, pauses: list[int]
) -> tuple[Batcher, dict[str, TaskFunction]]:
    """A batcher, and tasks that each make one call after each pause."""
    compute: Any = doubling
    batcher = Batcher(control, compute, doubling.max_size, doubling.max_wait)

    def caller(index: int) -> list[int]:
        stopwatch, results = Stopwatch(f"caller {index}"), []
        for number, pause in enumerate(pauses):
            control.scheduler.now += pause
            results += batcher(0, stopwatch, (100 * index + number, control.scheduler.now))
        assert results == [200 * index + 2 * number for number in range(len(pauses))]
        return results

    return batcher, {f"caller {index}": stoppable(control, partial(caller, index)) for index in range(callers)}


def simulated_clock(control: ScheduledControl) -> Any:
    """Makes the batching module read the scheduler's clock."""
    return patch.object(batching, "time", SimpleNamespace(perf_counter=lambda: control.scheduler.now))


pause_lists = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@given(interleavings, st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), pause_lists)
def test_every_batched_call_gets_its_own_result(
    interleaving: Interleaving, callers: int, max_size: int, max_wait: int, pauses: list[int]
) -> None:
    control = ScheduledControl(interleaving)
    batcher, tasks = batched_callers(control, Doubling(control, max_size, max_wait), callers, pauses)
    with simulated_clock(control):
        results = control.scheduler.run(**tasks)
    assert all(len(result) == len(pauses) for result in results.values())
    assert sum(size * count for size, count in batcher.sizes.items()) == callers * len(pauses)
    assert not batcher.calls and not batcher.executing


@given(interleavings, st.integers(1, 4), st.integers(1, 3))
def test_a_full_batch_starts_without_waiting(interleaving: Interleaving, max_size: int, rounds: int) -> None:
    control = ScheduledControl(interleaving, timeouts=False)
    batcher, tasks = batched_callers(control, Doubling(control, max_size, 1), max_size, [0] * rounds)
    with simulated_clock(control):
        control.scheduler.run(**tasks)
    assert batcher.sizes == {max_size: rounds}


@given(interleavings, st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.integers(0, 3))
def test_all_callers_exit_when_a_batch_fails(
    interleaving: Interleaving, callers: int, max_size: int, max_wait: int, after: int
) -> None:
    control = ScheduledControl(interleaving)
    _, tasks = batched_callers(control, Doubling(control, max_size, max_wait, after), callers, [0, 1, 0])
    with simulated_clock(control):
        control.scheduler.run(**tasks)


@given(interleavings, st.integers(1, 4), st.integers(1, 3), st.integers(0, 12), st.booleans())
def test_all_callers_exit_when_the_run_stops(
    interleaving: Interleaving, callers: int, max_size: int, after: int, timeouts: bool
) -> None:
    control = ScheduledControl(interleaving, timeouts=timeouts)
    _, tasks = batched_callers(control, Doubling(control, max_size, 1), callers, [0, 1, 0])
    tasks["stopper"] = stop_after(control, after)
    with simulated_clock(control):
        control.scheduler.run(**tasks)


@given(
    interleavings,
    st.tuples(up_to_three, st.integers(1, 2)),
    st.integers(1, 7),
    st.booleans(),
    st.none() | st.integers(0, 40),
)
def test_every_report_counts_in_exactly_one_iteration(
    interleaving: Interleaving, replicas: tuple[int, int], times: int, with_lanes: bool, stop: int | None
) -> None:
    control = ScheduledControl(interleaving)
    take, lanes_each = (1, 2) if with_lanes else (None, 1)
    roles = (
        Role("a", ("a",), replicas=replicas[0]),
        Role("b", ("b",), replicas=replicas[1], take=take, lanes_per_replica=lanes_each),
    )
    metrics = MetricsAssembler(control, fake_projection(*roles, lanes=2 * replicas[1] if with_lanes else 0))

    def check_distance() -> None:
        assert all(iteration <= metrics.done + MAX_ITERATIONS_AHEAD for iteration in metrics.pending)

    def report(role: Role, replica: int) -> None:
        stopwatch, output = Stopwatch(f"{role.name}[{replica}]"), "ab".index(role.name)
        for number in range(1, times * role.lanes_per_replica + 1):
            # The first entry counts reports, and the second one identifies them.
            value = np.array([1, 10**replica * number])
            metrics.report(role, replica, number, {output: value}, stopwatch, (number,))

    tasks = {
        f"{role.name}[{index}]": stoppable(control, partial(report, role, index))
        for role in roles
        for index in range(role.replicas)
    }
    raise_if_stopping = partial(raise_stopped, control)
    tasks["follower"] = stoppable(control, lambda: [metrics.wait_for_next(raise_if_stopping) for _ in range(times)])
    if stop is not None:
        tasks["stopper"] = stop_after(control, stop)
    control.scheduler.invariant = check_distance
    assembled = control.scheduler.run(**tasks)["follower"]
    if assembled is not None:
        check_assembled(assembled, roles, times, with_lanes)
    assert assembled is not None or stop is not None


def check_assembled(assembled: list[Any], roles: tuple[Role, ...], times: int, with_lanes: bool) -> None:
    for role in roles:
        count, all_replicas = (
            role.replicas * role.lanes_per_replica,
            sum(10**replica for replica in range(role.replicas)),
        )
        values = [metrics[role.name].tolist() for metrics in assembled]
        assert [each[0] for each in values] == [count] * times
        assert sum(each[1] for each in values) == all_replicas * sum(range(1, times * role.lanes_per_replica + 1))
        if not with_lanes:
            assert [each[1] for each in values] == [all_replicas * number for number in range(1, times + 1)]


@given(interleavings, up_to_three, st.integers(3, 6), st.just({1}) | st.sets(st.integers(1, 6)), st.booleans())
def test_snapshots_are_complete_and_nothing_stays_pending(
    interleaving: Interleaving, count: int, times: int, due: set[int], synchronous: bool
) -> None:
    control = ScheduledControl(interleaving, traced_file=snapshots.__file__)
    replicas: list[ReplicaId] = [("a", index) for index in range(count)]
    collector = Snapshots(frozenset(replicas), synchronous, due.__contains__)
    reports = [Stream(control, f"a[{index}]", "follower", "report", times) for index in range(count)]

    def run_replica(index: int) -> None:
        for iteration in range(1, times + 1):
            collector.offer(replicas[index], iteration, lambda iteration=iteration: {0: iteration})
            reports[index].put(iteration)
        collector.final[replicas[index]] = {0: times}

    def follow() -> dict[int, Any]:
        collected = {}
        for iteration in range(1, times + 1):
            assert [stream.get() for stream in reports] == [iteration] * count
            collected[iteration] = collector.collect(iteration)
        return {iteration: parts for iteration, parts in collected.items() if parts is not None}

    tasks: dict[str, TaskFunction] = {f"a[{index}]": partial(run_replica, index) for index in range(count)}
    collected = control.scheduler.run(follower=follow, **tasks)["follower"]
    assert all(parts.keys() == set(replicas) for parts in collected.values())
    assert collector.pending.keys() <= {collector.requested}
    if synchronous:
        assert collected == {number: dict.fromkeys(replicas, {0: number}) for number in due if number <= times}
