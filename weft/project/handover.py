"""State of the lanes that whoever takes needs too.

In step, a role that needs a leaf of the state keeps it: whoever makes its next value sends that at the end of an
iteration, for the next one. A role that takes is with other lanes in its next iteration, so it cannot keep what is a
lane's: it is handed over at the start of every iteration, by the lane that is taken. In the graph that is a node of the
lane's role that names the leaf; everybody else uses what it names.

A policy's memory is such a leaf: an actor acts with it, and a learner goes through the rollout again from where it was.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from weft.graph.graph import Graph, Node, Value
from weft.project.needs import Needs
from weft.project.registers import late_carries


def hand_over(graph: Graph, needs: Needs, lanes: Sequence[str], taker: str, batched: Set[int]) -> Graph:
    """The graph, where what the roles of the lanes carry and the taker needs crosses at the start of an iteration.

    `batched` are the leaves with a row for every environment: a lane has its own, whether or not they ever change.
    """
    rows = {graph.inputs[leaf] for leaf in batched}
    nodes = [
        node if node.body is None else _handed(node, node.body, needs.bodies[node], lanes, taker, rows)
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def _handed(node: Node, body: Graph, needs: Needs, lanes: Sequence[str], taker: str, rows: Set[Value]) -> Node:
    named = {node.consts + index: role for role in lanes for index in late_carries(node, body, needs, (role, taker))}
    named |= dict.fromkeys(_kept(node, body, needs, taker, rows), lanes[0])
    given = {body.inputs[place]: Value(body.inputs[place].aval, body.inputs[place].name) for place in named}
    first = tuple(
        Node("glue", "start", (start,), (value,), None, key=f"{node.key}/start of {place}", role=named[place])
        for place, (start, value) in zip(named, given.items(), strict=True)
    )
    rest = tuple(
        replace(inner, inputs=tuple(given.get(value, value) for value in inner.inputs)) for inner in body.nodes
    )
    return replace(node, body=replace(body, nodes=first + rest))


def _kept(node: Node, body: Graph, needs: Needs, taker: str, rows: Set[Value]) -> Iterator[int]:
    """The places of what the taker needs of every environment and nobody changes."""
    stay = [node.consts + index for index in node.carried if body.outputs[index] is body.inputs[node.consts + index]]
    for place in (*range(node.consts), *stay):
        if node.inputs[place] in rows and body.inputs[place] in needs.needed[taker]:
            yield place
