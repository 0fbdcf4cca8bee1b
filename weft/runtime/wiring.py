"""What connects the threads of a run: their channels and lanes, and the strands that hold the ends.

Everything here is made before anything runs, from the projection alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax

from weft.layout.layout import Role
from weft.project.program import Compute, Merge, Recv, Send, walk
from weft.project.project import Projection
from weft.runtime.batching import BatchedCompute, Batcher
from weft.runtime.channel import AllReduce, RunControl, Stream
from weft.runtime.devices import Devices
from weft.runtime.executor import Executor, StreamEnd
from weft.runtime.interpreter import MERGES
from weft.runtime.lanes import Admission, PublishedValue, Register
from weft.runtime.meter import MeterSources
from weft.runtime.metrics_assembler import reports_per_iteration
from weft.runtime.scatter import copy_arrays
from weft.runtime.schedule import (
    ConsumerSchedule,
    LaneCursor,
    LaneSchedule,
    LaneStream,
    RegisterPublisherSchedule,
    RegisterReaderSchedule,
    Schedule,
    SynchronousSchedule,
)


@dataclass
class Wiring:
    """The channels of one run, each made when its first end is asked for."""

    projection: Projection
    wait: RunControl
    times: int
    executables: Mapping[tuple[str, int], Mapping[Compute, Callable[..., Any]]]
    coalesced: Mapping[str, Mapping[Compute, BatchedCompute]]
    streams: dict[tuple[str, int, int], Stream] = field(default_factory=dict)
    meetings: dict[str, AllReduce] = field(default_factory=dict)
    together: dict[Compute, Batcher] = field(default_factory=dict)
    places: dict[tuple[str, int], LaneCursor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = self.projection.layout
        self.lanes = self.make_lanes()
        makers = [role.name for role in self.layout.roles if role.free and self.writes(role.name)]
        self.registers = {maker: Register(self.wait) for maker in makers}
        self.strands = [self.strand(role, index) for role in self.layout.roles for index in range(role.replicas)]

    def parts(self) -> MeterSources:
        """What counts as it goes."""
        return MeterSources(
            self.strands,
            [*self.streams.values()],
            [*self.meetings.values()],
            self.lanes,
            self.together,
            self.layout,
        )

    def strand(self, role: Role, index: int) -> Executor:
        program = self.projection.programs[role.name]
        steps = [step for step, _ in walk(program.steps)]
        strand = Executor(
            program,
            index,
            dict(self.executables[role.name, index]),
            {step: self.outgoing(role, index, step) for step in steps if isinstance(step, Send)},
            {step: self.incoming(role, index, step) for step in steps if isinstance(step, Recv)},
            {step: self.meeting(role, step) for step in steps if isinstance(step, Merge)},
            Devices.of(self.layout, role, index),
            served=1 if role.take is None else role.lanes_per_replica,
        )
        for run, coalesced in self.coalesced[role.name].items():
            if run not in self.together:
                self.together[run] = Batcher(self.wait, coalesced, role.batch, role.wait)
            strand.executables[run] = self.calling(self.together[run], role, strand)
        return strand

    def calling(self, together: Batcher, role: Role, strand: Executor) -> Callable[..., Any]:
        """A strand's way to call a run together with others."""
        place, clock = self.place(role, strand.index), strand.clocks["batch"]
        lane = place.lanes.lanes[place.index]
        return lambda *inputs: together(lane.version, clock, inputs)

    def pace(self, role: Role, strand: Executor) -> Schedule:
        pace, program = self.own_pace(role, strand), strand.program
        for maker, register in self.registers.items():
            reads = program.register_reads & self.writes(maker)
            if maker == role.name and strand.index == 0:
                pace = RegisterPublisherSchedule(pace, register, strand)
            elif (maker, role.name) in self.layout.registers and reads:
                pace = RegisterReaderSchedule(pace, register, reads, strand.devices)
        return pace

    def own_pace(self, role: Role, strand: Executor) -> Schedule:
        if not self.layout.lanes or role.free:
            return SynchronousSchedule(self.times)
        if role.take is not None:
            times = self.times * reports_per_iteration(role) // role.replicas
            return ConsumerSchedule(self.lanes[strand.index], times, strand)
        late = strand.program.register_reads - frozenset[int]().union(*map(self.writes, self.registers))
        return LaneSchedule(self.place(role, strand.index), strand, late)

    def writes(self, role: str) -> frozenset[int]:
        return self.projection.programs[role].register_writes

    def make_lanes(self) -> list[Admission]:
        """The lanes of each replica of the role that takes."""
        consumer = self.layout.consumer
        if consumer is None:
            return []
        first = next(role.name for role in self.layout.roles if role.in_lane)
        return [
            Admission(
                self.wait,
                f"{consumer.name}[{index}]",
                tuple(
                    f"{first}[{index * consumer.lanes_per_replica + lane}]"
                    for lane in range(consumer.lanes_per_replica)
                ),
                consumer.take or consumer.lanes_per_replica,
                self.times * consumer.lanes_per_replica,
                self.layout.max_lag,
            )
            for index in range(consumer.replicas)
        ]

    def place(self, role: Role, index: int) -> LaneCursor:
        """A replica's place in the lane that it belongs to."""
        lane = index * self.layout.lanes // role.replicas
        served = self.layout.lanes // len(self.lanes)
        return self.places.setdefault((role.name, index), LaneCursor(self.lanes[lane // served], lane % served))

    def fill_registers(self, leaves: list[Any]) -> None:
        """Version 0 is the state before the run."""

        def first(role: str) -> PublishedValue:
            writes = sorted(self.writes(role))
            return PublishedValue(dict(zip(writes, copy_arrays([leaves[leaf] for leaf in writes]), strict=True)))

        for maker, register in self.registers.items():
            register.newest = first(maker)
        if self.layout.consumer is not None:
            newest = first(self.layout.consumer.name)
            for lanes in self.lanes:
                lanes.newest = newest

    def outgoing(self, role: Role, index: int, step: Send) -> tuple[StreamEnd, ...]:
        to = self.layout.role(step.dest)
        return tuple(
            self.end(role, index, to, self.stream(step.message, (role, index), (to, other)))
            for other in partners(index, role.replicas, to.replicas)
        )

    def incoming(self, role: Role, index: int, step: Recv) -> tuple[StreamEnd, ...]:
        source = self.layout.role(step.source)
        return tuple(
            self.end(role, index, source, self.stream(step.message, (source, other), (role, index)))
            for other in partners(index, role.replicas, source.replicas)
        )

    def end(self, role: Role, index: int, other: Role, stream: Stream) -> StreamEnd:
        """A replica's end of a stream: for a lane, to wait for whoever takes is to arrive."""
        return stream if other.take is None else LaneStream(stream, self.place(role, index))

    def stream(self, message: str, source: tuple[Role, int], dest: tuple[Role, int]) -> Stream:
        key = (message, source[1], dest[1])
        if key not in self.streams:
            one, other = (f"{role.name}[{index}]" for role, index in (source, dest))
            devices = Devices.of(self.layout, *dest)
            place = devices if devices.places and devices.count == 1 else None
            self.streams[key] = Stream(self.wait, one, other, message.partition(":")[2], place=place)
        return self.streams[key]

    def meeting(self, role: Role, step: Merge) -> AllReduce:
        if step.message not in self.meetings:
            names = tuple(f"{role.name}[{index}]" for index in range(role.replicas))
            self.meetings[step.message] = AllReduce(self.wait, step.message, names, compiled_merge(step.operation))
        return self.meetings[step.message]


def partners(index: int, mine: int, others: int) -> range:
    """The replicas of another role that replica `index` of `mine` exchanges with."""
    if others >= mine:
        fan = others // mine
        return range(index * fan, (index + 1) * fan)
    return range(index // (mine // others), index // (mine // others) + 1)


@cache
def compiled_merge(operation: str) -> Callable[[list[Any]], Any]:
    """A compiled function that merges what replicas bring."""
    return jax.jit(lambda values: jax.tree.map(lambda *leaves: MERGES[operation](leaves), *values))
