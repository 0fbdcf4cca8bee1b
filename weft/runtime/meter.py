"""Measures where the time of a run goes, from the counters of its streams, lanes and executors.

The threads of a run only add to their own counters and stopwatches, which costs almost nothing. The meter reads them
from outside now and then, and a reading is the difference between two such moments.

The time of an executor is its lifetime, from start to end, so a lane that has no work left does not count as waiting.
The part of the lifetime that is neither waiting nor sending is computing, host calls included. An accelerator's work
counts where its result is first waited for, which may be in another role.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.layout.layout import Layout
from weft.report.system import EdgeTraffic, Lag, RoleTime, System
from weft.runtime.batching import Batcher
from weft.runtime.channel import AllReduce, Stream
from weft.runtime.executor import Executor
from weft.runtime.lanes import Admission

EdgeKey = tuple[str, str, str]
"""The source role, the destination role and the kind of an edge."""

# The destination of all reports. It is not a role.
RUN = "run"


@dataclass(frozen=True)
class Instruments:
    """The parts of one run that have counters."""

    executors: Sequence[Executor]
    streams: Sequence[Stream] = ()
    all_reduces: Sequence[AllReduce] = ()
    admissions: Sequence[Admission] = ()
    batchers: Mapping[Any, Batcher] = field(default_factory=dict)
    """By `Compute`."""
    layout: Layout | None = None


@dataclass(frozen=True)
class EdgeCounts:
    """The counters that one stream, admission or stopwatch adds to its edge."""

    messages: int = 0
    bytes: int = 0
    sender: float = 0.0
    """Seconds that the sender has waited."""
    receiver: float = 0.0
    """Seconds that the receiver has waited."""
    depth: int = 0
    max_depth: int = 0


@dataclass
class CounterTotals:
    """All counters at one moment. They only grow, so what happened between two moments is their difference."""

    sums: defaultdict[Any, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by (role, "lifetime") and (role, "sending"), and edge counters by (edge, name)."""
    lags: Counter[int] = field(default_factory=Counter)
    batches: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The number of batches, by role and size."""
    depths: Counter[EdgeKey] = field(default_factory=Counter)
    max_depths: Counter[EdgeKey] = field(default_factory=Counter)

    def since(self, earlier: "CounterTotals") -> "CounterTotals":
        """Returns the difference. Differences below 0, from counters read while they change, become 0."""
        sums = {key: max(0.0, number - earlier.sums.get(key, 0.0)) for key, number in self.sums.items()}
        lags, batches = self.lags - earlier.lags, self.batches - earlier.batches
        return CounterTotals(defaultdict(float, sums), lags, batches, self.depths, self.max_depths)


@dataclass
class Meter:
    """Reads the counters of a training run, which may consist of several engine runs (a warm-up comes first)."""

    instruments: Instruments | None = None
    earlier_runs: CounterTotals = field(default_factory=CounterTotals)

    def __post_init__(self) -> None:
        self.started = self.last_read = time.perf_counter()
        self.last_totals, self.max_depths = CounterTotals(), Counter[EdgeKey]()

    def attach(self, instruments: Instruments) -> None:
        """Starts to read another engine run, and adds its counters to those of earlier ones."""
        if self.instruments is None:
            self.started = self.last_read = time.perf_counter()
        else:
            self.earlier_runs = self.count(time.perf_counter())
        self.instruments = instruments

    @property
    def trivial(self) -> bool:
        """Whether there is only one executor, which never waits."""
        return self.instruments is None or len(self.instruments.executors) == 1

    def read(self) -> tuple[System, System]:
        """Returns a report on the time since the last reading, and one on the whole time."""
        now = time.perf_counter()
        totals = self.count(now)
        self.max_depths |= totals.max_depths
        recent = system_report(totals.since(self.last_totals), now - self.last_read)
        all_counters = CounterTotals(totals.sums, totals.lags, totals.batches, totals.depths, self.max_depths)
        overall = system_report(all_counters, now - self.started)
        self.last_totals, self.last_read = totals, now
        return recent, overall

    def count(self, now: float) -> CounterTotals:
        """Adds up all counters by role and by edge."""
        earlier = self.earlier_runs
        totals = CounterTotals(defaultdict(float, earlier.sums), +earlier.lags, +earlier.batches)
        if self.instruments is None:
            return totals
        for executor in self.instruments.executors:
            totals.sums[executor.program.role, "lifetime"] += executor.lifetime.read(now)
            totals.sums[executor.program.role, "sending"] += executor.send_time.read(now)
        for edge, counts in edge_counts(self.instruments, now):
            for name in ("messages", "bytes", "sender", "receiver"):
                totals.sums[edge, name] += getattr(counts, name)
            totals.depths[edge] += counts.depth
            totals.max_depths[edge] += counts.max_depth
        for admission in self.instruments.admissions:
            with admission.condition:
                totals.lags.update(admission.lags if admission.published.value else ())
        for role, batcher in batchers_by_role(self.instruments):
            totals.batches.update({(role, size): number for size, number in batcher.sizes.copy().items()})
        return totals


def edge_counts(instruments: Instruments, now: float) -> Iterator[tuple[EdgeKey, EdgeCounts]]:
    """Yields all counters that belong to an edge, with that edge."""
    for stream in instruments.streams:
        yield (role_of(stream.source), role_of(stream.dest), "stream"), stream_counts(stream, now)
    for all_reduce in instruments.all_reduces:
        for replica, stopwatch in zip(all_reduce.replicas, all_reduce.stopwatches, strict=True):
            yield (role_of(replica), role_of(replica), "merge"), EdgeCounts(receiver=stopwatch.read(now))
    for admission in instruments.admissions:
        yield (role_of(admission.names[0]), role_of(admission.consumer), "lanes"), admission_counts(admission, now)
    batched_roles = {role for role, _ in batchers_by_role(instruments)}
    for executor in instruments.executors:
        yield from executor_counts(executor, instruments.layout, executor.program.role in batched_roles, now)


def stream_counts(stream: Stream, now: float) -> EdgeCounts:
    depth = len(stream.items)
    # Each reading reports the maximum since the one before.
    max_depth, stream.max_depth = max(stream.max_depth, depth), depth
    sent, waits = stream.sent, (stream.send_wait.read(now), stream.receive_wait.read(now))
    return EdgeCounts(sent, stream.message_bytes * sent, *waits, depth, max_depth)


def admission_counts(admission: Admission, now: float) -> EdgeCounts:
    with admission.condition:
        depth, consumed = admission.ready_count, sum(lane.consumed for lane in admission.lanes)
        max_depth, admission.max_ready = max(admission.max_ready, depth), depth
    return EdgeCounts(consumed, receiver=admission.batch_wait.read(now), depth=depth, max_depth=max_depth)


def executor_counts(
    executor: Executor, layout: Layout | None, batched: bool, now: float
) -> Iterator[tuple[EdgeKey, EdgeCounts]]:
    program, role, iterations = executor.program, executor.program.role, executor.iterations
    yield (role, RUN, "report"), EdgeCounts(sender=executor.waits["report"].read(now))
    if layout and layout.consumer and layout.role(role).in_lane:
        yield (layout.consumer.name, role, "begin"), EdgeCounts(receiver=executor.waits["begin"].read(now))
    if layout and program.register_reads:
        publisher = next(publisher for publisher, reader in layout.registers if reader == role)
        size = sum(program.inputs[leaf].bytes for leaf in program.register_reads)
        yield (publisher, role, "register"), EdgeCounts(iterations, size * iterations)
    if batched:
        yield (role, role, "batch"), EdgeCounts(receiver=executor.waits["batch"].read(now))


def batchers_by_role(instruments: Instruments) -> Iterator[tuple[str, Batcher]]:
    """Yields every batcher with its role."""
    for compute, batcher in instruments.batchers.items():
        executors = instruments.executors
        yield next(executor.program.role for executor in executors if compute in executor.executables), batcher


def system_report(totals: CounterTotals, seconds: float) -> System:
    """Turns counters over a number of seconds into a report."""
    sums, per_second = totals.sums, 1 / max(seconds, 1e-9)
    edges = [
        EdgeTraffic(
            *edge,
            messages=sums[edge, "messages"] * per_second,
            bytes=sums[edge, "bytes"] * per_second,
            depth=totals.depths[edge],
            depth_max=totals.max_depths[edge],
            sender_waits=sums[edge, "sender"],
            receiver_waits=sums[edge, "receiver"],
        )
        for edge in totals.depths
    ]
    lifetimes = {role: seconds for (role, name), seconds in sums.items() if name == "lifetime" and seconds}
    shares = [time_share(role, lifetime, sums[role, "sending"], edges) for role, lifetime in lifetimes.items()]
    batches: dict[str, dict[int, int]] = {}
    for (role, size), number in totals.batches.items():
        batches.setdefault(role, {})[size] = number
    return System(seconds, tuple(shares), tuple(edges), Lag(dict(totals.lags)) if totals.lags else None, batches)


def time_share(role: str, lifetime: float, sending: float, edges: Sequence[EdgeTraffic]) -> RoleTime:
    """Divides a role's lifetime into computing, waiting and sending."""
    waits = sum(edge.sender_waits for edge in edges if edge.source == role)
    waits += sum(edge.receiver_waits for edge in edges if edge.dest == role)
    # The time of sending includes waiting for space in the stream.
    blocked = sum(edge.sender_waits for edge in edges if edge.source == role and edge.kind == "stream")
    waiting = min(waits, lifetime)
    sending = min(max(0.0, sending - blocked), lifetime - waiting)
    return RoleTime(role, (lifetime - waiting - sending) / lifetime, waiting / lifetime, sending / lifetime)


def role_of(replica: str) -> str:
    """
    >>> role_of("actor[3]")
    'actor'
    """
    return replica.rpartition("[")[0]
