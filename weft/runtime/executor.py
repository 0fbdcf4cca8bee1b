"""One thread of a run: a replica of a role going through its program.

A program is made into functions before it is gone through: each step of it becomes one that knows what it reads and
writes. Host code is called many thousand times a second, and looking things up would take longer than doing them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, Protocol

import jax.numpy as jnp

from weft.graph.graph import Value
from weft.project.program import Compute, HostCall, Loop, Merge, Program, Recv, Send, Step
from weft.runtime.channel import AllReduce, Stopwatch
from weft.runtime.devices import Devices

Action = Callable[[], None]
Slots = dict[Value, Any]


class StreamEnd(Protocol):
    """A strand's end of a stream; `place` is where the receiver is, if that is said."""

    @property
    def place(self) -> Devices | None: ...
    def put(self, item: Any) -> None: ...
    def get(self) -> Any: ...


@dataclass
class Executor:
    """A replica's slots for values, and its ends of the streams and meetings."""

    program: Program
    index: int
    executables: dict[Compute, Callable[..., Any]]
    sends: Mapping[Send, tuple[StreamEnd, ...]]
    receives: Mapping[Recv, tuple[StreamEnd, ...]]
    meetings: Mapping[Merge, AllReduce]
    devices: Devices = field(default_factory=Devices)
    slots: Slots = field(default_factory=dict)
    served: int = 1
    """The lanes that this strand may choose from."""
    chosen: Sequence[int] = (0,)
    """Those of them that it is with in this iteration: its streams are in their order."""
    lags: Sequence[int] = ()
    """How late the work is that it took into this iteration."""

    @property
    def name(self) -> str:
        return f"{self.program.role}[{self.index}]"

    def __post_init__(self) -> None:
        self.slots[self.program.replica_index] = self.devices.everywhere(jnp.int32(self.index))
        self.life, self.sending = Stopwatch(self.name), Stopwatch(self.name)
        self.clocks = {place: Stopwatch(self.name) for place in ("begin", "batch", "report")}
        self.iterations = 0

    @cached_property
    def acts(self) -> list[Action]:
        return self.prepare(self.program.steps)

    def iterate(self, state: Mapping[int, Any]) -> dict[int, Any]:
        """Go through the program once: from leaves of the state to outputs."""
        self.iterations += 1
        self.slots.update({self.program.inputs[leaf]: array for leaf, array in state.items()})
        for act in self.acts:
            act()
        outputs = {index: self.slots[value] for index, value in self.program.outputs.items()}
        for value in self.program.outputs.values():
            self.slots.pop(value, None)
        return outputs

    def prepare(self, steps: Iterable[Step]) -> list[Action]:
        return [self.actions[type(step)](self, step) for step in steps]

    def run(self, step: Compute) -> Action:
        return self.calling(self.executables[step], step)

    def host(self, step: HostCall) -> Action:
        return self.calling(self.devices.each(step.function), step)

    def merge(self, step: Merge) -> Action:
        meeting, devices = self.meetings[step], self.devices

        def join(*inputs: Any) -> Iterable[Any]:
            if not devices.places:
                return meeting.join(self.index, list(inputs))
            # Replicas may be on different devices: they meet on one of them.
            return map(devices.back, meeting.join(self.index, [devices.out(value) for value in inputs]))

        return self.calling(join, step)

    def calling(self, function: Callable[..., Iterable[Any]], step: Compute | HostCall | Merge) -> Action:
        slots, read, outputs = self.slots, reading(step.inputs), step.outputs

        def act() -> None:
            slots.update(zip(outputs, function(*read(slots)), strict=True))

        return act

    def send(self, step: Send) -> Action:
        """All parts, device by device, shared out evenly over the streams of the chosen lanes."""
        slots, streams = self.slots, self.sends[step]
        parts = [reading([value for value in part if value is not None]) for part in step.payloads]

        def act() -> None:
            messages = self.by_device([read(slots) for read in parts])
            ends = self.among(streams)
            each = len(messages) // len(ends)
            self.sending.start()
            copies: dict[Any, Any] = {}
            for number, end in enumerate(ends):
                message = messages[number * each : (number + 1) * each]
                end.put([_brought(part, end.place, copies) for part in message] if end.place else message)
            self.sending.stop()

        return act

    def receive(self, step: Recv) -> Action:
        """All parts, stream by stream, shared out evenly over the devices."""
        slots, streams, count, spread = self.slots, self.receives[step], self.devices.count, self.devices.spread

        def act() -> None:
            parts = [part for end in self.among(streams) for part in end.get()]
            each = len(parts) // count
            for number, values in enumerate(step.payloads):
                for value, *arrays in zip(values, *parts[number::each], strict=True):
                    if value is not None:
                        slots[value] = spread(arrays)

        return act

    def by_device(self, parts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The parts of a message that each device has, one device after the other."""
        if self.devices.count == 1:
            return parts
        split = [list(zip(*map(self.devices.parts, values), strict=True)) for values in parts]
        return [part for device in zip(*split, strict=True) for part in device]

    def among(self, ends: tuple[StreamEnd, ...]) -> tuple[StreamEnd, ...]:
        """Of the streams to all lanes, those of the chosen ones."""
        each = len(ends) // self.served
        if len(self.chosen) == self.served:
            return ends
        return tuple(end for lane in self.chosen for end in ends[lane * each : (lane + 1) * each])

    def loop(self, step: Loop) -> Action:
        slots, body, counter = self.slots, self.prepare(step.body), self.counter(step)
        start, move, end, collect = (
            ([slot for slot, _ in pairs], reading([value for _, value in pairs]))
            for pairs in (step.starts, step.updates, step.results, step.stacks)
        )

        def act() -> None:
            slots.update(zip(start[0], start[1](slots), strict=True))
            ends, collected = (), []
            for index in counter:
                slots[step.index] = index
                for inner in body:
                    inner()
                collected.append(collect[1](slots))
                ends = end[1](slots)
                slots.update(zip(move[0], move[1](slots), strict=True))
            slots.update(zip(end[0], ends, strict=True))
            columns = list(zip(*(collected[::-1] if step.reverse else collected), strict=True))
            slots.update(zip(collect[0], self.devices.stack(columns), strict=True))

        return act

    def counter(self, step: Loop) -> list[Any]:
        """The step numbers as arrays that are already on the device."""
        numbers = self.devices.numbers(step.length)
        return numbers[::-1] if step.reverse else numbers

    actions = {Compute: run, Send: send, Recv: receive, Merge: merge, HostCall: host, Loop: loop}


def _brought(part: tuple[Any, ...], place: Devices, copies: dict[Any, Any]) -> tuple[Any, ...]:
    """A part of a message at its place; what several receivers there get is copied once."""
    for array in part:
        if (id(array), place) not in copies:
            copies[id(array), place] = place.bring(array)
    return tuple(copies[id(array), place] for array in part)


def reading(values: Sequence[Value]) -> Callable[[Slots], tuple[Any, ...]]:
    """A function that gets the values of some slots, all in one."""
    if len(values) > 1:
        return itemgetter(*values)
    return lambda slots: tuple(slots[value] for value in values)
