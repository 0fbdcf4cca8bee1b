"""What a strand does between its iterations: whether to go on, and from what.

In step with the others it only counts. In a lane it begins when it may, from what the register holds; where lanes are
taken, it chooses them first and publishes what it made of them. A free role counts, and may publish and read too.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from weft.runtime.channel import Stream
from weft.runtime.devices import Devices
from weft.runtime.executor import Executor
from weft.runtime.lanes import Admission, Register

State = dict[int, Any]


class Schedule(Protocol):
    """The course of a strand's iterations."""

    def begin(self, state: State) -> bool:
        """Wait until the next iteration may begin, and complete what it starts from; false if there is none."""
        ...

    def end(self, outputs: State) -> None:
        """An iteration is over."""
        ...


@dataclass
class SynchronousSchedule:
    """A given number of iterations, whatever the others do: messages keep them together."""

    times: int
    done: int = 0

    def begin(self, state: State) -> bool:
        return self.done < self.times

    def end(self, outputs: State) -> None:
        self.done += 1


@dataclass
class LaneCursor:
    """A replica's place: its lane, and the iteration that it is in there. Others of the lane may be in the next."""

    lanes: Admission
    index: int
    number: int = 0

    def arrive(self) -> None:
        self.lanes.arrive(self.index, self.number)


@dataclass
class LaneSchedule:
    """Iterations as long as there is work, each from the newest version."""

    place: LaneCursor
    strand: Executor
    reads: frozenset[int]
    """The leaves that whoever takes publishes."""

    def begin(self, state: State) -> bool:
        place = self.place
        if not place.lanes.begin(place.index, place.number + 1, self.strand.clocks["begin"]):
            return False
        place.number += 1
        if self.reads:
            devices = self.strand.devices
            newest = place.lanes.read(place.index, devices, devices.bring)
            state.update({leaf: newest[leaf] for leaf in self.reads})
        return True

    def end(self, outputs: State) -> None:
        self.place.arrive()


@dataclass
class ConsumerSchedule:
    """A given number of iterations, each with the lanes that are ready."""

    lanes: Admission
    times: int
    strand: Executor
    done: int = 0

    def begin(self, state: State) -> bool:
        if self.done == self.times:
            return False
        self.strand.chosen = self.lanes.form()
        # Who publishes nothing leaves nobody behind.
        self.strand.lags = self.lanes.latest if self.strand.program.register_writes else ()
        return True

    def end(self, outputs: State) -> None:
        self.done += 1
        self.lanes.publish(_written(self.strand, outputs))


@dataclass
class RegisterReaderSchedule:
    """Another pace, where an iteration starts from what a free role published last."""

    pace: Schedule
    register: Register
    reads: frozenset[int]
    devices: Devices

    def begin(self, state: State) -> bool:
        if not self.pace.begin(state):
            return False
        newest = self.register.read(self.devices, self.devices.bring)
        state.update({leaf: newest[leaf] for leaf in self.reads})
        return True

    def end(self, outputs: State) -> None:
        self.pace.end(outputs)


@dataclass
class RegisterPublisherSchedule:
    """Another pace, where an iteration ends with publishing what it made."""

    pace: Schedule
    register: Register
    strand: Executor

    def begin(self, state: State) -> bool:
        return self.pace.begin(state)

    def end(self, outputs: State) -> None:
        self.pace.end(outputs)
        self.register.publish(_written(self.strand, outputs))


@dataclass
class LaneStream:
    """A lane's end of a stream to or from whoever takes: it arrives when it must wait for it."""

    stream: Stream
    at: LaneCursor

    @property
    def place(self) -> Devices | None:
        return self.stream.place

    def put(self, item: Any) -> None:
        if self.stream.full:
            self.at.arrive()
        self.stream.put(item)

    def get(self) -> Any:
        self.at.arrive()
        return self.stream.get()


def _written(strand: Executor, outputs: State) -> State:
    """What a strand publishes of what it made."""
    return {leaf: strand.devices.one(outputs[leaf]) for leaf in strand.program.register_writes}
