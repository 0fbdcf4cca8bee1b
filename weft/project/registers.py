"""Registers: which leaves of the state a role reads stale instead of waiting for them.

The training loop carries the state from one iteration to the next. If a role starts from a leaf and another role
produces the leaf's next value, the first role would wait for that value at the end of its iteration. If the layout
declares a register from the second role to the first, it does not: the reader starts each iteration from the latest
published version (a stale read), and the writer publishes its value at the end of each of its own iterations. No
message for that leaf remains in the programs.

Input: the demand without registers. Output: placement hints that name the stale reads and the register writes.
Only values carried between iterations are read stale. A value that crosses within an iteration answers a request of
that same iteration.
"""

from collections.abc import Iterator
from dataclasses import replace

from weft.graph.graph import Graph, Node, Value
from weft.layout.layout import Layout
from weft.project.demand import Demand, PlacementHints


def find_stale_reads(graph: Graph, demand: Demand, layout: Layout, leaves: int) -> PlacementHints:
    """Placement hints for the layout's registers; `leaves` is the number of leaves of the state."""
    stale_reads = _stale_reads(graph, demand, layout)
    by_reader: dict[str, frozenset[Value]] = {}
    register_writes: dict[str, frozenset[int]] = {}
    for (writer, reader), values in stale_reads.items():
        by_reader[reader] = by_reader.get(reader, frozenset()) | values
        read = frozenset(leaf for leaf in range(leaves) if graph.inputs[leaf] in values)
        register_writes[writer] = register_writes.get(writer, frozenset()) | read
    return replace(demand.hints, stale_reads=by_reader, register_writes=register_writes)


def carries_received(node: Node, body: Graph, demand: Demand, edge: tuple[str, str]) -> Iterator[int]:
    """The indices of a loop's carry whose next value the reader receives from the writer: directly, through glue, or as
    the carry of a loop in the body."""
    writer, reader = edge
    received = {value for value, receivers in demand.crossings.items() if receivers.get(reader) == writer}
    for inner in body.nodes:
        if inner.body is not None:
            carries = carries_received(inner, inner.body, demand.bodies[inner], edge)
            received.update(inner.outputs[index] for index in carries)
        elif inner.role is None and received.intersection(inner.inputs):
            received.update(inner.outputs)
    for index in node.carried:
        if body.outputs[index] in received and body.inputs[node.consts + index] in demand.needed[reader]:
            yield index


def _stale_reads(graph: Graph, demand: Demand, layout: Layout) -> dict[tuple[str, str], frozenset[Value]]:
    """By writer and reader: the values that pass through their register."""
    return {
        (writer, reader): frozenset(
            value
            for node in graph.nodes
            if node.body is not None
            for index in carries_received(node, node.body, demand.bodies[node], (writer, reader))
            for value in (node.inputs[node.consts + index], node.body.inputs[node.consts + index])
        )
        for writer, reader in layout.registers
    }
