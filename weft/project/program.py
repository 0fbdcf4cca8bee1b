"""A role's own program: runs of device code, and between them host code and what it exchanges with others."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.graph.graph import Value
from weft.graph.marks import marks_in

Parts = tuple[tuple[Value | None, ...], ...]


@dataclass(frozen=True, eq=False)
class Op:
    """One device operation: an equation of the loop, or part of the exchange around it (see `runtime.interpreter`)."""

    kind: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Run:
    """Operations that become one XLA program."""

    ops: tuple[Op, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Send:
    """Hand a message to another role: `parts[k]` to the k-th of the replicas that this one serves."""

    message: str
    to: str
    parts: Parts


@dataclass(frozen=True, eq=False)
class Recv:
    """Wait for a message of another role: `parts[k]` from the k-th of the replicas that serve this one."""

    message: str
    source: str
    parts: Parts


@dataclass(frozen=True, eq=False)
class Merge:
    """Replace values by their mean or sum over the replicas of this role."""

    message: str
    operation: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Host:
    """Call Python code with arrays."""

    name: str
    call: Callable[..., Sequence[Any]]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """Repeat the body. `starts` are pairs of a slot and its first value, `moves` its next, `ends` its last.

    `stacks` are pairs of a result and the value that it collects from every step.
    """

    length: int
    reverse: bool
    index: Value
    starts: tuple[tuple[Value, Value], ...]
    moves: tuple[tuple[Value, Value], ...]
    ends: tuple[tuple[Value, Value], ...]
    stacks: tuple[tuple[Value, Value], ...]
    body: tuple["Step", ...]


Step = Run | Send | Recv | Merge | Host | Loop


@dataclass(frozen=True, eq=False)
class Program:
    """What one role does for a number of iterations: it starts with leaves of the state and ends with some outputs."""

    role: str
    inputs: dict[int, Value]
    outputs: dict[int, Value]
    steps: tuple[Step, ...]
    replica: Value
    reads: frozenset[int] = frozenset()
    """The leaves that a register gives at the start of every iteration."""
    writes: frozenset[int] = frozenset()
    """The leaves that go into a register at the end of every iteration."""

    @property
    def exchanges(self) -> bool:
        """Whether the program talks to any other party while it runs."""
        steps = (step for step, _ in walk(self.steps))
        return bool(self.reads or self.writes) or any(isinstance(step, Send | Recv | Merge) for step in steps)

    @property
    def interrupted(self) -> bool:
        """Whether it is more than one compiled run."""
        return self.exchanges or any(isinstance(step, Host) for step, _ in walk(self.steps))

    @property
    def asks_replica(self) -> bool:
        """Whether some equation asks which replica runs it."""
        ops = [op for step, _ in walk(self.steps) if isinstance(step, Run) for op in step.ops if op.kind == "equation"]
        return any(mark.kind == "replica" for op in ops for mark in marks_in(op.params["eqn"]))


def walk(steps: tuple[Step, ...], times: int = 1) -> Iterator[tuple[Step, int]]:
    """Every step of a program and of the loops inside it, with how often it is done."""
    for step in steps:
        yield step, times
        if isinstance(step, Loop):
            yield from walk(step.body, times * step.length)


def reads(step: Step) -> list[Value]:
    """The values that a step looks up."""
    match step:
        case Run():
            return list(step.inputs)
        case Send():
            return [value for part in step.parts for value in part if value is not None]
        case Merge() | Host():
            return list(step.inputs)
        case Loop():
            inner = [value for body_step in step.body for value in reads(body_step)]
            return inner + [value for _, value in (*step.starts, *step.moves, *step.ends, *step.stacks)]
        case Recv():
            return []
