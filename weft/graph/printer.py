"""A graph as text: one line for each node, with the role that runs it.

Values are called by their names; where several share one, later ones get a prime.
"""

from collections import Counter
from collections.abc import Iterator

from weft.graph.graph import Graph, Node, Value


def show(graph: Graph) -> str:
    """The whole graph, loops with their bodies indented."""
    return "\n".join(_Names().lines(graph, ""))


class _Names:
    """Tells values of one name apart."""

    def __init__(self) -> None:
        self.known: dict[Value, str] = {}
        self.used: Counter[str] = Counter()

    def of(self, value: Value) -> str:
        if value.is_const:
            return str(value.const) if value.shape == () else "constant"
        if value not in self.known:
            self.known[value] = value.name + "'" * self.used[value.name]
            self.used[value.name] += 1
        return self.known[value]

    def all(self, values: tuple[Value, ...]) -> str:
        return ", ".join(map(self.of, values))

    def lines(self, graph: Graph, indent: str) -> Iterator[str]:
        for node in graph.nodes:
            if node.body is None:
                yield indent + self.line(node)
            else:
                yield from self.loop(node, node.body, indent)

    def line(self, node: Node) -> str:
        call = f"{self.all(node.outputs)} = {node.name}({self.all(node.inputs)})"
        return f"{call}  @{node.role}" if node.role else call

    def loop(self, node: Node, body: Graph, indent: str) -> Iterator[str]:
        yield f"{indent}{self.all(node.outputs)} = loop x{node.length} over {self.all(node.inputs)}:"
        for outer, inner in zip(node.inputs, body.inputs, strict=True):
            self.known[inner] = self.of(outer)
        yield from self.lines(body, indent + "    ")
        yield f"{indent}    give {self.all(body.outputs)}"
