"""The graph of a traced loop: values, and the nodes that produce them, in program order.

There is one node type. A node is a call of a fragment or of host code, a loop, a merge over replicas, or glue. It has a
role if the layout places it, and a body if it is a shared loop, which several roles execute together. Everything else
about a node is in its `eqn`, the JAX equation that it was built from.

Invariant, tested by `check`: every value is produced once and before its first use, and a loop's carry keeps its shape
and dtype.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft.graph.marks import scan_shape

Kind = Literal["fragment", "host", "loop", "merge", "glue"]


@dataclass(frozen=True, eq=False)
class Value:
    """One array of the program. A value with a `const` is a constant: every role has it, and it never crosses."""

    aval: Any
    name: str
    const: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.aval.dtype.itemsize

    @property
    def is_const(self) -> bool:
        return self.const is not None


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of the program."""

    kind: Kind
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    eqn: Any
    """The JAX equation. None if the node only names the results of a fragment whose body was inlined before it."""
    key: str = ""
    """Identifies the node in traces of all sizes: its name and its position among the calls of that name around it."""
    role: str | None = None
    """The role that runs the node. None for glue, which runs on every role that needs its result."""
    body: "Graph | None" = None

    @property
    def carried(self) -> range:
        """The indices of a loop's carry among its outputs. Among its inputs the carry follows the constants."""
        return range(scan_shape(self.eqn)[1])

    @property
    def consts(self) -> int:
        """The number of a loop's constant inputs."""
        return scan_shape(self.eqn)[0]

    @property
    def length(self) -> int:
        return self.eqn.params["length"]


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in program order, and the inputs and outputs of the whole."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]


def walk(graph: Graph, times: int = 1) -> Iterator[tuple[Node, int]]:
    """Yields every node of the graph and of its shared loops, with the number of times that it runs."""
    for node in graph.nodes:
        yield node, times
        if node.body is not None:
            yield from walk(node.body, times * node.length)


def check(graph: Graph) -> None:
    """Assert that the graph is well formed (see the invariant above)."""
    _check_scope(graph, set())
    keys = [node.key for node, _ in walk(graph) if node.key]
    assert len(keys) == len(set(keys)), f"two placed nodes share a key: {sorted(keys)}"


def _check_scope(graph: Graph, produced: set[Value]) -> None:
    _produce(produced, graph.inputs, "the inputs")
    for node in graph.nodes:
        _use(produced, node.inputs, node.name)
        if node.body is not None:
            _check_loop(node, node.body, produced)
        assert bool(node.key) or node.role is None or node.kind == "glue", f"{node.name} is placed but has no key"
        _produce(produced, node.outputs, node.name)
    _use(produced, graph.outputs, "the outputs")


def _check_loop(node: Node, body: Graph, produced: set[Value]) -> None:
    assert len(body.inputs) == len(node.inputs) and len(body.outputs) == len(node.outputs), f"{node.key}: arity"
    for index in node.carried:
        before, after = body.inputs[node.consts + index], body.outputs[index]
        assert before.aval.shape == after.aval.shape, f"{node.key}: {before.name} changes its shape"
        assert before.aval.dtype == after.aval.dtype, f"{node.key}: {before.name} changes its dtype"
    _check_scope(body, set(produced))


def _produce(produced: set[Value], values: tuple[Value, ...], producer: str) -> None:
    for value in values:
        assert value not in produced and not value.is_const, f"{value.name} is produced twice, again by {producer}"
        produced.add(value)


def _use(produced: set[Value], values: tuple[Value, ...], user: str) -> None:
    for value in values:
        assert value.is_const or value in produced, f"{user} uses {value.name} before it is produced"
