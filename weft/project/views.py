"""The loop as it looks to roles with different shares of the environments."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from weft.errors import WeftError
from weft.graph.build import build
from weft.graph.graph import Graph, Value, walk
from weft.graph.trace import Trace
from weft.layout.layout import Layout
from weft.project.emit import Key
from weft.project.handover import hand_over
from weft.project.needs import Needs, Terms, find_needs
from weft.project.registers import relax


@dataclass(frozen=True, eq=False)
class View:
    """The loop as it looks at one batch size."""

    trace: Trace
    graph: Graph
    needs: Needs

    @cached_property
    def values(self) -> dict[Key, Value]:
        """Every value that can cross, by the call that makes it."""
        return {
            (node.key, i): value for node, _ in walk(self.graph) if node.key for i, value in enumerate(node.outputs)
        }

    @cached_property
    def keys(self) -> dict[Value, Key]:
        return {value: key for key, value in self.values.items()}

    def crossings(self) -> dict[tuple[Key, str, str], int]:
        """What crosses as (value's key, sender, receiver), with how often in the whole program."""
        return dict(_crossings(self.graph, self.needs, self.keys, 1))


def make_view(traced: Trace, layout: Layout, whole: Graph, batched: Set[int]) -> View:
    """The graph and the needs of a trace, settled as for the whole number of environments.

    `batched` are the leaves of the state with a row for every environment.
    """
    graph = build(traced, layout)
    roles = tuple(role.name for role in layout.roles)
    sizes = _sizes(graph, whole)

    def settle(terms: Terms) -> Needs:
        return find_needs(graph, roles, len(traced.state_names), traced.groups, terms)

    needs = settle(Terms(sizes))
    if layout.taker is not None:
        graph = hand_over(
            graph, needs, [role.name for role in layout.roles if role.in_lane], layout.taker.name, batched
        )
        needs = settle(Terms(sizes))
    leaves = len(traced.state_names)
    return View(traced, graph, settle(relax(graph, needs, layout, leaves)) if layout.registers else needs)


def _sizes(graph: Graph, whole: Graph) -> dict[Value, int]:
    """The bytes of values at the full number of environments, so that every view settles alike who makes what."""
    pairs = list(zip(graph.inputs, whole.inputs, strict=True))
    others = {node.key: node for node, _ in walk(whole) if node.key}
    for node, _ in walk(graph):
        if other := others.get(node.key):
            pairs += zip(node.outputs, other.outputs, strict=False)
            if node.body is not None and other.body is not None:
                pairs += zip(node.body.inputs, other.body.inputs, strict=False)
    return {value: same.bytes for value, same in pairs}


def check_agreement(views: dict[str, View]) -> None:
    """The traces of all sizes must agree about what crosses; only shapes may differ."""
    reference = next(iter(views.values()))
    for view in views.values():
        if view.crossings().keys() != reference.crossings().keys():
            odd = sorted(f"{key[0]}[{key[1]}]" for key, _, _ in view.crossings().keys() ^ reference.crossings().keys())
            raise WeftError(
                f"the loop does different things with {reference.trace.batch} and with {view.trace.batch} environments "
                f"({', '.join(odd[:4])} crosses in one only): make its structure independent of env.num_envs"
            )


def _crossings(
    graph: Graph, needs: Needs, keys: dict[Value, Key], times: int
) -> Iterator[tuple[tuple[Key, str, str], int]]:
    for node in graph.nodes:
        for value in node.outputs:
            for dest, source in needs.crossings.get(value, {}).items():
                yield (keys[value], source, dest), times
        if node.body is not None:
            yield from _crossings(node.body, needs.bodies[node], keys, times * node.length)
