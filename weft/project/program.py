"""The program of one role: what each replica of the role executes, step by step.

A program is a tree of steps. `Compute` is a compiled segment of device code. Between compiled segments the executor
calls Python (`HostCall`), exchanges messages with other roles (`Send`, `Recv`), merges values over the replicas of its
own role (`Merge`) and repeats a body of steps (`Loop`). Steps pass arrays through slots: a slot is a `Value`, and every
slot is written before it is read. Leaves of the state and outputs are identified by their index in the traced loop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.graph.graph import Value

Payloads = tuple[tuple[Value | None, ...], ...]
"""The slots of a message, for each replica at the other end. A received value without a slot (None) is ignored."""


@dataclass(frozen=True, eq=False)
class Op:
    """One device operation: an equation of the loop, or a conversion around a message (see `runtime.interpreter`)."""

    kind: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Compute:
    """A compiled segment: operations that become one XLA program."""

    ops: tuple[Op, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Send:
    """Send a message to another role: `payloads[k]` goes to the k-th replica that this one is linked to."""

    message: str
    dest: str
    payloads: Payloads


@dataclass(frozen=True, eq=False)
class Recv:
    """Wait for a message from another role: `payloads[k]` comes from the k-th replica that this one is linked to."""

    message: str
    source: str
    payloads: Payloads


@dataclass(frozen=True, eq=False)
class Merge:
    """Combine each value with those of the other replicas of this role."""

    message: str
    operations: tuple[str, ...]
    """By value: `sum`, `mean`, `first` (the values are equal) or `gather AXIS`."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class HostCall:
    """Call a Python function with arrays."""

    name: str
    function: Callable[..., Sequence[Any]]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """Repeat the body `length` times. The fields below hold pairs of a slot and the value that is written to it."""

    length: int
    reverse: bool
    index: Value
    """The slot of the step index."""
    starts: tuple[tuple[Value, Value], ...]
    """Written before the first step: the carry."""
    updates: tuple[tuple[Value, Value], ...]
    """Written after every step: the carry."""
    results: tuple[tuple[Value, Value], ...]
    """Written after the last step."""
    stacks: tuple[tuple[Value, Value], ...]
    """Written after the last step: the values of all steps, stacked along a new leading axis."""
    body: tuple["Step", ...]


Step = Compute | Send | Recv | Merge | HostCall | Loop


@dataclass(frozen=True, eq=False)
class Program:
    """All steps of one role for a number of iterations, from leaves of the state to outputs of the traced loop."""

    role: str
    inputs: dict[int, Value]
    """The slots of the state's leaves that the role starts from."""
    outputs: dict[int, Value]
    """The slots of the outputs (state leaves, then metrics) that the role ends with."""
    steps: tuple[Step, ...]
    replica_index: Value
    """The slot of the replica's index."""
    register_reads: frozenset[int] = frozenset()
    """The leaves that are read from a register at the start of every iteration."""
    register_writes: frozenset[int] = frozenset()
    """The leaves that are written to a register at the end of every iteration."""

    @property
    def communicates(self) -> bool:
        """Whether the program exchanges anything with other replicas or roles."""
        steps = (step for step, _ in walk(self.steps))
        messages = any(isinstance(step, Send | Recv | Merge) for step in steps)
        return messages or bool(self.register_reads or self.register_writes)

    @property
    def multi_segment(self) -> bool:
        """Whether the program consists of more than one compiled segment."""
        return self.communicates or any(isinstance(step, HostCall) for step, _ in walk(self.steps))


def walk(steps: tuple[Step, ...], times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yields every step of a program and of the loops inside it, with the number of times that it is executed."""
    for step in steps:
        yield step, times
        if isinstance(step, Loop):
            yield from walk(step.body, times * step.length)


def values_read(step: Step) -> list[Value]:
    """The slots that a step reads, those of a loop's body included."""
    match step:
        case Compute():
            return list(step.inputs)
        case Send():
            return [value for payload in step.payloads for value in payload if value is not None]
        case Merge() | HostCall():
            return list(step.inputs)
        case Loop():
            inner = [value for body_step in step.body for value in values_read(body_step)]
            return inner + [value for _, value in (*step.starts, *step.updates, *step.results, *step.stacks)]
        case Recv():
            return []
