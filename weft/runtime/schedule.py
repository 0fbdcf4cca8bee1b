"""Schedules: when a replica starts its next iteration, and from which values.

Synchronous replicas and replicas of `free` roles execute a fixed number of iterations. A lane starts an iteration when
the consumer's admission allows it, from the latest published version. The consumer waits for ready lanes, and publishes
its results. A schedule can be wrapped to read or publish the register of a `free` role as well.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from weft.runtime.channel import Stream
from weft.runtime.devices import Devices
from weft.runtime.executor import Executor
from weft.runtime.lanes import Admission, Register
from weft.runtime.scatter import LeafValues


class Schedule(Protocol):
    """Controls the iterations of one replica."""

    def begin(self, state: LeafValues) -> bool:
        """Waits until the next iteration may start, and adds register values to `state`. False after the last one."""
        ...

    def end(self, outputs: LeafValues) -> None:
        """Called at the end of every iteration."""
        ...


@dataclass
class SynchronousSchedule:
    """A fixed number of iterations. Messages keep the replicas in step."""

    iterations: int
    done: int = 0

    def begin(self, state: LeafValues) -> bool:
        return self.done < self.iterations

    def end(self, outputs: LeafValues) -> None:
        self.done += 1


@dataclass
class LaneCursor:
    """A replica's position in its lane. Another replica of the same lane may already be in the next iteration."""

    admission: Admission
    lane: int
    iteration: int = 0

    def mark_ready(self) -> None:
        self.admission.mark_ready(self.lane, self.iteration)


@dataclass
class LaneSchedule:
    """Iterations of a lane: each starts from the latest published version, until no work is left."""

    cursor: LaneCursor
    executor: Executor
    register_reads: frozenset[int]
    """The leaves that the consumer publishes."""

    def begin(self, state: LeafValues) -> bool:
        admission, lane = self.cursor.admission, self.cursor.lane
        if not admission.begin(lane, self.cursor.iteration + 1, self.executor.waits["begin"]):
            return False
        self.cursor.iteration += 1
        if self.register_reads:
            devices = self.executor.devices
            published = admission.read(lane, devices, devices.transfer)
            state.update({leaf: published[leaf] for leaf in self.register_reads})
        return True

    def end(self, outputs: LeafValues) -> None:
        self.cursor.mark_ready()


@dataclass
class ConsumerSchedule:
    """A fixed number of iterations of the consumer, each on a batch of ready lanes."""

    admission: Admission
    iterations: int
    executor: Executor
    done: int = 0

    def begin(self, state: LeafValues) -> bool:
        if self.done == self.iterations:
            return False
        self.executor.chosen_lanes = self.admission.form_batch()
        # Lag is only defined if the consumer publishes versions.
        self.executor.lags = self.admission.batch_lags if self.executor.program.register_writes else ()
        return True

    def end(self, outputs: LeafValues) -> None:
        self.done += 1
        self.admission.publish(_register_values(self.executor, outputs))


@dataclass
class RegisterReaderSchedule:
    """Another schedule, where each iteration starts from the latest version that a `free` role published."""

    schedule: Schedule
    register: Register
    register_reads: frozenset[int]
    devices: Devices

    def begin(self, state: LeafValues) -> bool:
        if not self.schedule.begin(state):
            return False
        published = self.register.read(self.devices, self.devices.transfer)
        state.update({leaf: published[leaf] for leaf in self.register_reads})
        return True

    def end(self, outputs: LeafValues) -> None:
        self.schedule.end(outputs)


@dataclass
class RegisterPublisherSchedule:
    """Another schedule, where each iteration ends by publishing its results."""

    schedule: Schedule
    register: Register
    executor: Executor

    def begin(self, state: LeafValues) -> bool:
        return self.schedule.begin(state)

    def end(self, outputs: LeafValues) -> None:
        self.schedule.end(outputs)
        self.register.publish(_register_values(self.executor, outputs))


@dataclass
class LaneStream:
    """A lane's end of a stream to or from the consumer. Blocking on the consumer marks the lane ready."""

    stream: Stream
    cursor: LaneCursor

    @property
    def dest_device(self) -> Devices | None:
        return self.stream.dest_device

    def put(self, item: Any) -> None:
        if self.stream.full:
            self.cursor.mark_ready()
        self.stream.put(item)

    def get(self) -> Any:
        self.cursor.mark_ready()
        return self.stream.get()


def _register_values(executor: Executor, outputs: LeafValues) -> LeafValues:
    """Selects the outputs that the role publishes."""
    return {leaf: executor.devices.first_shard(outputs[leaf]) for leaf in executor.program.register_writes}
