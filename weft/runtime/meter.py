"""The meter of a run: it reads what streams, lanes and strands count as they go, now and then and from outside.

Whoever works only adds to counters and starts and stops clocks of its own, which costs next to nothing; a reading is
the difference between two looks at them. A strand's time is its life, from start to end: so a lane that is out of work
does not count as waiting. What of it is not waiting and not sending is computing, host code included. Work that an
accelerator was handed counts where its result is first waited for, which may be in another role.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.layout.layout import Layout
from weft.report.system import Edge, Lag, Share, System
from weft.runtime.batching import Batcher
from weft.runtime.channel import AllReduce, Stream
from weft.runtime.executor import Executor
from weft.runtime.lanes import Admission

EdgeKey = tuple[str, str, str]
"""An edge: the roles that it is from and to, and its kind."""

# Who gets the reports of all roles: not a role itself.
RUN = "run"


@dataclass(frozen=True)
class MeterSources:
    """What counts in one run."""

    strands: Sequence[Executor]
    streams: Sequence[Stream] = ()
    meetings: Sequence[AllReduce] = ()
    lanes: Sequence[Admission] = ()
    together: Mapping[Any, Batcher] = field(default_factory=dict)
    """By compiled run."""
    layout: Layout | None = None


@dataclass(frozen=True)
class EdgeCounts:
    """What one stream, lane or clock has counted, as a part of its edge."""

    messages: int = 0
    bytes: int = 0
    sender: float = 0.0
    """Seconds of waiting."""
    receiver: float = 0.0
    depth: int = 0
    most: int = 0


@dataclass
class CounterTotals:
    """Everything counted up to a moment: sums, so that what happened between two moments is their difference."""

    sums: defaultdict[Any, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of (role, "life") and (role, "sending"); what flowed by (way, name)."""
    lags: Counter[int] = field(default_factory=Counter)
    batches: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By role and size."""
    depths: Counter[EdgeKey] = field(default_factory=Counter)
    most: Counter[EdgeKey] = field(default_factory=Counter)

    def after(self, earlier: "CounterTotals") -> "CounterTotals":
        """What happened since. Counters are read while they move, but nothing is less than nothing."""
        sums = {key: max(0.0, number - earlier.sums.get(key, 0.0)) for key, number in self.sums.items()}
        lags, batches = self.lags - earlier.lags, self.batches - earlier.batches
        return CounterTotals(defaultdict(float, sums), lags, batches, self.depths, self.most)


@dataclass
class Meter:
    """Reads the counters of the runs that it is told to follow, one after the other."""

    parts: MeterSources | None = None
    before: CounterTotals = field(default_factory=CounterTotals)
    """What earlier runs have come to."""

    def __post_init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.counted, self.most = CounterTotals(), Counter[EdgeKey]()

    def follow(self, parts: MeterSources) -> None:
        """Begin to read other counters, in addition to what has been counted."""
        if self.parts is None:
            self.began = self.last = time.perf_counter()
        else:
            self.before = self.count(time.perf_counter())
        self.parts = parts

    @property
    def trivial(self) -> bool:
        """Whether a single strand does everything: it waits for nobody."""
        return self.parts is None or len(self.parts.strands) == 1

    def read(self) -> tuple[System, System]:
        """What happened since the last reading, and what happened in all."""
        now = time.perf_counter()
        counts = self.count(now)
        self.most |= counts.most
        recent = describe(counts.after(self.counted), now - self.last)
        total = describe(
            CounterTotals(counts.sums, counts.lags, counts.batches, counts.depths, self.most), now - self.began
        )
        self.counted, self.last = counts, now
        return recent, total

    def count(self, now: float) -> CounterTotals:
        """All counters, added up by role and by edge."""
        counts = CounterTotals(defaultdict(float, self.before.sums), +self.before.lags, +self.before.batches)
        if self.parts is None:
            return counts
        for strand in self.parts.strands:
            counts.sums[strand.program.role, "life"] += strand.life.read(now)
            counts.sums[strand.program.role, "sending"] += strand.sending.read(now)
        for way, flow in flows(self.parts, now):
            for name in ("messages", "bytes", "sender", "receiver"):
                counts.sums[way, name] += getattr(flow, name)
            counts.depths[way] += flow.depth
            counts.most[way] += flow.most
        for lanes in self.parts.lanes:
            with lanes.condition:
                counts.lags.update(lanes.lags if lanes.newest.value else ())
        for role, together in coalescing(self.parts):
            counts.batches.update({(role, size): number for size, number in together.sizes.copy().items()})
        return counts


def flows(parts: MeterSources, now: float) -> Iterator[tuple[EdgeKey, EdgeCounts]]:
    """What everything has counted, with the edge that it belongs to."""
    for stream in parts.streams:
        yield (role_of(stream.source), role_of(stream.dest), "stream"), stream_flow(stream, now)
    for meeting in parts.meetings:
        for name, clock in zip(meeting.names, meeting.clocks, strict=True):
            yield (role_of(name), role_of(name), "merge"), EdgeCounts(receiver=clock.read(now))
    for lanes in parts.lanes:
        yield (role_of(lanes.names[0]), role_of(lanes.taker), "lanes"), lanes_flow(lanes, now)
    coalesced = {role for role, _ in coalescing(parts)}
    for strand in parts.strands:
        yield from strand_flows(strand, parts.layout, strand.program.role in coalesced, now)


def stream_flow(stream: Stream, now: float) -> EdgeCounts:
    depth = len(stream.items)
    # The most is from here to the next reading.
    most, stream.most = max(stream.most, depth), depth
    sent, waits = stream.sent, (stream.blocked.read(now), stream.starved.read(now))
    return EdgeCounts(sent, stream.bytes * sent, *waits, depth, most)


def lanes_flow(lanes: Admission, now: float) -> EdgeCounts:
    with lanes.condition:
        depth, taken = lanes.ready, sum(lane.taken for lane in lanes.lanes)
        most, lanes.most = max(lanes.most, depth), depth
    return EdgeCounts(taken, receiver=lanes.hungry.read(now), depth=depth, most=most)


def strand_flows(
    strand: Executor, layout: Layout | None, coalesced: bool, now: float
) -> Iterator[tuple[EdgeKey, EdgeCounts]]:
    program, role, times = strand.program, strand.program.role, strand.iterations
    yield (role, RUN, "report"), EdgeCounts(sender=strand.clocks["report"].read(now))
    if layout and layout.consumer and layout.role(role).in_lane:
        yield (layout.consumer.name, role, "begin"), EdgeCounts(receiver=strand.clocks["begin"].read(now))
    if layout and program.register_reads:
        maker = next(maker for maker, reader in layout.registers if reader == role)
        size = sum(program.inputs[leaf].bytes for leaf in program.register_reads)
        yield (maker, role, "register"), EdgeCounts(times, size * times)
    if coalesced:
        yield (role, role, "batch"), EdgeCounts(receiver=strand.clocks["batch"].read(now))


def coalescing(parts: MeterSources) -> Iterator[tuple[str, Batcher]]:
    """Where calls are made as one, with the role whose they are."""
    for run, together in parts.together.items():
        yield next(strand.program.role for strand in parts.strands if run in strand.executables), together


def describe(counts: CounterTotals, seconds: float) -> System:
    """What was counted in so many seconds."""
    sums, per_second = counts.sums, 1 / max(seconds, 1e-9)
    edges = [
        Edge(
            *way,
            messages=sums[way, "messages"] * per_second,
            bytes=sums[way, "bytes"] * per_second,
            depth=counts.depths[way],
            most=counts.most[way],
            sender_waits=sums[way, "sender"],
            receiver_waits=sums[way, "receiver"],
        )
        for way in counts.depths
    ]
    lives = {role: seconds for (role, what), seconds in sums.items() if what == "life" and seconds}
    shares = [share(role, life, sums[role, "sending"], edges) for role, life in lives.items()]
    batches: dict[str, dict[int, int]] = {}
    for (role, size), number in counts.batches.items():
        batches.setdefault(role, {})[size] = number
    return System(seconds, tuple(shares), tuple(edges), Lag(dict(counts.lags)) if counts.lags else None, batches)


def share(role: str, life: float, sending: float, edges: Sequence[Edge]) -> Share:
    """How a role's time divides: it waits at its ends of all edges, for room on a stream while it sends."""
    waits = sum(edge.sender_waits for edge in edges if edge.source == role)
    waits += sum(edge.receiver_waits for edge in edges if edge.dest == role)
    blocked = sum(edge.sender_waits for edge in edges if edge.source == role and edge.kind == "stream")
    waiting = min(waits, life)
    sending = min(max(0.0, sending - blocked), life - waiting)
    return Share(role, (life - waiting - sending) / life, waiting / life, sending / life)


def role_of(name: str) -> str:
    """
    >>> role_of("actor[3]")
    'actor'
    """
    return name.rpartition("[")[0]
