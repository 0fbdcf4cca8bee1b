"""A model of a training loop with lanes: small computations, but the code that synchronises them is the real one.

A script says what a lane and the taker exchange in one iteration of the whole loop, and everybody does its own part of
it in that order, as projected programs do. A message carries the versions that are behind it, so that the lag of what
the taker gets is known to the test by itself.
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

from tests.runtime.scheduler import Controlled
from weft.layout.layout import Role
from weft.runtime.channel import Stopped, Stopwatch, Stream
from weft.runtime.lanes import Admission, PublishedValue
from weft.runtime.metrics_assembler import MetricsAssembler
from weft.runtime.schedule import ConsumerSchedule, LaneCursor, LaneSchedule, LaneStream

Work = Callable[[], Any]
Step = tuple[str, int, int]


class Failed(Exception):
    """A role's own error."""


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
        draw(st.integers(1, 3)),
        draw(either),
    )


class Anywhere:
    """Devices that hold integers."""

    def bring(self, value: Any) -> Any:
        return dict(value)

    def one(self, value: Any) -> Any:
        return value


def fake_strand(name: str = "taker", writes: bool = False) -> Any:
    program = SimpleNamespace(register_writes=frozenset({0} if writes else ()))
    return SimpleNamespace(program=program, devices=Anywhere(), chosen=(0,), clocks={"begin": Stopwatch(name)})


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
        self.lanes = Admission(self.wait, "taker", names, setup.take, work, setup.max_lag, PublishedValue({0: 0}))
        self.streams = {
            (number, lane): Stream(self.wait, *self.parties(step, lane), f"message {number}", setup.capacity)
            for number, step in enumerate(setup.script)
            for lane in range(setup.lanes)
        }
        self.wait.scheduler.invariant = self.check_now
        self.roles = {
            "lanes": Role("lanes", ("act",), replicas=setup.lanes * len(setup.reads)),
            "taker": Role("taker", ("learn",), take=setup.take, lanes_per_replica=setup.lanes),
        }
        projection = fake_projection(*self.roles.values(), lanes=setup.lanes)
        self.ledger = MetricsAssembler(self.wait, projection) if setup.reports else None

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
        pace = LaneSchedule(LaneCursor(self.lanes, lane), fake_strand(name), frozenset({0} if reads else ()))
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
            stream = LaneStream(stream, LaneCursor(self.lanes, lane, number))
            self.turned[lane] = max(self.turned[lane], number)
        if kind == "to" or (kind == "in" and member == one):
            stream.put((message, frozenset(versions)))
        else:
            versions |= received(stream, message)

    def live_taking(self) -> None:
        strand = fake_strand(writes=True)
        pace = ConsumerSchedule(self.lanes, self.setup.times * self.setup.lanes // self.setup.take, strand)
        counts = Counter[int]()
        while pace.begin({}):
            chosen = list(strand.chosen)
            assert len(set(chosen)) == self.setup.take
            counts.update(chosen)
            for lane in chosen:
                self.taken[lane, counts[lane]] = len(self.batches)
                assert self.turned[lane] >= counts[lane], "taken before it was ready"
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
            self.ledger.report(self.roles[role], replica, number, METRICS[role], Stopwatch(f"{role}[{replica}]"), lags)

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


def received(stream: Stream | LaneStream, message: Any) -> frozenset[int]:
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
    return SimpleNamespace(layout=SimpleNamespace(roles=roles, lanes=lanes), trace=whole, homes=names)
