"""Strands: a role that falls into independent parts becomes several.

The calls of a host object follow each other, because each takes the token that the last one gave. A layout may say of a
role that its host code can be called from several threads at once; then nothing hangs on its tokens (see `build`), and
what is left of the role's part in an iteration may fall apart: a replay server inserts, samples and changes priorities,
and none of these gives the others anything. Each part becomes a role of its own, called after what it runs, and goes on
when it can: in the projection it is like any other role, and what they exchange is a stream.

Only tokens are dropped. What is computed from an array of the state still waits for whoever computes that array: parts
that share one stay together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from weft.graph.graph import Graph, Node, Value, walk
from weft.layout.layout import Layout, Role


def split_roles(graph: Graph, layout: Layout) -> Layout:
    """The layout, with a role for each independent part of those whose parts may go apart."""
    roles = [part for role in layout.roles for part in (_parts(graph, role) if role.apart else (role,))]
    if len(roles) == len(layout.roles):
        return layout
    return Layout(*roles, name=layout.name, registers=layout.registers, max_lag=layout.max_lag)


def _parts(graph: Graph, role: Role) -> Iterator[Role]:
    groups = _components(graph, role.name)
    if len(groups) < 2:
        yield role
        return
    for names in groups:
        yield replace(role, name=f"{role.name}.{_short(names)}", runs=tuple(names))


def _components(graph: Graph, role: str) -> list[list[str]]:
    """The names of a role's fragments, together where what one made comes to another."""
    flow = _Flow(role)
    flow.scope(graph)
    groups: dict[Node, list[str]] = {}
    for node, _ in walk(graph):
        if node.role == role and node.kind == "fragment":
            names = groups.setdefault(flow.root(node), [])
            names += [node.name] if node.name not in names else []
    return list(groups.values())


@dataclass
class _Flow:
    """Where the results of a role's nodes come to other nodes of it, by way of glue and of what loops carry."""

    role: str
    makers: dict[Value, frozenset[Node]] = field(default_factory=dict)
    tied: dict[Node, Node] = field(default_factory=dict)

    def scope(self, graph: Graph) -> None:
        for node in graph.nodes:
            given = frozenset[Node]().union(*(self.makers.get(value, frozenset()) for value in node.inputs))
            if node.body is not None:
                self.loop(node, node.body)
            elif node.role == self.role:
                for maker in given:
                    self.tied[self.root(maker)] = self.root(node)
                self.makers |= dict.fromkeys(node.outputs, frozenset({node}))
            elif node.role is None:
                self.makers |= dict.fromkeys(node.outputs, given)

    def loop(self, node: Node, body: Graph) -> None:
        """A loop's body, gone through again until nothing new is carried."""
        self.pass_on(zip(node.inputs, body.inputs, strict=True))
        carry = [(body.outputs[index], body.inputs[node.consts + index]) for index in node.carried]
        self.scope(body)
        while self.pass_on(carry):
            self.scope(body)
        self.pass_on(zip(body.outputs, node.outputs, strict=True))

    def pass_on(self, pairs: Iterable[tuple[Value, Value]]) -> bool:
        """What one value holds, another holds too; whether that is new."""
        before = sum(map(len, self.makers.values()))
        for one, other in pairs:
            self.makers[other] = self.makers.get(other, frozenset()) | self.makers.get(one, frozenset())
        return sum(map(len, self.makers.values())) > before

    def root(self, node: Node) -> Node:
        while node in self.tied and self.tied[node] is not node:
            node = self.tied[node]
        return node


def _short(names: Iterable[str]) -> str:
    """What a part is called: by its first fragment, without the dotted beginning."""
    return next(iter(names)).rpartition(".")[2]
