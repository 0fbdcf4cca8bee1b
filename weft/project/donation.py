"""Donation: which inputs a compiled segment may overwrite.

A segment may reuse the memory of an array that nothing reads afterwards. Arrays pass from slot to slot without a copy
(a carry's next value becomes its current one; a message hands its arrays over by reference). Slots that may hold the
same array are therefore analysed together, as aliases. Input: a program. Output: for every segment, the slots whose
arrays it may overwrite. Such an array satisfies three conditions:

- none of its slots is visible elsewhere: sent, received, merged, passed to host code or published;
- each of its slots passes the array on at most once, after the slot's last read;
- the overwritten slot is written again before it is read again.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.graph.graph import Value
from weft.project.program import Compute, HostCall, Loop, Merge, Program, Recv, Send, Step

Scope = tuple[Step, ...]


def find_donations(program: Program) -> dict[Compute, frozenset[Value]]:
    """For every compiled segment of a program, the inputs that it may overwrite."""
    slots = _Slots()
    slots.scan_program(program)
    groups = slots.alias_groups()
    safe = {value for value, group in groups.items() if all(slots.passes_on_safely(member) for member in group)}
    return {segment: _matching(segment, slots.last_read(segment, scope) & safe) for segment, scope in slots.segments}


@dataclass
class _Slots:
    """How a program uses its slots."""

    visible: set[Value] = field(default_factory=set)
    """The slots whose arrays are used outside compiled segments."""
    aliases: list[tuple[Value, Value]] = field(default_factory=list)
    """Pairs of slots between which an array passes without a copy."""
    entered_at: dict[Value, tuple[Scope, int]] = field(default_factory=dict)
    """By slot that starts a loop's carry: the scope and the position of the loop."""
    passed_on_in: dict[Value, Scope] = field(default_factory=dict)
    """By slot: the scope at whose end its array passes to another slot."""
    passed_on: Counter[Value] = field(default_factory=Counter)
    """By slot: how often its array passes to another slot."""
    written_in: dict[Value, set[int]] = field(default_factory=dict)
    """By slot: the identities of the scopes that write it."""
    readers: dict[Value, list[tuple[Scope, int]]] = field(default_factory=dict)
    """By slot: the scope and the position of every segment that reads it."""
    segments: list[tuple[Compute, Scope]] = field(default_factory=list)

    def scan_program(self, program: Program) -> None:
        self.scan(program.steps)
        self.visible.add(program.replica_index)
        self.visible.update(program.outputs[leaf] for leaf in program.register_writes)
        for leaf, value in program.inputs.items():
            self.write(value, program.steps)
            if leaf in program.outputs:
                self.aliases.append((program.outputs[leaf], value))
            else:
                self.visible.add(value)
        for leaf, value in program.outputs.items():
            self.pass_on(value, program.steps)
            if leaf not in program.inputs:
                self.visible.add(value)

    def scan(self, steps: Scope) -> None:
        for position, step in enumerate(steps):
            match step:
                case Compute():
                    self.segments.append((step, steps))
                    for value in step.inputs:
                        self.readers.setdefault(value, []).append((steps, position))
                    for value in step.outputs:
                        self.write(value, steps)
                case Send() | Recv():
                    self.visible.update(value for payload in step.payloads for value in payload if value is not None)
                case Merge() | HostCall():
                    self.visible.update((*step.inputs, *step.outputs))
                case Loop():
                    self.scan_loop(step, steps, position)

    def scan_loop(self, loop: Loop, steps: Scope, position: int) -> None:
        self.visible.update([loop.index, *(value for pair in loop.stacks for value in pair)])
        self.aliases += [(source, slot) for slot, source in (*loop.starts, *loop.updates, *loop.results)]
        for slot, source in loop.starts:
            self.write(slot, loop.body)
            self.passed_on[source] += 1
            self.entered_at[source] = (steps, position)
        for slot, _ in loop.results:
            self.write(slot, steps)
        # The last step's value of a carry is both an update and a result, but only the result remains in use.
        moved, ended = ([source for _, source in pairs] for pairs in (loop.updates, loop.results))
        for source in {*moved, *ended}:
            for _ in range(max(moved.count(source), ended.count(source))):
                self.pass_on(source, loop.body)
        self.scan(loop.body)

    def write(self, value: Value, scope: Scope) -> None:
        self.written_in.setdefault(value, set()).add(id(scope))

    def pass_on(self, value: Value, scope: Scope) -> None:
        self.passed_on[value] += 1
        self.passed_on_in[value] = scope

    def alias_groups(self) -> dict[Value, set[Value]]:
        """For every slot, all slots that may hold the same array."""
        groups: dict[Value, set[Value]] = {value: {value} for value in self.all_slots()}
        for one, other in self.aliases:
            if groups[one] is not groups[other]:
                groups[one] |= groups[other]
                for member in groups[other]:
                    groups[member] = groups[one]
        return groups

    def all_slots(self) -> Iterator[Value]:
        yield from self.visible
        yield from self.written_in
        yield from self.readers
        for pair in self.aliases:
            yield from pair

    def passes_on_safely(self, value: Value) -> bool:
        """Whether a slot's array is invisible elsewhere and is passed on at most once, after the slot's last read."""
        if value in self.visible or self.passed_on[value] > 1:
            return False
        if value in self.entered_at:
            scope, position = self.entered_at[value]
            early = all(s is scope and p < position for s, p in self.readers.get(value, ()))
            return early and self.written_in.get(value) == {id(scope)}
        return value not in self.passed_on_in or self.written_in.get(value) == {id(self.passed_on_in[value])}

    def last_read(self, segment: Compute, scope: Scope) -> set[Value]:
        """The inputs that only this segment reads, that are not passed on, and that are rewritten for its next run."""
        return {
            value
            for value in segment.inputs
            if len(self.readers[value]) == 1 and not self.passed_on[value] and self.written_in.get(value) == {id(scope)}
        }


def _matching(segment: Compute, values: set[Value]) -> frozenset[Value]:
    """The values whose memory some output of the segment can use: one of the same shape and dtype."""
    available = Counter(_type(value) for value in segment.outputs)
    matching = []
    for value in segment.inputs:
        if value in values and available[_type(value)]:
            available[_type(value)] -= 1
            matching.append(value)
    return frozenset(matching)


def _type(value: Value) -> tuple[tuple[int, ...], str]:
    return value.shape, str(value.aval.dtype)
