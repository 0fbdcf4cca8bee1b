"""One thread of a run: a replica of a role going through its program.

A program is made into functions before it is gone through: each step of it becomes one that knows what it reads and
writes. Host code is called many thousand times a second, and looking things up would take longer than doing them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

import jax.numpy as jnp

from weft.graph.graph import Value
from weft.project.program import Host, Loop, Merge, Program, Recv, Run, Send, Step
from weft.runtime.channel import Meeting, Stream
from weft.runtime.devices import Devices

Act = Callable[[], None]
Slots = dict[Value, Any]


@dataclass
class Strand:
    """A replica's slots for values, and its ends of the streams and meetings."""

    program: Program
    index: int
    executables: Mapping[Run, Callable[..., Any]]
    sends: Mapping[Send, tuple[Stream, ...]]
    receives: Mapping[Recv, tuple[Stream, ...]]
    meetings: Mapping[Merge, Meeting]
    devices: Devices = field(default_factory=Devices)
    slots: Slots = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.program.role}[{self.index}]"

    def __post_init__(self) -> None:
        self.slots[self.program.replica] = self.devices.everywhere(jnp.int32(self.index))

    @cached_property
    def acts(self) -> list[Act]:
        return self.prepare(self.program.steps)

    def iterate(self, state: Mapping[int, Any]) -> dict[int, Any]:
        """Go through the program once: from leaves of the state to outputs."""
        self.slots.update({self.program.inputs[leaf]: array for leaf, array in state.items()})
        for act in self.acts:
            act()
        outputs = {index: self.slots[value] for index, value in self.program.outputs.items()}
        for value in self.program.outputs.values():
            self.slots.pop(value, None)
        return outputs

    def prepare(self, steps: Iterable[Step]) -> list[Act]:
        return [self.actions[type(step)](self, step) for step in steps]

    def run(self, step: Run) -> Act:
        return self.calling(self.executables[step], step)

    def host(self, step: Host) -> Act:
        return self.calling(self.devices.each(step.call), step)

    def merge(self, step: Merge) -> Act:
        return self.calling(lambda *inputs: self.meetings[step].join(self.index, self.name, list(inputs)), step)

    def calling(self, function: Callable[..., Iterable[Any]], step: Run | Host | Merge) -> Act:
        slots, read, outputs = self.slots, reading(step.inputs), step.outputs

        def act() -> None:
            slots.update(zip(outputs, function(*read(slots)), strict=True))

        return act

    def send(self, step: Send) -> Act:
        slots = self.slots
        parts = [reading([value for value in part if value is not None]) for part in step.parts]

        def act() -> None:
            for stream, read in zip(self.sends[step], parts, strict=True):
                stream.put(read(slots))

        return act

    def receive(self, step: Recv) -> Act:
        def act() -> None:
            for stream, part in zip(self.receives[step], step.parts, strict=True):
                for value, array in zip(part, stream.get(), strict=True):
                    if value is not None:
                        self.slots[value] = array

        return act

    def loop(self, step: Loop) -> Act:
        slots, body, counter = self.slots, self.prepare(step.body), self.counter(step)
        start, move, end, collect = (
            ([slot for slot, _ in pairs], reading([value for _, value in pairs]))
            for pairs in (step.starts, step.moves, step.ends, step.stacks)
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
            for output, values in zip(collect[0], zip(*collected, strict=True), strict=True):
                slots[output] = self.devices.stack(values[::-1] if step.reverse else values)

        return act

    def counter(self, step: Loop) -> list[Any]:
        """The step numbers as arrays that are already on the device."""
        numbers = self.devices.numbers(step.length)
        return numbers[::-1] if step.reverse else numbers

    actions = {Run: run, Send: send, Recv: receive, Merge: merge, Host: host, Loop: loop}


def reading(values: Sequence[Value]) -> Callable[[Slots], tuple[Any, ...]]:
    """A function that gets the values of some slots, all in one."""
    if len(values) > 1:
        return itemgetter(*values)
    return lambda slots: tuple(slots[value] for value in values)
