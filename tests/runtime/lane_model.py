"""A model of a training loop with lanes: the computations are trivial, but the synchronisation code is the real one.

A script lists the messages that a lane and the consumer exchange in one iteration of the whole loop. Every participant
executes its own part of the script in that order, as projected programs do. Each message carries the set of versions
that it was computed from, so the test knows the lag of each consumed iteration independently of the code under test.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np

from tests.runtime.scheduler import ScheduledControl
from weft.layout.layout import Role
from weft.runtime.channel import Stopped, Stopwatch, Stream
from weft.runtime.lanes import Admission, PublishedValue
from weft.runtime.metrics_assembler import MetricsAssembler
from weft.runtime.schedule import ConsumerSchedule, LaneCursor, LaneSchedule, LaneStream

TaskFunction = Callable[[], Any]
Step = tuple[str, int, int]


class Failed(Exception):
    """An error in a role's own code."""


@dataclass(frozen=True)
class Setup:
    """A loop with lanes: the layout, and the script of messages."""

    lanes: int
    take: int
    times: int
    """Iterations of the whole loop: the average number of iterations per lane."""
    max_lag: int | None
    reads: tuple[bool, ...]
    """For each replica that belongs to a lane: whether it reads the register."""
    script: tuple[Step, ...]
    """("to", a, _): replica `a` of a lane sends to the consumer; ("from", a, _): it receives from the consumer;
    ("in", a, b): replica `a` sends to replica `b` of the same lane."""
    capacity: int = 2
    reports: bool = False
    """Whether metrics are reported and assembled too."""


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    count = draw(st.integers(1, 5))
    members = draw(st.integers(1, 3 if count < 4 else 2))
    member, either = st.integers(0, members - 1), st.booleans()
    within_lane = [("in", a, b) for a in range(members) for b in range(members) if a != b]
    with_consumer = st.tuples(st.sampled_from(("to", "from")), member, st.just(-1))
    step = with_consumer | st.sampled_from(within_lane) if within_lane else with_consumer
    script = draw(st.lists(step, max_size=3))
    # In most setups every replica sends something to the consumer.
    script += [("to", member, -1) for member in range(members) if draw(either) or draw(either)]
    reads = tuple(draw(either) or draw(either) for _ in range(members))
    return Setup(
        count,
        draw(st.sampled_from([1, *(take for take in range(1, count + 1) if count % take == 0)])),
        draw(st.integers(1, 3 if count * members < 6 else 2)),
        draw(st.sampled_from((None, 0, 1, 1, 2, 3))),
        reads if any(reads) else (True, *reads[1:]),
        tuple(draw(st.permutations(script))),
        draw(st.integers(1, 3)),
        draw(either),
    )


class FakeDevices:
    """Devices that hold Python integers."""

    def transfer(self, value: Any) -> Any:
        return dict(value)

    def first_shard(self, value: Any) -> Any:
        return value


def fake_executor(name: str = "consumer", publishes: bool = False) -> Any:
    program = SimpleNamespace(register_writes=frozenset({0} if publishes else ()))
    waits = {"begin": Stopwatch(name)}
    return SimpleNamespace(program=program, devices=FakeDevices(), chosen_lanes=(0,), waits=waits)


@dataclass
class Model:
    """Replicas that follow the script under real schedules, and the facts that the test records about them."""

    setup: Setup
    control: ScheduledControl
    ready: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By lane: the last iteration that may count as ready."""
    read: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """By lane and iteration: the versions that its replicas read."""
    received: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """By lane and iteration: the versions behind the messages that the consumer received."""
    batches: list[list[int]] = field(default_factory=list)
    """The lanes of each batch."""
    batch_of: dict[tuple[int, int], int] = field(default_factory=dict)
    """By lane and iteration: the batch that consumed it."""
    steps_until_failure: int = -1
    """The number of script steps after which a replica fails. Negative means never."""

    def __post_init__(self) -> None:
        setup, names = self.setup, tuple(f"lane {lane}" for lane in range(self.setup.lanes))
        iterations = setup.times * setup.lanes
        self.admission = Admission(
            self.control, "consumer", names, setup.take, iterations, setup.max_lag, PublishedValue({0: 0})
        )
        self.streams = {
            (position, lane): Stream(self.control, *self.ends(step, lane), f"message {position}", setup.capacity)
            for position, step in enumerate(setup.script)
            for lane in range(setup.lanes)
        }
        self.control.scheduler.invariant = self.check_invariant
        self.roles = {
            "lanes": Role("lanes", ("act",), replicas=setup.lanes * len(setup.reads)),
            "consumer": Role("consumer", ("learn",), take=setup.take, lanes_per_replica=setup.lanes),
        }
        projection = fake_projection(*self.roles.values(), lanes=setup.lanes)
        self.metrics = MetricsAssembler(self.control, projection) if setup.reports else None

    def ends(self, step: Step, lane: int) -> tuple[str, str]:
        """The names of the sender and the receiver of a step."""
        kind, first, second = step
        member, other = f"lane {lane}.{first}", "consumer" if kind != "in" else f"lane {lane}.{second}"
        return (other, member) if kind == "from" else (member, other)

    def tasks(self) -> dict[str, TaskFunction]:
        members = range(len(self.setup.reads))
        tasks: dict[str, TaskFunction] = {
            f"lane {lane}.{member}": partial(self.run_lane_replica, lane, member)
            for lane in range(self.setup.lanes)
            for member in members
        }
        tasks["consumer"] = self.run_consumer
        if self.metrics is not None:
            tasks["follower"] = self.follow_metrics
        return tasks

    def run_lane_replica(self, lane: int, member: int) -> int:
        """The main loop of a replica that belongs to a lane. Returns its number of iterations."""
        name, reads, iteration, state = f"lane {lane}.{member}", self.setup.reads[member], 0, {0: 0}
        cursor = LaneCursor(self.admission, lane)
        schedule = LaneSchedule(cursor, fake_executor(name), frozenset({0} if reads else ()))
        version_before = self.admission.version
        while schedule.begin(state):
            iteration += 1
            assert self.admission.lanes[lane].consumed >= iteration - 1, "began before its last iteration was consumed"
            versions = {state[0]} if reads else set()
            assert min(versions, default=version_before) >= version_before, "read an outdated version"
            self.read[lane, iteration] |= versions
            for position, step in enumerate(self.setup.script):
                self.execute((position, lane, iteration), member, step, versions)
            self.ready[lane] = max(self.ready[lane], iteration)
            schedule.end({})
            self.report("lanes", lane * len(self.setup.reads) + member, iteration)
            version_before = self.admission.version
        return iteration

    def execute(self, message: tuple[int, int, int], member: int, step: Step, versions: set[int]) -> None:
        """Executes a lane replica's part of one step. A message carries the versions that it was computed from."""
        (kind, first, second), (position, lane, iteration) = step, message
        if self.steps_until_failure == 0:
            raise Failed
        self.steps_until_failure -= 1
        if member != first and (kind != "in" or member != second):
            return
        stream = self.streams[position, lane]
        if kind != "in":
            stream = LaneStream(stream, LaneCursor(self.admission, lane, iteration))
            self.ready[lane] = max(self.ready[lane], iteration)
        if kind == "to" or (kind == "in" and member == first):
            stream.put((message, frozenset(versions)))
        else:
            versions |= receive(stream, message)

    def run_consumer(self) -> None:
        """The main loop of the consumer."""
        executor = fake_executor(publishes=True)
        schedule = ConsumerSchedule(self.admission, self.setup.times * self.setup.lanes // self.setup.take, executor)
        counts = Counter[int]()
        while schedule.begin({}):
            chosen = list(executor.chosen_lanes)
            assert len(set(chosen)) == self.setup.take
            counts.update(chosen)
            for lane in chosen:
                self.batch_of[lane, counts[lane]] = len(self.batches)
                assert self.ready[lane] >= counts[lane], "consumed before it was ready"
            self.batches.append(chosen)
            for position, (kind, *_) in enumerate(self.setup.script):
                for lane in chosen if kind != "in" else ():
                    stream, message = self.streams[position, lane], (position, lane, counts[lane])
                    if kind == "to":
                        self.received[lane, counts[lane]] |= receive(stream, message)
                    else:
                        stream.put((message, frozenset()))
            schedule.end({0: len(self.batches)})
            self.report("consumer", 0, len(self.batches))

    def report(self, role: str, replica: int, number: int) -> None:
        if self.metrics is not None:
            lags = self.admission.batch_lags if role == "consumer" else []
            stopwatch = Stopwatch(f"{role}[{replica}]")
            self.metrics.report(self.roles[role], replica, number, METRICS[role], stopwatch, lags)

    def follow_metrics(self) -> list[Any]:
        assert self.metrics is not None
        raise_if_stopping = partial(raise_stopped, self.control)
        return [self.metrics.wait_for_next(raise_if_stopping) for _ in range(self.setup.times)]

    def check_invariant(self) -> None:
        for lane in self.admission.lanes:
            assert lane.consumed <= lane.begun <= lane.consumed + 1
        for stream in self.streams.values():
            assert len(stream.items) <= stream.capacity

    def check_finished(self, results: dict[str, Any]) -> None:
        """Checks a run that was neither stopped nor failed."""
        setup, iterations = self.setup, self.setup.times * self.setup.lanes
        assert [len(chosen) for chosen in self.batches] == [setup.take] * (iterations // setup.take)
        counts = Counter(lane for chosen in self.batches for lane in chosen)
        assert counts.total() == iterations and set(counts) == set(range(setup.lanes))
        lane_results = [(name, result) for name, result in results.items() if name.startswith("lane")]
        assert all(result == counts[int(name.split(".")[0][5:])] for name, result in lane_results)
        assert not any(stream.items for stream in self.streams.values())
        self.check_lags()
        if self.metrics is not None:
            members, batches = setup.lanes * len(setup.reads), setup.lanes // setup.take
            metrics = results["follower"]
            assert [(each["lanes"], each["consumer"]) for each in metrics] == [(members, batches)] * setup.times
            assert sum(each["lag"].total[0] for each in metrics) == sum(self.admission.lags.elements())

    def check_lags(self) -> None:
        setup, counted = self.setup, self.admission.lags
        lags = {key: self.batch_of[key] - min(versions) for key, versions in self.received.items() if versions}
        if setup.max_lag is not None:
            assert max(lags.values(), default=0) <= setup.max_lag
            assert min(counted) >= 0 and max(counted) <= setup.max_lag
        if setup.max_lag == 0 and setup.take == setup.lanes:
            assert all(versions <= {iteration - 1} for (_, iteration), versions in self.received.items())
        assert counted.total() == len(self.batch_of)
        if len(setup.reads) == 1:
            assert counted == Counter(batch - min(self.read[key]) for key, batch in self.batch_of.items())


def raise_stopped(control: ScheduledControl) -> None:
    if control.stopping:
        raise Stopped


def receive(stream: Stream | LaneStream, message: Any) -> frozenset[int]:
    """Receives the next message, which must be `message`. Returns the versions that it carries."""
    received, versions = stream.get()
    assert received == message
    return versions


# One metric per role: the number of its reports.
METRICS: dict[str, dict[int, Any]] = {"consumer": {0: np.int32(1)}, "lanes": {1: np.int32(1)}}


def fake_projection(*roles: Role, lanes: int = 0) -> Any:
    """A projection of roles with one metric each and no state."""
    tree = jax.tree.structure({role.name: 0 for role in roles})
    names = sorted(role.name for role in roles)
    trace = SimpleNamespace(state_tree=jax.tree.structure({}), metric_tree=tree)
    return SimpleNamespace(layout=SimpleNamespace(roles=roles, lanes=lanes), trace=trace, homes=names)
