"""Which edges of the state are registers.

The state is what the training loop carries from one iteration to the next. Where a role starts from a leaf whose next
value another role sends it, it must wait for that value at the end of its iteration. A layout may say that it need not:
then the leaf is *relaxed* for the reader. It goes on with the newest value that there is, and nothing of it is left in
the programs: the reader starts an iteration from what the register holds, and the maker puts there what it ends with.

An edge within an iteration is never relaxed: its value answers something that was asked in that same iteration.
"""

from collections.abc import Iterator
from dataclasses import replace

from weft.graph.graph import Graph, Node, Value
from weft.layout.layout import Layout
from weft.project.needs import Needs, Terms


def relax(graph: Graph, needs: Needs, layout: Layout, leaves: int) -> Terms:
    """The terms under which what registers give need not be waited for, and their makers end with it."""
    relaxed = _relaxed(graph, needs, layout)
    written: dict[str, frozenset[int]] = {}
    for maker, reader in layout.registers:
        read = frozenset(leaf for leaf in range(leaves) if graph.inputs[leaf] in relaxed[reader])
        written[maker] = written.get(maker, frozenset()) | read
    return replace(needs.terms, relaxed=relaxed, written=written)


def _relaxed(graph: Graph, needs: Needs, layout: Layout) -> dict[str, frozenset[Value]]:
    return {
        reader: frozenset(
            value
            for node in graph.nodes
            if node.body is not None
            for index in late_carries(node, node.body, needs.bodies[node], (maker, reader))
            for value in (node.inputs[node.consts + index], node.body.inputs[node.consts + index])
        )
        for maker, reader in layout.registers
    }


def late_carries(node: Node, body: Graph, needs: Needs, edge: tuple[str, str]) -> Iterator[int]:
    """What is carried to the next step whose value comes to the reader from the maker, itself or by way of glue."""
    maker, reader = edge
    late = {value for value, receivers in needs.crossings.items() if receivers.get(reader) == maker}
    for inner in body.nodes:
        if inner.role is None and inner.body is None and late.intersection(inner.inputs):
            late.update(inner.outputs)
    for index in node.carried:
        if body.outputs[index] in late and body.inputs[node.consts + index] in needs.needed[reader]:
            yield index
