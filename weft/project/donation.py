"""Which inputs a run may overwrite.

A run may reuse the memory of an array that nobody will look at again. Arrays pass from slot to slot without being
copied (a carry's next value becomes its current one, a message is handed over by reference), so slots that can hold the
same array are taken together: none of them may be seen by another party, each may pass it on once only and only after
its last reading, and the slot that is overwritten must be bound anew before it is read again.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.graph.graph import Value
from weft.project.program import Compute, HostCall, Loop, Merge, Program, Recv, Send, Step

Scope = tuple[Step, ...]


def find_donations(program: Program) -> dict[Compute, frozenset[Value]]:
    """For every run of a program, the inputs that it may overwrite."""
    facts = _Facts()
    facts.program(program)
    groups = facts.groups()
    safe = {value for value, group in groups.items() if all(facts.passes_on_safely(member) for member in group)}
    return {run: _fitting(run, facts.last_read(run, scope) & safe) for run, scope in facts.runs}


@dataclass
class _Facts:
    """What a program does with its slots."""

    seen_elsewhere: set[Value] = field(default_factory=set)
    copies: list[tuple[Value, Value]] = field(default_factory=list)
    starts: dict[Value, tuple[Scope, int]] = field(default_factory=dict)
    ends: dict[Value, Scope] = field(default_factory=dict)
    passed_on: Counter[Value] = field(default_factory=Counter)
    bound: dict[Value, set[int]] = field(default_factory=dict)
    readers: dict[Value, list[tuple[Scope, int]]] = field(default_factory=dict)
    runs: list[tuple[Compute, Scope]] = field(default_factory=list)

    def program(self, program: Program) -> None:
        self.scope(program.steps)
        self.seen_elsewhere.add(program.replica_index)
        self.seen_elsewhere.update(program.outputs[leaf] for leaf in program.register_writes)
        for leaf, value in program.inputs.items():
            self.bind(value, program.steps)
            if leaf in program.outputs:
                self.copies.append((program.outputs[leaf], value))
            else:
                self.seen_elsewhere.add(value)
        for leaf, value in program.outputs.items():
            self.pass_on(value, program.steps)
            if leaf not in program.inputs:
                self.seen_elsewhere.add(value)

    def scope(self, steps: Scope) -> None:
        for position, step in enumerate(steps):
            match step:
                case Compute():
                    self.runs.append((step, steps))
                    for value in step.inputs:
                        self.readers.setdefault(value, []).append((steps, position))
                    for value in step.outputs:
                        self.bind(value, steps)
                case Send() | Recv():
                    self.seen_elsewhere.update(value for part in step.payloads for value in part if value is not None)
                case Merge() | HostCall():
                    self.seen_elsewhere.update((*step.inputs, *step.outputs))
                case Loop():
                    self.loop(step, steps, position)

    def loop(self, loop: Loop, steps: Scope, position: int) -> None:
        self.seen_elsewhere.update([loop.index, *(value for pair in loop.stacks for value in pair)])
        self.copies += [(source, slot) for slot, source in (*loop.starts, *loop.updates, *loop.results)]
        for slot, source in loop.starts:
            self.bind(slot, loop.body)
            self.passed_on[source] += 1
            self.starts[source] = (steps, position)
        for slot, _ in loop.results:
            self.bind(slot, steps)
        # A value that is both moved on and given out at the end lives on in one of the two only.
        moved, ended = ([source for _, source in pairs] for pairs in (loop.updates, loop.results))
        for source in {*moved, *ended}:
            for _ in range(max(moved.count(source), ended.count(source))):
                self.pass_on(source, loop.body)
        self.scope(loop.body)

    def bind(self, value: Value, scope: Scope) -> None:
        self.bound.setdefault(value, set()).add(id(scope))

    def pass_on(self, value: Value, scope: Scope) -> None:
        self.passed_on[value] += 1
        self.ends[value] = scope

    def groups(self) -> dict[Value, set[Value]]:
        """By slot, all the slots that may hold the same array."""
        groups: dict[Value, set[Value]] = {value: {value} for value in self.values()}
        for one, other in self.copies:
            if groups[one] is not groups[other]:
                groups[one] |= groups[other]
                for member in groups[other]:
                    groups[member] = groups[one]
        return groups

    def values(self) -> Iterator[Value]:
        yield from self.seen_elsewhere
        yield from self.bound
        yield from self.readers
        for pair in self.copies:
            yield from pair

    def passes_on_safely(self, value: Value) -> bool:
        """Whether nobody else sees a slot's array, and the slot hands it on at most once, after reading it."""
        if value in self.seen_elsewhere or self.passed_on[value] > 1:
            return False
        if value in self.starts:
            scope, position = self.starts[value]
            early = all(s is scope and p < position for s, p in self.readers.get(value, ()))
            return early and self.bound.get(value) == {id(scope)}
        return value not in self.ends or self.bound.get(value) == {id(self.ends[value])}

    def last_read(self, run: Compute, scope: Scope) -> set[Value]:
        """The inputs that only this run reads, that are not passed on, and that are bound anew before it runs again."""
        return {
            value
            for value in run.inputs
            if len(self.readers[value]) == 1 and not self.passed_on[value] and self.bound.get(value) == {id(scope)}
        }


def _fitting(run: Compute, values: set[Value]) -> frozenset[Value]:
    """Those that some output of the run can take the place of."""
    places = Counter(_type(value) for value in run.outputs)
    fitting = []
    for value in run.inputs:
        if value in values and places[_type(value)]:
            places[_type(value)] -= 1
            fitting.append(value)
    return frozenset(fitting)


def _type(value: Value) -> tuple[tuple[int, ...], str]:
    return value.shape, str(value.aval.dtype)
