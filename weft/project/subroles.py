"""Subroles: a role whose host code is thread-safe is split into its independent parts.

The calls of a host object are ordered, because each call takes the token that the previous call returned. A role with
`apart=True` gives up this order (`build` then counts the tokens instead of passing them from call to call). What the
role does in an iteration may then consist of several parts without data flow between them: a replay server inserts,
samples and updates priorities. Each part becomes a role of its own, a subrole, named after its first fragment. The rest
of the projection treats a subrole like any other role.

Input: the graph and the layout. Output: the layout with subroles in place of the roles that could be split. Only the
order of host calls is given up: fragments that share an array of the state stay in the same subrole.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace

from weft.errors import WeftError
from weft.graph.graph import Graph, Node, Value, walk
from weft.graph.marks import placed_role
from weft.layout.layout import Layout, Role


def split_subroles(graph: Graph, layout: Layout, fragments: Set[str]) -> Layout:
    """The layout in which every role with `apart` is replaced by its subroles.

    `fragments` are the names of all fragments of the algorithm. The graph of a warm-up may hold only some of them.
    """
    free = frozenset(role.name for role in layout.roles if role.free)
    roles: list[Role] = []
    for role in layout.roles:
        names = {name for name in fragments if placed_role(name, layout.placement) == role.name}
        roles += _subroles(graph, role, free, names) if role.apart else (role,)
    if roles == list(layout.roles):
        return layout
    return Layout(*roles, name=layout.name, registers=layout.registers, max_lag=layout.max_lag)


def _subroles(graph: Graph, role: Role, free: frozenset[str], all_names: Set[str]) -> Iterator[Role]:
    """The subroles of a role. If the role is a consumer, the subroles that exchange values with free roles are free."""
    components = _components(graph, {role.name} | free)
    with_free = [component for component in components if any(node.role in free for node in component)]
    parts = _components(graph, {role.name})
    if not parts:
        yield role
    for part in parts:
        names = tuple(dict.fromkeys(node.name for node in part))
        subrole = role if all_names <= set(names) else replace(role, name=f"{role.name}.{_short(names)}", runs=names)
        if role.take is not None and any(part[0] in component for component in with_free):
            if len(parts) == 1:
                raise WeftError(
                    f"role {role.name} has apart=True, but its fragments ({', '.join(names)}) depend on each other "
                    "through an array of the state, so it cannot be split: keep what they share in host code (a table "
                    "on the host, replay=host)"
                )
            subrole = replace(subrole, take=None, lanes_per_replica=1, free=True)
        yield subrole


def _components(graph: Graph, roles: Set[str]) -> list[list[Node]]:
    """The calls of fragments on some roles, grouped so that no data flows from one group to another."""
    flow = _DataFlow(roles)
    flow.scan(graph)
    nodes = [node for node, _ in walk(graph) if node.role in roles and node.kind in ("fragment", "host")]
    first_call: dict[str, Node] = {}
    for node in nodes:
        # A layout places names: all calls of one name belong to one role.
        flow.connect(first_call.setdefault(node.name, node), node)
    components: dict[Node, list[Node]] = {}
    for node in nodes:
        components.setdefault(flow.representative(node), []).append(node)
    return list(components.values())


@dataclass
class _DataFlow:
    """Connects the nodes of some roles whose results reach each other, directly, through glue or through a carry."""

    roles: Set[str]
    producers: dict[Value, frozenset[Node]] = field(default_factory=dict)
    parents: dict[Node, Node] = field(default_factory=dict)
    """Union-find: connected nodes have the same representative."""

    def scan(self, graph: Graph) -> None:
        for node in graph.nodes:
            sources = frozenset[Node]().union(*(self.producers.get(value, frozenset()) for value in node.inputs))
            if node.body is not None:
                self.scan_loop(node, node.body)
            elif node.role in self.roles:
                for source in sources:
                    self.connect(source, node)
                self.producers |= dict.fromkeys(node.outputs, frozenset({node}))
            elif node.role is None:
                self.producers |= dict.fromkeys(node.outputs, sources)

    def scan_loop(self, node: Node, body: Graph) -> None:
        """Scan a loop's body until its carry brings nothing new."""
        self.propagate(zip(node.inputs, body.inputs, strict=True))
        carry = [(body.outputs[index], body.inputs[node.consts + index]) for index in node.carried]
        self.scan(body)
        while self.propagate(carry):
            self.scan(body)
        self.propagate(zip(body.outputs, node.outputs, strict=True))

    def propagate(self, pairs: Iterable[tuple[Value, Value]]) -> bool:
        """Add the producers of each first value to those of the second. Returns whether that changed anything."""
        before = sum(map(len, self.producers.values()))
        for source, target in pairs:
            known = self.producers.get(target, frozenset())
            self.producers[target] = known | self.producers.get(source, frozenset())
        return sum(map(len, self.producers.values())) > before

    def connect(self, one: Node, other: Node) -> None:
        self.parents[self.representative(one)] = self.representative(other)

    def representative(self, node: Node) -> Node:
        while node in self.parents and self.parents[node] is not node:
            node = self.parents[node]
        return node


def _short(names: Iterable[str]) -> str:
    """The first name without its dotted prefix."""
    return next(iter(names)).rpartition(".")[2]
