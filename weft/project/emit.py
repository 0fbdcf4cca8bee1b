"""From a graph and its needs to one role's part of the program.

A role goes through the global program in order and keeps its own part: what it runs, and the glue that it needs, put
off until something of its own uses it. A value from elsewhere is received when it is first used. What comes out is a
draft: its exchanges are still value by value (see `assemble`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import jax

from weft.graph.graph import Graph, Node, Value, walk
from weft.graph.marks import host_function
from weft.layout.layout import Role
from weft.project.links import Link, is_key
from weft.project.needs import Needs
from weft.project.program import Host, Loop, Merge, Op

Key = tuple[str, int]
Linked = Callable[[Key, str, str], Link]


@dataclass(frozen=True, eq=False)
class Out:
    """A value due to another role, one part for each of its replicas that this one serves."""

    key: Key
    to: str
    parts: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class In:
    """A value due from another role, one part from each of its replicas that serve this one."""

    key: Key
    source: str
    parts: tuple[Value | None, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """A loop whose body is not yet grouped into steps."""

    loop: Loop
    items: list["Item"]


Item = Op | Out | In | Merge | Host | Repeat


@dataclass(frozen=True, eq=False)
class Draft:
    """A role's program before its values are grouped into messages."""

    role: str
    inputs: dict[int, Value]
    outputs: dict[int, Value]
    items: list[Item]
    replica: Value


def draft(role: Role, graph: Graph, needs: Needs, linked: Linked) -> Draft:
    """One role's part of a whole program."""
    replica = Value(jax.typeof(jax.numpy.int32(0)), "replica")
    scope = _Scope(role, needs, linked, replica)
    scope.nodes(graph)
    mine = {
        i: out
        for i, out in enumerate(graph.outputs)
        if role.name in needs.makers[out] or out in needs.needed[role.name]
    }
    outputs = dict(zip(mine, scope.touch(mine.values(), solid=True), strict=True))
    inputs = {index: value for index, value in enumerate(graph.inputs) if value in needs.needed[role.name]}
    return Draft(role.name, inputs, outputs, scope.items, replica)


@dataclass
class _Scope:
    """The items of one role in one scope, as its nodes are gone through."""

    role: Role
    needs: Needs
    linked: Linked
    replica: Value
    renamed: dict[Value, Value] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    late: dict[Value, Callable[[], None]] = field(default_factory=dict)

    def nodes(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.body is not None:
                self.loop(node, node.body)
            elif node.role == self.role.name:
                self.own(node)
            elif node.role is None and self.needs.needed[self.role.name].intersection(node.outputs):
                self.put_off(node.outputs, lambda node=node: self.equation(node))
            self.exchange(node)

    def own(self, node: Node) -> None:
        if node.kind == "merge" and self.role.replicas > 1:
            inputs = self.touch(node.inputs, solid=True)
            self.items.append(Merge(f"{self.role.name}:{node.key}", node.name, inputs, node.outputs))
        elif node.kind == "host":
            inputs = self.touch(node.inputs, solid=True)
            self.items.append(Host(node.name, host_function(node.eqn), inputs, node.outputs))
        elif node.eqn is None:
            self.renamed.update(zip(node.outputs, self.touch(node.inputs), strict=True))
        else:
            self.equation(node)

    def equation(self, node: Node) -> None:
        self.items.append(Op("equation", self.touch(node.inputs), node.outputs, {"eqn": node.eqn}))

    def exchange(self, node: Node) -> None:
        """What goes out of a node, or comes in from it."""
        for index, value in enumerate(node.outputs):
            for to, source in self.needs.crossings.get(value, {}).items():
                if source == self.role.name:
                    self.send(value, (node.key, index), to)
                elif to == self.role.name:
                    self.put_off((value,), lambda v=value, k=(node.key, index), s=source: self.receive(v, k, s))

    def send(self, value: Value, key: Key, to: str) -> None:
        link = self.linked(key, self.role.name, to)
        (value,) = self.touch((value,), solid=True)
        parts = (value,) * (link.fan if link.how == "broadcast" else 1)
        if link.how == "scatter":
            parts = _shares(value, link)
            self.items.append(Op("split", (value,), parts, {"axis": link.axis, "parts": link.fan}))
        self.items.append(Out(key, to, parts))

    def receive(self, value: Value, key: Key, source: str) -> None:
        link = self.linked(key, source, self.role.name)
        if link.how == "gather":
            parts = _shares(value, link)
            self.items += [In(key, source, parts), Op("join", parts, (value,), {"axis": link.axis})]
        elif link.how == "merge":
            parts = tuple(_fresh(value, f"{value.name} ({part} of {link.fan})") for part in range(link.fan))
            self.items += [In(key, source, parts), Op("merge", parts, (value,), {"operation": link.operation})]
        elif link.how == "broadcast" and is_key(value.aval):
            raw = _fresh(value, value.name)
            self.items += [In(key, source, (raw,)), Op("fold", (raw, self.replica), (value,))]
        else:
            ignored = (None,) * (link.fan - 1 if link.how == "first" else 0)
            self.items.append(In(key, source, (value, *ignored)))

    def loop(self, node: Node, body: Graph) -> None:
        """This role's part of a shared loop: the same number of steps over its own projection of the body."""
        me, inner = self.role.name, self.needs.bodies[node]
        made = [i for i, output in enumerate(node.outputs) if me in self.needs.makers.get(output, ())]
        if not made and not inner.needed[me] and not any(part.role == me for part, _ in walk(body)):
            return
        used = [index for index, value in enumerate(body.inputs) if value in inner.needed[me]]
        outer = {index: self.ready(node.inputs[index], solid=index >= node.consts) for index in used}
        scope = _Scope(self.role, inner, self.linked, self.replica)
        index = Value(jax.typeof(jax.numpy.int32(0)), "step")
        starts, held = [], {}
        for position, value in outer.items():
            inside = body.inputs[position]
            if position < node.consts:
                scope.renamed[inside] = value
            elif position < node.consts + len(node.carried):
                starts.append((inside, value))
                held[position - node.consts] = inside
            else:
                take = Op("index", (value, index), (inside,))
                scope.put_off((inside,), lambda take=take: scope.items.append(take))
        scope.nodes(body)
        stacked = [i for i in made if i not in node.carried]
        collected = scope.touch([body.outputs[i] for i in stacked], solid=True)
        held = {i: inside for i, inside in held.items() if not self.needs.terms.relax(me, inside)}
        carried = [i for i in node.carried if i in held or i in made]
        last = dict(zip(carried, scope.touch([body.outputs[i] for i in carried], solid=True), strict=True))
        loop = Loop(
            length=node.length,
            reverse=node.eqn.params["reverse"],
            index=index,
            starts=tuple(starts),
            moves=tuple((held[i], last[i]) for i in held),
            ends=tuple((node.outputs[i], last[i]) for i in carried if i in made),
            stacks=tuple(zip([node.outputs[i] for i in stacked], collected, strict=True)),
            body=(),
        )
        self.items.append(Repeat(loop, scope.items))

    def put_off(self, values: Iterable[Value], emit: Callable[[], None]) -> None:
        self.late |= dict.fromkeys(values, emit)

    def touch(self, values: Iterable[Value], *, solid: bool = False) -> tuple[Value, ...]:
        """Make values available now; `solid` ones are arrays in their own right, even if constant."""
        return tuple(self.ready(value, solid) for value in values)

    def ready(self, value: Value, solid: bool) -> Value:
        if value.is_const and solid:
            made = _fresh(value, value.name)
            self.items.append(Op("constant", (value,), (made,)))
            return made
        if emit := self.late.get(value):
            for done in [other for other, same in self.late.items() if same is emit]:
                del self.late[done]
            emit()
        return self.ready(self.renamed[value], solid) if value in self.renamed else value


def _fresh(value: Value, name: str) -> Value:
    return Value(value.aval, name)


def _shares(value: Value, link: Link) -> tuple[Value, ...]:
    """The parts of a value along its batch axis."""
    assert link.axis is not None
    shape = list(value.shape)
    shape[link.axis] //= link.fan
    aval = value.aval.update(shape=tuple(shape))
    return tuple(Value(aval, f"{value.name} ({part} of {link.fan})") for part in range(link.fan))
