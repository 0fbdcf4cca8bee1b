"""Crossings: the link and the edge of every value that crosses from one role to another.

Input: the views, and the sharding of each value on each role. Output: for every crossing, its link (see `links`) and,
for people who read the projection, an edge with its size and rate.
"""

from dataclasses import dataclass

from weft.layout.layout import Layout
from weft.project.division import Division
from weft.project.emit import ValueKey
from weft.project.links import Edge, Link, link
from weft.project.views import View


@dataclass
class Crossings:
    """The links and edges of a projection."""

    layout: Layout
    views: dict[str, View]
    division: Division

    def link(self, key: ValueKey, source: str, dest: str) -> Link:
        sent, received = self.views[source].values[key], self.views[dest].values[key]
        sharding = self.division.sent(source, dest, key)
        merge = self.division.merge_operation(received, dest)
        return link(sent.name, self.layout.role(source), self.layout.role(dest), sharding, merge)

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
