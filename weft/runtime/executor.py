"""Executes the program of one replica on one thread.

The executor first turns every instruction of the program into a function that already knows which slots it reads and
writes. An iteration then only calls these functions. Host code is called many thousand times per second, so a lookup
per instruction would take longer than the instruction.
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
from weft.runtime.devices import Devices, to_default_device

Action = Callable[[], None]
"""Executes one instruction."""
Slots = dict[Value, Any]
"""The current value of every variable of the program."""


class StreamEnd(Protocol):
    """A replica's end of a stream."""

    @property
    def dest_device(self) -> Devices | None: ...
    def put(self, item: Any) -> None: ...
    def get(self) -> Any: ...


@dataclass
class Executor:
    """Executes the program of replica `index` of a role."""

    program: Program
    index: int
    executables: dict[Compute, Callable[..., Any]]
    sends: Mapping[Send, tuple[StreamEnd, ...]]
    receives: Mapping[Recv, tuple[StreamEnd, ...]]
    all_reduces: Mapping[Merge, AllReduce]
    devices: Devices = field(default_factory=Devices)
    slots: Slots = field(default_factory=dict)
    lane_count: int = 1
    """The number of lanes that a consumer chooses from."""
    chosen_lanes: Sequence[int] = (0,)
    """The lanes consumed in this iteration, in the order of their streams."""
    lags: Sequence[int] = ()
    """The lag of each lane consumed in this iteration."""

    def __post_init__(self) -> None:
        self.slots[self.program.replica_index] = self.devices.replicate(jnp.int32(self.index))
        self.lifetime, self.send_time = Stopwatch(self.name), Stopwatch(self.name)
        self.waits = {reason: Stopwatch(self.name) for reason in ("begin", "batch", "report")}
        self.iterations = 0

    @property
    def name(self) -> str:
        return f"{self.program.role}[{self.index}]"

    def run_iteration(self, state: Mapping[int, Any]) -> dict[int, Any]:
        """Executes the program once. Maps the leaves of the state, by index, to the program's outputs, by index."""
        self.iterations += 1
        self.slots.update({self.program.inputs[leaf]: array for leaf, array in state.items()})
        for action in self.actions:
            action()
        outputs = {index: self.slots[value] for index, value in self.program.outputs.items()}
        for value in self.program.outputs.values():
            self.slots.pop(value, None)
        return outputs

    @cached_property
    def actions(self) -> list[Action]:
        return self.build_actions(self.program.steps)

    def build_actions(self, steps: Iterable[Step]) -> list[Action]:
        return [self.builders[type(step)](self, step) for step in steps]

    def build_compute(self, step: Compute) -> Action:
        return self.build_call(self.executables[step], step)

    def build_host_call(self, step: HostCall) -> Action:
        return self.build_call(self.devices.per_device(step.function), step)

    def build_merge(self, step: Merge) -> Action:
        all_reduce, devices = self.all_reduces[step], self.devices

        def merge(*inputs: Any) -> Iterable[Any]:
            if not devices.assigned:
                return all_reduce.contribute(self.index, list(inputs))
            # The replicas may be on different devices, so the values are reduced on the default device.
            reduced = all_reduce.contribute(self.index, [to_default_device(value) for value in inputs])
            return map(devices.from_default_device, reduced)

        return self.build_call(merge, step)

    def build_call(self, function: Callable[..., Iterable[Any]], step: Compute | HostCall | Merge) -> Action:
        slots, inputs, outputs = self.slots, values_getter(step.inputs), step.outputs

        def call() -> None:
            slots.update(zip(outputs, function(*inputs(slots)), strict=True))

        return call

    def build_send(self, step: Send) -> Action:
        """Sends all payloads, ordered by device and divided evenly over the streams of the chosen lanes."""
        slots, streams = self.slots, self.sends[step]
        payloads = [values_getter([value for value in payload if value is not None]) for payload in step.payloads]

        def send() -> None:
            messages = self.split_over_devices([payload(slots) for payload in payloads])
            ends = self.streams_of_chosen_lanes(streams)
            size = len(messages) // len(ends)
            self.send_time.start()
            copies: dict[Any, Any] = {}
            for position, end in enumerate(ends):
                message = messages[position * size : (position + 1) * size]
                device = end.dest_device
                end.put([_copy_to(device, payload, copies) for payload in message] if device else message)
            self.send_time.stop()

        return send

    def build_receive(self, step: Recv) -> Action:
        """Receives all payloads, stream by stream, and divides them evenly over the devices."""
        slots, streams, device_count = self.slots, self.receives[step], self.devices.count
        from_shards = self.devices.from_shards

        def receive() -> None:
            payloads = [payload for end in self.streams_of_chosen_lanes(streams) for payload in end.get()]
            stride = len(payloads) // device_count
            for position, values in enumerate(step.payloads):
                for value, *shards in zip(values, *payloads[position::stride], strict=True):
                    if value is not None:
                        slots[value] = from_shards(shards)

        return receive

    def build_loop(self, step: Loop) -> Action:
        slots, body, indices = self.slots, self.build_actions(step.body), self.step_indices(step)
        starts, updates, results, stacks = (
            ([slot for slot, _ in pairs], values_getter([value for _, value in pairs]))
            for pairs in (step.starts, step.updates, step.results, step.stacks)
        )

        def loop() -> None:
            slots.update(zip(starts[0], starts[1](slots), strict=True))
            last_results, collected = (), []
            for index in indices:
                slots[step.index] = index
                for action in body:
                    action()
                collected.append(stacks[1](slots))
                last_results = results[1](slots)
                slots.update(zip(updates[0], updates[1](slots), strict=True))
            slots.update(zip(results[0], last_results, strict=True))
            columns = list(zip(*(collected[::-1] if step.reverse else collected), strict=True))
            slots.update(zip(stacks[0], self.devices.stack_steps(columns), strict=True))

        return loop

    builders = {
        Compute: build_compute,
        Send: build_send,
        Recv: build_receive,
        Merge: build_merge,
        HostCall: build_host_call,
        Loop: build_loop,
    }

    def split_over_devices(self, payloads: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Splits each payload into the shards of the devices: all payloads of the first device come first."""
        if self.devices.count == 1:
            return payloads
        shards = [list(zip(*map(self.devices.shards, values), strict=True)) for values in payloads]
        return [payload for device in zip(*shards, strict=True) for payload in device]

    def streams_of_chosen_lanes(self, streams: tuple[StreamEnd, ...]) -> tuple[StreamEnd, ...]:
        """Selects the streams of the chosen lanes from the streams of all lanes."""
        if len(self.chosen_lanes) == self.lane_count:
            return streams
        size = len(streams) // self.lane_count
        return tuple(end for lane in self.chosen_lanes for end in streams[lane * size : (lane + 1) * size])

    def step_indices(self, step: Loop) -> list[Any]:
        """Returns the indices of a loop's steps, in order, as arrays on the devices."""
        indices = self.devices.step_indices(step.length)
        return indices[::-1] if step.reverse else indices


def values_getter(values: Sequence[Value]) -> Callable[[Slots], tuple[Any, ...]]:
    """Returns a function that reads some slots as a tuple."""
    if len(values) > 1:
        return itemgetter(*values)
    return lambda slots: tuple(slots[value] for value in values)


def _copy_to(devices: Devices, payload: tuple[Any, ...], copies: dict[Any, Any]) -> tuple[Any, ...]:
    """Copies a payload to the receiver's device. `copies` caches each array, for several receivers on one device."""
    for array in payload:
        if (id(array), devices) not in copies:
            copies[id(array), devices] = devices.replicate(array)
    return tuple(copies[id(array), devices] for array in payload)
