"""Prints a graph as text: one line for each node, with its role.

Values are printed by name. If several values have the same name, later ones get a prime.
"""

from collections import Counter
from collections.abc import Iterator

from weft.graph.graph import Graph, Node, Value


def show(graph: Graph) -> str:
    """The whole graph as text, the bodies of loops indented."""
    return "\n".join(_Printer().lines(graph, ""))


class _Printer:
    """Prints lines, and gives every value a unique name."""

    def __init__(self) -> None:
        self.assigned: dict[Value, str] = {}
        self.used: Counter[str] = Counter()

    def name(self, value: Value) -> str:
        if value.is_const:
            return str(value.const) if value.shape == () else "constant"
        if value not in self.assigned:
            self.assigned[value] = value.name + "'" * self.used[value.name]
            self.used[value.name] += 1
        return self.assigned[value]

    def names(self, values: tuple[Value, ...]) -> str:
        return ", ".join(map(self.name, values))

    def lines(self, graph: Graph, indent: str) -> Iterator[str]:
        for node in graph.nodes:
            if node.body is None:
                yield indent + self.line(node)
            else:
                yield from self.loop(node, node.body, indent)

    def line(self, node: Node) -> str:
        call = f"{self.names(node.outputs)} = {node.name}({self.names(node.inputs)})"
        return f"{call}  @{node.role}" if node.role else call

    def loop(self, node: Node, body: Graph, indent: str) -> Iterator[str]:
        yield f"{indent}{self.names(node.outputs)} = loop x{node.length} over {self.names(node.inputs)}:"
        for outer, inner in zip(node.inputs, body.inputs, strict=True):
            self.assigned[inner] = self.name(outer)
        yield from self.lines(body, indent + "    ")
        yield f"{indent}    return {self.names(body.outputs)}"
