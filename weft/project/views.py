"""Views: the traced loop at each batch size that a role needs.

Roles with different batch divisors see the same loop with different shapes. The loop is therefore traced once for each
batch divisor; the trace, its graph and the graph's demand are a view. All views must agree on the values that cross. A
value has the same key in every view, so its shapes can be compared (see `links`).
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from weft.errors import WeftError
from weft.graph.build import build_graph
from weft.graph.graph import Graph, Value, walk
from weft.graph.trace import Trace
from weft.layout.layout import Layout
from weft.project.demand import Demand, PlacementHints, find_demand
from weft.project.emit import ValueKey
from weft.project.registers import find_stale_reads
from weft.project.worker_state import send_worker_state


@dataclass(frozen=True, eq=False)
class View:
    """The loop at one batch size."""

    trace: Trace
    graph: Graph
    demand: Demand

    @cached_property
    def values(self) -> dict[ValueKey, Value]:
        """Every value that may cross, by its key."""
        return {
            (node.key, i): value for node, _ in walk(self.graph) if node.key for i, value in enumerate(node.outputs)
        }

    @cached_property
    def keys(self) -> dict[Value, ValueKey]:
        return {value: key for key, value in self.values.items()}

    def crossings(self) -> dict[tuple[ValueKey, str, str], int]:
        """The number of crossings in the whole program, by the value's key, its sender and its receiver."""
        return dict(_crossings(self.graph, self.demand, self.keys, 1))


def make_view(trace: Trace, layout: Layout, full: Graph, batched: Set[int]) -> View:
    """The view of a trace.

    `full` is the graph at the full number of environments; its sizes decide placement in all views. `batched` are the
    leaves of the state with a row for every environment.
    """
    graph = build_graph(trace, layout)
    roles = tuple(role.name for role in layout.roles)
    leaves = len(trace.state_names)
    sizes = PlacementHints(_full_sizes(graph, full))
    demand = find_demand(graph, roles, leaves, trace.groups, sizes)
    if layout.consumer is not None:
        lanes = [role.name for role in layout.roles if role.in_lane]
        graph = send_worker_state(graph, demand, lanes, layout.consumer.name, batched)
        demand = find_demand(graph, roles, leaves, trace.groups, PlacementHints(sizes.sizes))
    if layout.registers:
        hints = find_stale_reads(graph, demand, layout, leaves)
        demand = find_demand(graph, roles, leaves, trace.groups, hints)
    return View(trace, graph, demand)


def check_agreement(views: dict[str, View]) -> None:
    """Reject a loop whose traces disagree on the values that cross, or on how often. Only shapes may depend on the
    batch size."""
    reference = next(iter(views.values()))
    expected = reference.crossings()
    for view in views.values():
        for key, source, dest in sorted(expected.keys() | view.crossings().keys()):
            times = expected.get((key, source, dest), 0), view.crossings().get((key, source, dest), 0)
            if times[0] != times[1]:
                raise WeftError(
                    f"{key[0]} crosses from {source} to {dest} {times[0]} times with {reference.trace.batch} "
                    f"environments and {times[1]} times with {view.trace.batch}, the share of a replica: make the "
                    "structure and the length of loops independent of env.num_envs"
                )


def _full_sizes(graph: Graph, full: Graph) -> dict[Value, int]:
    """The size in bytes of every value at the full number of environments."""
    pairs = list(zip(graph.inputs, full.inputs, strict=True))
    counterparts = {node.key: node for node, _ in walk(full) if node.key}
    for node, _ in walk(graph):
        if counterpart := counterparts.get(node.key):
            pairs += zip(node.outputs, counterpart.outputs, strict=False)
            if node.body is not None and counterpart.body is not None:
                pairs += zip(node.body.inputs, counterpart.body.inputs, strict=False)
    return {value: full_value.bytes for value, full_value in pairs}


def _crossings(
    graph: Graph, demand: Demand, keys: dict[Value, ValueKey], times: int
) -> Iterator[tuple[tuple[ValueKey, str, str], int]]:
    for node in graph.nodes:
        for value in node.outputs:
            for dest, source in demand.crossings.get(value, {}).items():
                yield (keys[value], source, dest), times
        if node.body is not None:
            yield from _crossings(node.body, demand.bodies[node], keys, times * node.length)
