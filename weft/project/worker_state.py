"""Sending the workers' own state to the consumer.

Without lanes, a role that needs a leaf of the state keeps it from one iteration to the next. A consumer (a role with
`take`) serves other lanes in each iteration, so it cannot keep a leaf that belongs to a lane. Instead, the lane sends
the leaf to the consumer at the start of every iteration. A recurrent policy's memory is an example: an actor acts with
it, and the learner replays the rollout from its first value.

Input: a graph and its demand. Output: the graph with a node for each such leaf at the start of the loop's body. The
node belongs to the lane's role and copies the leaf to a new value; all other nodes of the body read that value, so the
analysis of the new graph finds an ordinary crossing."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from weft.graph.graph import Graph, Node, Value
from weft.project.demand import Demand
from weft.project.registers import carries_received


def send_worker_state(graph: Graph, demand: Demand, lanes: Sequence[str], consumer: str, batched: Set[int]) -> Graph:
    """The graph in which the consumer receives the lanes' state at the start of an iteration.

    `lanes` are the roles that lanes consist of. `batched` are the leaves with a row for every environment: every lane
    has its own rows, also of a leaf that never changes.
    """
    rows = {graph.inputs[leaf] for leaf in batched}
    nodes = [
        node if node.body is None else _send_at_start(node, node.body, demand.bodies[node], lanes, consumer, rows)
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def _send_at_start(
    node: Node, body: Graph, demand: Demand, lanes: Sequence[str], consumer: str, rows: Set[Value]
) -> Node:
    senders = {
        node.consts + index: role for role in lanes for index in carries_received(node, body, demand, (role, consumer))
    }
    senders |= dict.fromkeys(_unchanged(node, body, demand, consumer, rows), lanes[0])
    sent = {body.inputs[index]: Value(body.inputs[index].aval, body.inputs[index].name) for index in senders}
    first = tuple(
        Node("glue", "start", (leaf,), (value,), None, key=f"{node.key}/start of {index}", role=senders[index])
        for index, (leaf, value) in zip(senders, sent.items(), strict=True)
    )
    rest = tuple(replace(inner, inputs=tuple(sent.get(value, value) for value in inner.inputs)) for inner in body.nodes)
    return replace(node, body=replace(body, nodes=first + rest))


def _unchanged(node: Node, body: Graph, demand: Demand, consumer: str, rows: Set[Value]) -> Iterator[int]:
    """The indices of the loop's inputs with a row per environment that no step changes and the consumer needs."""
    constant_carries = [
        node.consts + index for index in node.carried if body.outputs[index] is body.inputs[node.consts + index]
    ]
    for index in (*range(node.consts), *constant_carries):
        if node.inputs[index] in rows and body.inputs[index] in demand.needed[consumer]:
            yield index
