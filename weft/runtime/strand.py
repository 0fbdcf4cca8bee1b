"""One thread of a run: a replica of a role going through its program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from weft.graph.graph import Value
from weft.project.program import Host, Loop, Merge, Program, Recv, Run, Send, Step
from weft.runtime.channel import Meeting, Stream
from weft.runtime.devices import Devices


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
    slots: dict[Value, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.program.role}[{self.index}]"

    def __post_init__(self) -> None:
        self.slots[self.program.replica] = self.devices.everywhere(jnp.int32(self.index))
        self.counters: dict[Loop, list[Any]] = {}

    def iterate(self, state: Mapping[int, Any]) -> dict[int, Any]:
        """Go through the program once: from leaves of the state to outputs."""
        self.slots.update({self.program.inputs[leaf]: array for leaf, array in state.items()})
        self.steps(self.program.steps)
        outputs = {index: self.slots[value] for index, value in self.program.outputs.items()}
        for value in self.program.outputs.values():
            self.slots.pop(value, None)
        return outputs

    def steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            self.actions[type(step)](self, step)

    def run(self, step: Run) -> None:
        slots = self.slots
        results = self.executables[step](*[slots[value] for value in step.inputs])
        slots.update(zip(step.outputs, results, strict=True))

    def send(self, step: Send) -> None:
        for stream, part in zip(self.sends[step], step.parts, strict=True):
            stream.put([self.slots[value] for value in part if value is not None])

    def receive(self, step: Recv) -> None:
        for stream, part in zip(self.receives[step], step.parts, strict=True):
            for value, array in zip(part, stream.get(), strict=True):
                if value is not None:
                    self.slots[value] = array

    def merge(self, step: Merge) -> None:
        arrays = [self.slots[value] for value in step.inputs]
        self.slots.update(zip(step.outputs, self.meetings[step].join(self.index, self.name, arrays), strict=True))

    def host(self, step: Host) -> None:
        results = self.devices.call(step.call, [self.slots[value] for value in step.inputs])
        self.slots.update(zip(step.outputs, results, strict=True))

    def loop(self, step: Loop) -> None:
        slots = self.slots
        slots.update([(slot, slots[first]) for slot, first in step.starts])
        ends: list[tuple[Value, Any]] = []
        stacks = [(value, []) for _, value in step.stacks]
        for index in self.counter(step):
            slots[step.index] = index
            self.steps(step.body)
            for value, collected in stacks:
                collected.append(slots[value])
            ends = [(output, slots[value]) for output, value in step.ends]
            slots.update([(slot, slots[value]) for slot, value in step.moves])
        slots.update(ends)
        for (output, _), (_, collected) in zip(step.stacks, stacks, strict=True):
            slots[output] = self.devices.stack(collected[::-1] if step.reverse else collected)

    def counter(self, step: Loop) -> list[Any]:
        """The step numbers as arrays that are already on the device."""
        if step not in self.counters:
            numbers = [self.devices.everywhere(jnp.int32(number)) for number in range(step.length)]
            self.counters[step] = numbers[::-1] if step.reverse else numbers
        return self.counters[step]

    actions = {Run: run, Send: send, Recv: receive, Merge: merge, Host: host, Loop: loop}
