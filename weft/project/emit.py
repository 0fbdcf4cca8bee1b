"""Emit: from the graph and its demand to a draft of each role's program.

Input: the whole graph, the demand, and a function that gives the link of every value that crosses. Output: a draft,
which is one role's part of the graph in program order. A role runs its own nodes and the glue that it needs. Glue and
receives are deferred until a step of the role uses their value. A draft sends and receives value by value; `assemble`
groups the values into messages and the operations into compiled segments."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import jax

from weft.graph.graph import Graph, Node, Value, walk
from weft.graph.marks import host_function, uses_replica_index
from weft.layout.layout import Role
from weft.project.demand import Demand
from weft.project.links import Link
from weft.project.program import HostCall, Loop, Merge, Op

ValueKey = tuple[str, int]
"""The key of a node and the index of one of its outputs. It names the same value in traces of all sizes."""
FindLink = Callable[[ValueKey, str, str], Link]
"""The link of a value from one role to another."""
FindOperations = Callable[[str, Node], tuple[str, ...]]
"""What a merge of a role does with each of its values. Empty if the role's replicas do not wait for each other."""


@dataclass(frozen=True, eq=False)
class Outgoing:
    """A value to send to another role, as one slot for each replica of it that this one is linked to."""

    key: ValueKey
    dest: str
    slots: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Incoming:
    """A value to receive from another role, as one slot for each replica of it that this one is linked to."""

    key: ValueKey
    source: str
    slots: tuple[Value | None, ...]


@dataclass(frozen=True, eq=False)
class DraftLoop:
    """A loop whose body is still a draft."""

    loop: Loop
    steps: list["DraftStep"]


DraftStep = Op | Outgoing | Incoming | Merge | HostCall | DraftLoop


@dataclass(frozen=True, eq=False)
class Draft:
    """A role's program before its values are grouped into messages."""

    role: str
    inputs: dict[int, Value]
    outputs: dict[int, Value]
    steps: list[DraftStep]
    replica_index: Value


def draft_program(
    role: Role, graph: Graph, demand: Demand, find_link: FindLink, find_operations: FindOperations
) -> Draft:
    """One role's part of a whole graph."""
    replica_index = Value(jax.typeof(jax.numpy.int32(0)), "replica")
    scope = _Scope(role, demand, find_link, find_operations, replica_index)
    scope.emit(graph)
    own_outputs = {
        index: output
        for index, output in enumerate(graph.outputs)
        if role.name in demand.producers[output] or output in demand.needed[role.name]
    }
    outputs = dict(zip(own_outputs, scope.resolve(own_outputs.values(), as_arrays=True), strict=True))
    inputs = {index: value for index, value in enumerate(graph.inputs) if value in demand.needed[role.name]}
    return Draft(role.name, inputs, outputs, scope.steps, replica_index)


@dataclass
class _Scope:
    """Collects the draft of one role for one scope: the whole graph, or the body of a loop."""

    role: Role
    demand: Demand
    find_link: FindLink
    find_operations: FindOperations
    replica_index: Value
    aliases: dict[Value, Value] = field(default_factory=dict)
    """By value of the graph: the slot that holds it, where that is another value."""
    steps: list[DraftStep] = field(default_factory=list)
    deferred: dict[Value, Callable[[], None]] = field(default_factory=dict)
    """By value: the function that emits the steps which produce it. Values of one node share the function."""

    def emit(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.body is not None:
                self.emit_loop(node, node.body)
            elif node.role == self.role.name:
                self.emit_own(node)
            elif node.role is None and self.demand.needed[self.role.name].intersection(node.outputs):
                self.defer(node.outputs, lambda node=node: self.emit_equation(node))
            self.emit_crossings(node)

    def emit_own(self, node: Node) -> None:
        operations = self.find_operations(self.role.name, node) if node.kind == "merge" else ()
        if operations and self.role.replicas > 1:
            inputs = self.resolve(node.inputs, as_arrays=True)
            self.steps.append(Merge(f"{self.role.name}:{node.key}", operations, inputs, node.outputs))
        elif node.kind == "host":
            inputs = self.resolve(node.inputs, as_arrays=True)
            self.steps.append(HostCall(node.name, host_function(node.eqn), inputs, node.outputs))
        elif node.eqn is None:
            self.aliases.update(zip(node.outputs, self.resolve(node.inputs), strict=True))
        else:
            self.emit_equation(node)

    def emit_equation(self, node: Node) -> None:
        inputs = self.resolve(node.inputs)
        if self.role.instances > 1 and uses_replica_index(node.eqn):
            op = Op("equation of a replica", (self.replica_index, *inputs), node.outputs, {"eqn": node.eqn})
        else:
            op = Op("equation", inputs, node.outputs, {"eqn": node.eqn})
        self.steps.append(op)

    def emit_crossings(self, node: Node) -> None:
        """Send the node's results that other roles need, or defer receiving those that this role needs."""
        for index, value in enumerate(node.outputs):
            for dest, source in self.demand.crossings.get(value, {}).items():
                if source == self.role.name:
                    self.send(value, (node.key, index), dest)
                elif dest == self.role.name:
                    self.defer((value,), lambda v=value, k=(node.key, index), s=source: self.receive(v, k, s))

    def send(self, value: Value, key: ValueKey, dest: str) -> None:
        link = self.find_link(key, self.role.name, dest)
        (value,) = self.resolve((value,), as_arrays=True)
        slots = (value,) * (link.fan if link.kind == "broadcast" else 1)
        if link.kind == "scatter":
            slots = _shares(value, link)
            self.steps.append(Op("split", (value,), slots, {"axis": link.axis, "parts": link.fan, "runs": link.runs}))
        self.steps.append(Outgoing(key, dest, slots))

    def receive(self, value: Value, key: ValueKey, source: str) -> None:
        link = self.find_link(key, source, self.role.name)
        if link.kind == "gather":
            slots = _shares(value, link)
            self.steps += [
                Incoming(key, source, slots),
                Op("join", slots, (value,), {"axis": link.axis, "runs": link.runs}),
            ]
        elif link.kind == "merge":
            slots = tuple(_slot(value, f"{value.name} ({index} of {link.fan})") for index in range(link.fan))
            merge = Op("merge", slots, (value,), {"operation": link.operation})
            self.steps += [Incoming(key, source, slots), merge]
        else:
            ignored = (None,) * (link.fan - 1 if link.kind == "first" else 0)
            self.steps.append(Incoming(key, source, (value, *ignored)))

    def emit_loop(self, node: Node, body: Graph) -> None:
        """This role's part of a shared loop: the same number of steps, with the role's part of the body."""
        role, demand = self.role.name, self.demand.bodies[node]
        produced = [i for i, output in enumerate(node.outputs) if role in self.demand.producers.get(output, ())]
        if not produced and not demand.needed[role] and not any(inner.role == role for inner, _ in walk(body)):
            return
        scope = _Scope(self.role, demand, self.find_link, self.find_operations, self.replica_index)
        index = Value(jax.typeof(jax.numpy.int32(0)), "step")
        starts, carry_slots = self.enter_loop(node, body, scope, index)
        scope.emit(body)
        stacked = [i for i in produced if i not in node.carried]
        collected = scope.resolve([body.outputs[i] for i in stacked], as_arrays=True)
        updated = {i: slot for i, slot in carry_slots.items() if not self.demand.hints.is_stale_read(role, slot)}
        carried = [i for i in node.carried if i in updated or i in produced]
        last = dict(zip(carried, scope.resolve([body.outputs[i] for i in carried], as_arrays=True), strict=True))
        loop = Loop(
            length=node.length,
            reverse=node.eqn.params["reverse"],
            index=index,
            starts=tuple(starts),
            updates=tuple((slot, last[i]) for i, slot in updated.items()),
            results=tuple((node.outputs[i], last[i]) for i in carried if i in produced),
            stacks=tuple(zip([node.outputs[i] for i in stacked], collected, strict=True)),
            body=(),
        )
        self.steps.append(DraftLoop(loop, scope.steps))

    def enter_loop(
        self, node: Node, body: Graph, scope: "_Scope", index: Value
    ) -> tuple[list[tuple[Value, Value]], dict[int, Value]]:
        """Bind the inputs of a loop's body that this role needs: its carry as slots with a first value."""
        needed = scope.demand.needed[self.role.name]
        used = [position for position, value in enumerate(body.inputs) if value in needed]
        outer = {position: self.resolve_one(node.inputs[position], position >= node.consts) for position in used}
        starts: list[tuple[Value, Value]] = []
        carry_slots: dict[int, Value] = {}
        for position, value in outer.items():
            inside = body.inputs[position]
            if position < node.consts:
                scope.aliases[inside] = value
            elif position < node.consts + len(node.carried):
                starts.append((inside, value))
                carry_slots[position - node.consts] = inside
            else:
                row = Op("index", (value, index), (inside,))
                scope.defer((inside,), lambda row=row: scope.steps.append(row))
        return starts, carry_slots

    def defer(self, values: Iterable[Value], emit: Callable[[], None]) -> None:
        self.deferred |= dict.fromkeys(values, emit)

    def resolve(self, values: Iterable[Value], *, as_arrays: bool = False) -> tuple[Value, ...]:
        """The slots of some values, after the steps that produce them; `as_arrays` gives constants a slot, too."""
        return tuple(self.resolve_one(value, as_arrays) for value in values)

    def resolve_one(self, value: Value, as_array: bool) -> Value:
        if value.is_const and as_array:
            slot = _slot(value, value.name)
            self.steps.append(Op("constant", (value,), (slot,)))
            return slot
        if emit := self.deferred.get(value):
            for emitted in [other for other, same in self.deferred.items() if same is emit]:
                del self.deferred[emitted]
            emit()
        return self.resolve_one(self.aliases[value], as_array) if value in self.aliases else value


def _slot(value: Value, name: str) -> Value:
    return Value(value.aval, name)


def _shares(value: Value, link: Link) -> tuple[Value, ...]:
    """Slots for the shares of a value along its batch axis."""
    assert link.axis is not None
    shape = list(value.shape)
    shape[link.axis] //= link.fan
    aval = value.aval.update(shape=tuple(shape))
    return tuple(Value(aval, f"{value.name} ({index} of {link.fan})") for index in range(link.fan))
