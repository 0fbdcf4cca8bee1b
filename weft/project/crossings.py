"""Crossings: the link and the edge of every value that crosses from one role to another.

Input: the views, and which values vary between replicas. Output: for every crossing, its link (see `links`) and, for
people who read the projection, an edge with its size and rate.
"""

from dataclasses import dataclass

from weft.graph.graph import Value, walk
from weft.layout.layout import Layout
from weft.project.emit import ValueKey
from weft.project.links import Edge, Link, link
from weft.project.varying import Variation
from weft.project.views import View


@dataclass
class Crossings:
    """The links and edges of a projection."""

    layout: Layout
    views: dict[str, View]
    variation: Variation
    batch: int
    """The total number of environments."""

    def link(self, key: ValueKey, source: str, dest: str) -> Link:
        sent, received = self.views[source].values[key], self.views[dest].values[key]
        roles = self.layout.role(source), self.layout.role(dest)
        varying = roles[0].instances > 1 and self.variation.varies(source, key)
        merge = self.merge_operation(received, dest) if varying else ""
        return link(sent.name, *roles, (sent.aval, received.aval), batch=self.batch, varying=varying, merge=merge)

    def merge_operation(self, value: Value, dest: str) -> str:
        """The operation by which a role merges a value from several replicas, if it uses the value only for that."""
        uses = [node for node, _ in walk(self.views[dest].graph) if value in node.inputs and node.role in (None, dest)]
        operations = {node.name if node.kind == "merge" and node.role == dest else "" for node in uses}
        return operations.pop() if len(operations) == 1 else ""

    def edges(self, length: int) -> tuple[Edge, ...]:
        """The edges of a program of `length` iterations."""
        crossings = next(iter(self.views.values())).crossings()
        return tuple(
            Edge(
                source,
                dest,
                self.views[dest].values[key].name,
                times // length,
                self.views[dest].values[key].bytes * self.layout.role(dest).instances,
                self.link(key, source, dest),
            )
            for (key, source, dest), times in crossings.items()
        )
