"""Under any schedule nothing is lost, doubled or late, and nobody is left waiting: see `scheduler`.

The computations are small, but the code that synchronises them is the real one. `make schedules` tries many more.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from tests.runtime.scheduler import Controlled, Deadlock, Schedule
from weft.layout.layout import Role
from weft.runtime import coalesce, snapshots
from weft.runtime import lanes as lanes_module
from weft.runtime.channel import Clock, Meeting, Stopped, Stream
from weft.runtime.coalesce import Together
from weft.runtime.lanes import Lanes
from weft.runtime.ledger import AHEAD, Ledger
from weft.runtime.pace import Arriving, InLane, Taking
from weft.runtime.snapshots import Here, Snapshots

Work = Callable[[], Any]
schedules = Schedule.any()
few = st.integers(1, 3)


class Failed(Exception):
    """A role's own error."""


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
        wait = Controlled(Schedule(seed))
        stream = Stream(wait, "one", "two", "x")
        wait.scheduler.run(one=partial(notify_nobody, stream), two=stream.get)

    with pytest.raises(Deadlock, match=r"two waits for x from one \(which is there, but nobody said so\)"):
        for seed in range(20):
            exchange(seed)


def test_the_scheduler_finds_locks_that_are_taken_crosswise() -> None:
    def cross(seed: int) -> None:
        wait = Controlled(Schedule(seed))
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
    schedule: Schedule, chains: list[list[int]], count: int
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
    schedule: Schedule, capacity: int, senders: list[int], receivers: int
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
    schedule: Schedule, capacity: int, after: int, pairs: int
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


Step = tuple[str, int, int]


@dataclass(frozen=True)
class Setup:
    """A loop with lanes: what a lane and the taker exchange in one iteration, in the order of the whole loop."""

    lanes: int
    take: int
    times: int
    max_lag: int | None
    reads: tuple[bool, ...]
    """For each strand of a lane: whether it reads the register."""
    script: tuple[Step, ...]
    """("to", a, _) and ("from", a, _): between strand `a` and the taker; ("in", a, b): from one strand to another."""
    capacity: int = 2
    reports: bool = False


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    count = draw(st.integers(1, 5))
    members = draw(st.integers(1, 3 if count < 4 else 2))
    someone, either = st.integers(0, members - 1), st.booleans()
    within = [("in", a, b) for a in range(members) for b in range(members) if a != b]
    turning = st.tuples(st.sampled_from(("to", "from")), someone, st.just(-1))
    script = draw(st.lists(turning | st.sampled_from(within) if within else turning, max_size=3))
    # Nearly always every strand has something to tell.
    script += [("to", member, -1) for member in range(members) if draw(either) or draw(either)]
    reads = tuple(draw(either) or draw(either) for _ in range(members))
    return Setup(
        count,
        draw(st.sampled_from([1, *(take for take in range(1, count + 1) if count % take == 0)])),
        draw(st.integers(1, 3 if count * members < 6 else 2)),
        draw(st.sampled_from((None, 0, 1, 1, 2, 3))),
        reads if any(reads) else (True, *reads[1:]),
        tuple(draw(st.permutations(script))),
        draw(few),
        draw(either),
    )


class Place:
    """Devices that hold integers."""

    def bring(self, value: Any) -> Any:
        return dict(value)

    def one(self, value: Any) -> Any:
        return value


def fake_strand(reads: bool = False, writes: bool = False) -> Any:
    program = SimpleNamespace(reads=frozenset({0} if reads else ()), writes=frozenset({0} if writes else ()))
    return SimpleNamespace(program=program, devices=Place(), chosen=(0,))


@dataclass
class Model:
    """Strands that follow the script of a setup under real paces, and what the test knows of them by itself."""

    setup: Setup
    wait: Controlled
    turned: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By lane: the iteration in which it last turned to the taker."""
    read: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """By lane and iteration: the versions that its strands read."""
    came: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """By lane and iteration: the versions behind what the taker got from it."""
    batches: list[list[int]] = field(default_factory=list)
    taken: dict[tuple[int, int], int] = field(default_factory=dict)
    """By lane and iteration: the batch that took it."""
    acts_left: int = -1
    """How many steps are done before one fails, if any does."""

    def __post_init__(self) -> None:
        setup, names = self.setup, tuple(f"lane {lane}" for lane in range(self.setup.lanes))
        work = setup.times * setup.lanes
        self.lanes = Lanes(self.wait, "taker", names, setup.take, work, setup.max_lag, value={0: 0})
        self.streams = {
            (number, lane): Stream(self.wait, *self.parties(step, lane), f"message {number}", setup.capacity)
            for number, step in enumerate(setup.script)
            for lane in range(setup.lanes)
        }
        self.wait.scheduler.invariant = self.check_now
        self.roles = {
            "lanes": Role("lanes", ("act",), replicas=setup.lanes * len(setup.reads)),
            "taker": Role("taker", ("learn",), take=setup.take, of=setup.lanes),
        }
        projection = fake_projection(*self.roles.values(), lanes=setup.lanes)
        self.ledger = Ledger(self.wait, projection) if setup.reports else None

    def parties(self, step: Step, lane: int) -> tuple[str, str]:
        kind, one, other = step
        first, second = f"lane {lane}.{one}", "taker" if kind != "in" else f"lane {lane}.{other}"
        return (second, first) if kind == "from" else (first, second)

    def tasks(self) -> dict[str, Work]:
        members = range(len(self.setup.reads))
        tasks: dict[str, Work] = {
            f"lane {lane}.{member}": partial(self.live, lane, member)
            for lane in range(self.setup.lanes)
            for member in members
        }
        tasks["taker"] = self.live_taking
        if self.ledger is not None:
            tasks["follower"] = self.follow
        return tasks

    def live(self, lane: int, member: int) -> int:
        name, reads, number, state = f"lane {lane}.{member}", self.setup.reads[member], 0, {0: 0}
        pace = InLane(self.lanes, lane, fake_strand(reads), Clock(name))
        published = self.lanes.version
        while pace.begin(state):
            number += 1
            assert self.lanes.lanes[lane].taken >= number - 1, "a second piece of work before the first was taken"
            versions = {state[0]} if reads else set()
            assert min(versions, default=published) >= published, "an older version than there was"
            self.read[lane, number] |= versions
            for place, step in enumerate(self.setup.script):
                self.act((place, lane, number), member, step, versions)
            self.turned[lane] = max(self.turned[lane], number)
            pace.end({})
            self.report("lanes", lane * len(self.setup.reads) + member, number)
            published = self.lanes.version
        return number

    def act(self, message: tuple[int, int, int], member: int, step: Step, versions: set[int]) -> None:
        """A strand's part of one step. A message carries the versions that are behind it."""
        (kind, one, other), (place, lane, number) = step, message
        if self.acts_left == 0:
            raise Failed
        self.acts_left -= 1
        if member != one and (kind != "in" or member != other):
            return
        stream = self.streams[place, lane]
        if kind != "in":
            stream = Arriving(stream, self.lanes, lane)
            self.turned[lane] = max(self.turned[lane], number)
        if kind == "to" or (kind == "in" and member == one):
            stream.put((message, frozenset(versions)))
        else:
            versions |= received(stream, message)

    def live_taking(self) -> None:
        strand = fake_strand(writes=True)
        pace = Taking(self.lanes, self.setup.times * self.setup.lanes // self.setup.take, strand)
        counts = Counter[int]()
        while pace.begin({}):
            chosen = list(strand.chosen)
            assert len(set(chosen)) == self.setup.take
            counts.update(chosen)
            for lane in chosen:
                self.taken[lane, counts[lane]] = len(self.batches)
                assert self.turned[lane] >= counts[lane] or len(self.setup.reads) > 1, "taken before it was ready"
            self.batches.append(chosen)
            for place, (kind, *_) in enumerate(self.setup.script):
                for lane in chosen if kind != "in" else ():
                    stream, message = self.streams[place, lane], (place, lane, counts[lane])
                    if kind == "to":
                        self.came[lane, counts[lane]] |= received(stream, message)
                    else:
                        stream.put((message, frozenset()))
            pace.end({0: len(self.batches)})
            self.report("taker", 0, len(self.batches))

    def report(self, role: str, replica: int, number: int) -> None:
        if self.ledger is not None:
            lags = self.lanes.latest if role == "taker" else []
            self.ledger.report(self.roles[role], replica, number, METRICS[role], Clock(f"{role}[{replica}]"), lags)

    def follow(self) -> list[Any]:
        assert self.ledger is not None
        return [self.ledger.next(partial(refuse_stopping, self.wait)) for _ in range(self.setup.times)]

    def check_now(self) -> None:
        for lane in self.lanes.lanes:
            assert lane.taken <= lane.begun <= lane.taken + 1
        for stream in self.streams.values():
            assert len(stream.items) <= stream.capacity

    def check(self, done: dict[str, Any]) -> None:
        """After a run that came to its end."""
        setup, work = self.setup, self.setup.times * self.setup.lanes
        assert [len(chosen) for chosen in self.batches] == [setup.take] * (work // setup.take)
        counts = Counter(lane for chosen in self.batches for lane in chosen)
        assert counts.total() == work and set(counts) == set(range(setup.lanes))
        assert all(done[name] == counts[int(name.split(".")[0][5:])] for name in done if name.startswith("lane"))
        assert not any(stream.items for stream in self.streams.values())
        self.check_lags()
        if self.ledger is not None:
            members, batches = setup.lanes * len(setup.reads), setup.lanes // setup.take
            assert [(row["lanes"], row["taker"]) for row in done["follower"]] == [(members, batches)] * setup.times
            assert sum(row["lag"].total[0] for row in done["follower"]) == sum(self.lanes.lags.elements())

    def check_lags(self) -> None:
        setup = self.setup
        late = {work: self.taken[work] - min(versions) for work, versions in self.came.items() if versions}
        if setup.max_lag is not None:
            assert max(late.values(), default=0) <= setup.max_lag
            assert min(self.lanes.lags) >= 0 and max(self.lanes.lags) <= setup.max_lag
        if setup.max_lag == 0 and setup.take == setup.lanes:
            assert all(versions <= {number - 1} for (_, number), versions in self.came.items())
        assert self.lanes.lags.total() == len(self.taken)
        if len(setup.reads) == 1:
            assert self.lanes.lags == Counter(batch - min(self.read[work]) for work, batch in self.taken.items())


def refuse_stopping(wait: Controlled) -> None:
    if wait.stopping:
        raise Stopped


def received(stream: Stream | Arriving, message: Any) -> frozenset[int]:
    """The versions behind the next message, which must be this one."""
    got, versions = stream.get()
    assert got == message
    return versions


# Each counts the reports of one role.
METRICS: dict[str, dict[int, Any]] = {"lanes": {0: np.int32(1)}, "taker": {1: np.int32(1)}}


def fake_projection(*roles: Role, lanes: int = 0) -> Any:
    """Roles with one metric each and no state."""
    tree = jax.tree.structure({role.name: 0 for role in roles})
    names = sorted(role.name for role in roles)
    whole = SimpleNamespace(state_tree=jax.tree.structure({}), metric_tree=tree)
    return SimpleNamespace(layout=SimpleNamespace(roles=roles, lanes=lanes), whole=whole, homes=names)


@given(schedules, setups())
def test_lanes_are_taken_once_each_in_time_and_never_lock_up(schedule: Schedule, setup: Setup) -> None:
    model = Model(setup, Controlled(schedule))
    model.check(model.wait.scheduler.run(**model.tasks()))


@given(schedules, setups().filter(lambda setup: setup.lanes < 4 and setup.times < 3))
def test_lanes_hold_what_they_promise_line_by_line(schedule: Schedule, setup: Setup) -> None:
    model = Model(replace(setup, reports=False), Controlled(schedule, fine=lanes_module.__file__))
    model.check(model.wait.scheduler.run(**model.tasks()))


@given(schedules)
def test_a_lane_begins_again_as_soon_as_it_is_taken(schedule: Schedule) -> None:
    wait = Controlled(schedule)
    lanes, begun = Lanes(wait, "taker", ("lane",), 1, 2), Stream(wait, "lane", "taker", "news")

    def lane() -> None:
        assert lanes.begin(0, 1, Clock("lane"))
        lanes.arrive(0)
        assert lanes.begin(0, 2, Clock("lane"))
        begun.put("again")

    def taker() -> None:
        assert lanes.form() == [0]
        begun.get()

    wait.scheduler.run(lane=lane, taker=taker)


@given(schedules)
def test_a_lane_knows_as_soon_as_there_is_no_more_work(schedule: Schedule) -> None:
    wait = Controlled(schedule)
    lanes, ended = Lanes(wait, "taker", ("one", "two"), 1, 2), Stream(wait, "one", "two", "news")

    def one() -> None:
        assert lanes.begin(0, 1, Clock("one"))
        lanes.arrive(0)
        assert not lanes.begin(0, 2, Clock("one"))
        ended.put("no more")

    def two() -> None:
        assert lanes.form() == [0]
        assert lanes.begin(1, 1, Clock("two"))
        ended.get()

    wait.scheduler.run(one=one, two=two)


@given(schedules)
def test_a_taker_goes_on_as_soon_as_slow_work_turns_out_to_be_younger(schedule: Schedule) -> None:
    wait = Controlled(schedule)
    lanes = Lanes(wait, "taker", ("slow", "fast"), 1, 4, max_lag=1)
    begun, published, taken = (Stream(wait, "one", "other", "news") for _ in range(3))

    def slow() -> None:
        assert lanes.begin(0, 1, Clock("slow"))
        begun.put("from version 0")
        published.get()
        lanes.read(0)
        taken.get()
        lanes.arrive(0)

    def fast() -> None:
        begun.get()
        for number in (1, 2):
            assert lanes.begin(1, number, Clock("fast"))
            lanes.arrive(1)

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
    schedule: Schedule, setup: Setup, after: int, fails: bool
) -> None:
    wait = Controlled(schedule)
    model = Model(setup, wait, acts_left=after if fails else -1)
    tasks = {name: stoppable(wait, work) for name, work in model.tasks().items()}
    if not fails:
        tasks["stopper"] = stopping(wait, after)
    wait.scheduler.run(**tasks)


@given(schedules, st.integers(1, 4), st.integers(0, 4), st.none() | st.integers(0, 20))
def test_meetings_merge_what_was_brought_in_each_round(
    schedule: Schedule, replicas: int, rounds: int, stop: int | None
) -> None:
    wait = Controlled(schedule)
    names = tuple(f"a[{index}]" for index in range(replicas))
    meeting = Meeting(wait, "m", names, tuple)

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


def calling(wait: Controlled, doubling: Doubling, callers: int, pauses: list[int]) -> tuple[Together, dict[str, Work]]:
    """Callers that each call once after each of some pauses."""
    run: Any = doubling
    together = Together(wait, run, doubling.most, doubling.seconds)

    def caller(index: int) -> list[int]:
        clock, got = Clock(f"caller {index}"), []
        for number, pause in enumerate(pauses):
            wait.scheduler.now += pause
            got += together(0, clock, (100 * index + number, wait.scheduler.now))
        assert got == [200 * index + 2 * number for number in range(len(pauses))]
        return got

    return together, {f"caller {index}": stoppable(wait, partial(caller, index)) for index in range(callers)}


def under_its_time(wait: Controlled) -> Any:
    return patch.object(coalesce, "time", SimpleNamespace(perf_counter=lambda: wait.scheduler.now))


pauses_between = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@given(schedules, st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), pauses_between)
def test_calls_made_as_one_give_everybody_its_own_result(
    schedule: Schedule, callers: int, most: int, seconds: int, pauses: list[int]
) -> None:
    wait = Controlled(schedule)
    together, tasks = calling(wait, Doubling(wait, most, seconds), callers, pauses)
    with under_its_time(wait):
        done = wait.scheduler.run(**tasks)
    assert all(len(got) == len(pauses) for got in done.values())
    assert sum(size * count for size, count in together.sizes.items()) == callers * len(pauses)
    assert not together.calls and not together.busy


@given(schedules, st.integers(1, 4), st.integers(1, 3))
def test_a_full_batch_does_not_wait_for_its_time(schedule: Schedule, most: int, rounds: int) -> None:
    wait = Controlled(schedule, timeouts=False)
    together, tasks = calling(wait, Doubling(wait, most, 1), most, [0] * rounds)
    with under_its_time(wait):
        wait.scheduler.run(**tasks)
    assert together.sizes == {most: rounds}


@given(schedules, st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.integers(0, 12), st.booleans())
def test_nobody_is_left_in_a_batch_when_the_run_stops_or_fails(
    schedule: Schedule, callers: int, most: int, seconds: int, after: int, fails: bool
) -> None:
    wait = Controlled(schedule)
    doubling = Doubling(wait, most, seconds, after % 4 if fails else -1)
    _, tasks = calling(wait, doubling, callers, [0, 1, 0])
    if not fails:
        tasks["stopper"] = stopping(wait, after)
    with under_its_time(wait):
        wait.scheduler.run(**tasks)


@given(schedules, st.tuples(few, st.integers(1, 2)), st.integers(1, 7), st.booleans(), st.none() | st.integers(0, 40))
def test_a_ledger_puts_every_report_into_one_row(
    schedule: Schedule, replicas: tuple[int, int], times: int, in_lanes: bool, stop: int | None
) -> None:
    wait = Controlled(schedule)
    roles = (
        Role("a", ("a",), replicas=replicas[0]),
        Role("b", ("b",), replicas=replicas[1], take=1 if in_lanes else None, of=2 if in_lanes else 1),
    )
    ledger = Ledger(wait, fake_projection(*roles, lanes=2 * replicas[1] if in_lanes else 0))

    def bounded() -> None:
        assert all(report[0] <= ledger.done + AHEAD for report in ledger.inbox)

    def report(role: Role, replica: int) -> None:
        clock, output = Clock(f"{role.name}[{replica}]"), "ab".index(role.name)
        for number in range(1, times * role.of + 1):
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
        count, all_replicas = role.replicas * role.of, sum(10**replica for replica in range(role.replicas))
        found = [row[role.name].tolist() for row in rows]
        assert [each[0] for each in found] == [count] * times
        assert sum(each[1] for each in found) == all_replicas * sum(range(1, times * role.of + 1))
        if not in_lanes:
            assert [each[1] for each in found] == [all_replicas * number for number in range(1, times + 1)]


@given(schedules, few, st.integers(1, 5), st.sets(st.integers(1, 6)), st.booleans())
def test_snapshots_are_complete_and_leave_nothing_behind(
    schedule: Schedule, strands: int, times: int, due: set[int], in_step: bool
) -> None:
    wait = Controlled(schedule, fine=snapshots.__file__)
    here: list[Here] = [("a", index) for index in range(strands)]
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
