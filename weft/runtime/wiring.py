"""Builds the executors of a run and everything that connects them, from the projection, before any thread starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from weft.layout.layout import Role
from weft.project.program import Compute, Merge, Recv, Send, walk
from weft.project.project import Projection
from weft.runtime.batching import BatchedCompute, Batcher
from weft.runtime.channel import AllReduce, RunControl, Stream
from weft.runtime.devices import Devices
from weft.runtime.executor import Executor, StreamEnd
from weft.runtime.interpreter import merge_values
from weft.runtime.lanes import Admission, PublishedValue, Register
from weft.runtime.meter import Instruments
from weft.runtime.metrics_assembler import reports_per_iteration
from weft.runtime.scatter import ReplicaId, copy_arrays
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
    """The executors of one run, and the streams, all-reduces, batchers, admissions and registers between them."""

    projection: Projection
    control: RunControl
    passes: int
    executables: Mapping[ReplicaId, Mapping[Compute, Callable[..., Any]]]
    batched: Mapping[str, Mapping[Compute, BatchedCompute]]
    streams: dict[tuple[str, int, int], Stream] = field(default_factory=dict)
    """By message, source replica and destination replica."""
    all_reduces: dict[str, AllReduce] = field(default_factory=dict)
    batchers: dict[Compute, Batcher] = field(default_factory=dict)
    cursors: dict[ReplicaId, LaneCursor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = self.projection.layout
        self.admissions = self.make_admissions()
        publishers = [role.name for role in self.layout.roles if role.free and self.register_writes(role.name)]
        self.registers = {publisher: Register(self.control) for publisher in publishers}
        self.executors = [
            self.make_executor(role, index) for role in self.layout.roles for index in range(role.replicas)
        ]

    def instruments(self) -> Instruments:
        """Returns the parts of the run whose counters the meter reads."""
        return Instruments(
            self.executors,
            [*self.streams.values()],
            [*self.all_reduces.values()],
            self.admissions,
            self.batchers,
            self.layout,
        )

    def schedule(self, role: Role, executor: Executor) -> Schedule:
        """Returns the schedule of a replica, wrapped for each register of a `free` role that it publishes or reads."""
        schedule, program = self.base_schedule(role, executor), executor.program
        for publisher, register in self.registers.items():
            reads = program.register_reads & self.register_writes(publisher)
            if publisher == role.name and executor.index == 0:
                schedule = RegisterPublisherSchedule(schedule, register, executor)
            elif (publisher, role.name) in self.layout.registers and reads:
                schedule = RegisterReaderSchedule(schedule, register, reads, executor.devices)
        return schedule

    def base_schedule(self, role: Role, executor: Executor) -> Schedule:
        if not self.layout.lanes or role.free:
            return SynchronousSchedule(self.passes)
        if role.take is not None:
            iterations = self.passes * reports_per_iteration(role) // role.replicas
            return ConsumerSchedule(self.admissions[executor.index], iterations, executor)
        from_free_roles = frozenset[int]().union(*map(self.register_writes, self.registers))
        return LaneSchedule(
            self.cursor(role, executor.index), executor, executor.program.register_reads - from_free_roles
        )

    def publish_initial_state(self, leaves: list[Any]) -> None:
        """Publishes the state before the run as version 0 of every register."""

        def initial(role: str) -> PublishedValue:
            writes = sorted(self.register_writes(role))
            return PublishedValue(dict(zip(writes, copy_arrays([leaves[leaf] for leaf in writes]), strict=True)))

        for publisher, register in self.registers.items():
            register.latest = initial(publisher)
        if self.layout.consumer is not None:
            published = initial(self.layout.consumer.name)
            for admission in self.admissions:
                admission.published = published

    def register_writes(self, role: str) -> frozenset[int]:
        return self.projection.programs[role].register_writes

    def make_executor(self, role: Role, index: int) -> Executor:
        program = self.projection.programs[role.name]
        steps = [step for step, _ in walk(program.steps)]
        executor = Executor(
            program,
            index,
            dict(self.executables[role.name, index]),
            {step: self.outgoing(role, index, step) for step in steps if isinstance(step, Send)},
            {step: self.incoming(role, index, step) for step in steps if isinstance(step, Recv)},
            {step: self.all_reduce(role, step) for step in steps if isinstance(step, Merge)},
            Devices.of(self.layout, role, index),
            lane_count=1 if role.take is None else role.lanes_per_replica,
        )
        for compute, batched in self.batched[role.name].items():
            if compute not in self.batchers:
                self.batchers[compute] = Batcher(self.control, batched, role.batch, role.wait)
            executor.executables[compute] = self.batched_call(self.batchers[compute], role, executor)
        return executor

    def batched_call(self, batcher: Batcher, role: Role, executor: Executor) -> Callable[..., Any]:
        """Returns a replica's function that executes a `Compute` through a batcher."""
        cursor, stopwatch = self.cursor(role, executor.index), executor.waits["batch"]
        lane = cursor.admission.lanes[cursor.lane]
        return lambda *inputs: batcher(lane.version, stopwatch, inputs)

    def make_admissions(self) -> list[Admission]:
        """Builds the admission of lanes to each replica of the consumer."""
        consumer = self.layout.consumer
        if consumer is None:
            return []
        lane_role = next(role.name for role in self.layout.roles if role.in_lane)
        count = consumer.lanes_per_replica
        return [
            Admission(
                self.control,
                f"{consumer.name}[{index}]",
                tuple(f"{lane_role}[{index * count + lane}]" for lane in range(count)),
                consumer.take or count,
                self.passes * count,
                self.layout.max_lag,
            )
            for index in range(consumer.replicas)
        ]

    def cursor(self, role: Role, index: int) -> LaneCursor:
        """Returns a replica's position in the lane that it belongs to."""
        lane = index * self.layout.lanes // role.replicas
        lanes_each = self.layout.lanes // len(self.admissions)
        return self.cursors.setdefault(
            (role.name, index), LaneCursor(self.admissions[lane // lanes_each], lane % lanes_each)
        )

    def outgoing(self, role: Role, index: int, step: Send) -> tuple[StreamEnd, ...]:
        dest = self.layout.role(step.dest)
        return tuple(
            self.stream_end(role, index, dest, self.stream(step.message, (role, index), (dest, partner)))
            for partner in partners(index, role.replicas, dest.replicas)
        )

    def incoming(self, role: Role, index: int, step: Recv) -> tuple[StreamEnd, ...]:
        source = self.layout.role(step.source)
        return tuple(
            self.stream_end(role, index, source, self.stream(step.message, (source, partner), (role, index)))
            for partner in partners(index, role.replicas, source.replicas)
        )

    def stream_end(self, role: Role, index: int, other: Role, stream: Stream) -> StreamEnd:
        return stream if other.take is None else LaneStream(stream, self.cursor(role, index))

    def stream(self, message: str, source: tuple[Role, int], dest: tuple[Role, int]) -> Stream:
        key = (message, source[1], dest[1])
        if key not in self.streams:
            source_name, dest_name = (f"{role.name}[{index}]" for role, index in (source, dest))
            devices = Devices.of(self.layout, *dest)
            dest_device = devices if devices.assigned and devices.count == 1 else None
            label = message.partition(":")[2]
            self.streams[key] = Stream(self.control, source_name, dest_name, label, dest_device=dest_device)
        return self.streams[key]

    def all_reduce(self, role: Role, step: Merge) -> AllReduce:
        if step.message not in self.all_reduces:
            replicas = tuple(f"{role.name}[{index}]" for index in range(role.replicas))
            self.all_reduces[step.message] = AllReduce(
                self.control, step.message, replicas, compiled_merge(step.operations, role.devices)
            )
        return self.all_reduces[step.message]


def partners(index: int, count: int, partner_count: int) -> range:
    """Returns the replicas of another role that replica `index` of `count` exchanges messages with."""
    if partner_count >= count:
        each = partner_count // count
        return range(index * each, (index + 1) * each)
    return range(index // (count // partner_count), index // (count // partner_count) + 1)


@cache
def compiled_merge(operations: tuple[str, ...], devices: int = 1) -> Callable[[list[Any]], Any]:
    """Returns a compiled function that merges the lists of values of all replicas.

    With several devices, every value of a replica has a leading axis with one entry per device, and so has the result.
    """

    def merge(replicas: list[list[Any]]) -> list[Any]:
        columns = zip(operations, *replicas, strict=True)
        return [merge_shards(operation, values) for operation, *values in columns]

    def merge_shards(operation: str, values: list[Any]) -> Any:
        if devices == 1:
            return merge_values(operation, values)
        merged = merge_values(operation, [value[device] for value in values for device in range(devices)])
        return jnp.broadcast_to(merged, (devices, *merged.shape))

    return jax.jit(merge)
