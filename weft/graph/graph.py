"""The program as data: values, and the nodes that make them in program order.

There is one kind of node. It is a call of a fragment or of host code, a loop, a merge over replicas or glue; it has a
role if a layout places it, and a body if it is a loop that several parties run together. Everything else about it is in
its `eqn`, the JAX equation that it came from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from weft.graph.marks import scan_shape

Kind = Literal["fragment", "host", "loop", "merge", "glue"]


@dataclass(frozen=True, eq=False)
class Value:
    """One array of the program. A value with a `const` is known to everybody and never crosses."""

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
    """One step of the program.

    `key` names a placed node by its place among the fragment calls around it, so that the same call is found again in a
    trace at another batch size, whatever glue lies between. `role` is who runs it; glue without a role is run by
    whoever needs it. `eqn` is None where a fragment's own body stands in line before the node: the node then only names
    its results.
    """

    kind: Kind
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    eqn: Any
    key: str = ""
    role: str | None = None
    body: "Graph | None" = None

    @property
    def carried(self) -> range:
        """The outputs of a loop that are its carry; they follow its constants among the inputs."""
        return range(scan_shape(self.eqn)[1])

    @property
    def consts(self) -> int:
        return scan_shape(self.eqn)[0]

    @property
    def length(self) -> int:
        return self.eqn.params["length"]


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in program order, with what they start from and what they end with."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]


def walk(graph: Graph, times: int = 1) -> Iterator[tuple[Node, int]]:
    """Every node of the graph and of the loops inside it, with how often it runs."""
    for node in graph.nodes:
        yield node, times
        if node.body is not None:
            yield from walk(node.body, times * node.length)


def check(graph: Graph) -> None:
    """Fail unless the graph is well formed: values made once and before use, types agreeing through loops."""
    _check_scope(graph, set())
    keys = [node.key for node, _ in walk(graph) if node.key]
    assert len(keys) == len(set(keys)), f"two placed nodes share a key: {sorted(keys)}"


def _check_scope(graph: Graph, made: set[Value]) -> None:
    _make(made, graph.inputs, "the inputs")
    for node in graph.nodes:
        _use(made, node.inputs, node.name)
        if node.body is not None:
            _check_loop(node, node.body, made)
        assert bool(node.key) or node.role is None or node.kind == "glue", f"{node.name} is placed but has no key"
        _make(made, node.outputs, node.name)
    _use(made, graph.outputs, "the outputs")


def _check_loop(node: Node, body: Graph, made: set[Value]) -> None:
    assert len(body.inputs) == len(node.inputs) and len(body.outputs) == len(node.outputs), f"{node.key}: arity"
    for index in node.carried:
        before, after = body.inputs[node.consts + index], body.outputs[index]
        assert before.aval.shape == after.aval.shape, f"{node.key}: {before.name} changes its shape"
        assert before.aval.dtype == after.aval.dtype, f"{node.key}: {before.name} changes its type"
    _check_scope(body, set(made))


def _make(made: set[Value], values: tuple[Value, ...], where: str) -> None:
    for value in values:
        assert value not in made and not value.is_const, f"{value.name} is made twice, again by {where}"
        made.add(value)


def _use(made: set[Value], values: tuple[Value, ...], where: str) -> None:
    for value in values:
        assert value.is_const or value in made, f"{where} uses {value.name} before it is made"
