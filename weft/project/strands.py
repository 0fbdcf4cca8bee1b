"""Strands: a role that falls into independent parts becomes several.

The calls of a host object follow each other, because each takes the token that the last one gave. A layout may say of a
role that its host code can be called from several threads at once; then nothing hangs on its tokens (see `build`), and
what is left of the role's part in an iteration may fall apart: a replay server inserts, samples and changes priorities,
and none of these gives the others anything. Each part becomes a role of its own, called after what it runs, and goes on
when it can: in the projection it is like any other role, and what they exchange is a stream.

Only tokens are dropped. What is computed from an array of the state still waits for whoever computes that array: parts
that share one stay together.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace

from weft.errors import WeftError
from weft.graph.graph import Graph, Node, Value, walk
from weft.graph.marks import placed_as
from weft.layout.layout import Layout, Role


def split_roles(graph: Graph, layout: Layout, fragments: Set[str]) -> Layout:
    """The layout, with a role for each independent part of those whose parts may go apart.

    `fragments` are those of the whole loop: in a warm-up only some of a role's parts may be there.
    """
    free = frozenset(role.name for role in layout.roles if role.free)
    roles: list[Role] = []
    for role in layout.roles:
        names = {name for name in fragments if placed_as(name, layout.placement) == role.name}
        roles += _parts(graph, role, free, names) if role.apart else (role,)
    if roles == list(layout.roles):
        return layout
    return Layout(*roles, name=layout.name, registers=layout.registers, max_lag=layout.max_lag)


def _parts(graph: Graph, role: Role, free: frozenset[str], all_names: Set[str]) -> Iterator[Role]:
    """The parts of a role; if it takes, those that exchange something with a free role are free too."""
    beside = [group for group in _components(graph, {role.name} | free) if any(node.role in free for node in group)]
    groups = _components(graph, {role.name})
    if not groups:
        yield role
    for group in groups:
        names = tuple(dict.fromkeys(node.name for node in group))
        part = role if all_names <= set(names) else replace(role, name=f"{role.name}.{_short(names)}", runs=names)
        if role.take is not None and any(group[0] in others for others in beside):
            if len(groups) == 1:
                raise WeftError(
                    f"the parts of {role.name} ({', '.join(names)}) hang together by an array of the state, so that "
                    "they cannot go apart: keep what they share in host code (a table on the host, replay=host)"
                )
            part = replace(part, take=None, of=1, free=True)
        yield part


def _components(graph: Graph, roles: Set[str]) -> list[list[Node]]:
    """The fragments of some roles, together where what one made comes to another."""
    flow = _Flow(roles)
    flow.scope(graph)
    nodes = [node for node, _ in walk(graph) if node.role in roles and node.kind in ("fragment", "host")]
    named: dict[str, Node] = {}
    for node in nodes:
        # A layout places names, so that what has one name has one place.
        flow.tie(named.setdefault(node.name, node), node)
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        groups.setdefault(flow.root(node), []).append(node)
    return list(groups.values())


@dataclass
class _Flow:
    """Where the results of some roles' nodes come to others of them, by way of glue and of what loops carry."""

    roles: Set[str]
    makers: dict[Value, frozenset[Node]] = field(default_factory=dict)
    tied: dict[Node, Node] = field(default_factory=dict)

    def scope(self, graph: Graph) -> None:
        for node in graph.nodes:
            given = frozenset[Node]().union(*(self.makers.get(value, frozenset()) for value in node.inputs))
            if node.body is not None:
                self.loop(node, node.body)
            elif node.role in self.roles:
                for maker in given:
                    self.tie(maker, node)
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

    def tie(self, one: Node, other: Node) -> None:
        self.tied[self.root(one)] = self.root(other)

    def root(self, node: Node) -> Node:
        while node in self.tied and self.tied[node] is not node:
            node = self.tied[node]
        return node


def _short(names: Iterable[str]) -> str:
    """What a part is called: by its first fragment, without the dotted beginning."""
    return next(iter(names)).rpartition(".")[2]
