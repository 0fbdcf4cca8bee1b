"""Projection: from one training loop and a layout to a program for each role.

`project` applies these passes in order:

1. trace the loop at the full number of environments, and split `apart` roles into subroles (`subroles`);
2. for every batch size that a role needs: trace the loop, build its graph with the layout's roles on the nodes, and
   find out which role needs which value (`views`, `demand`, `worker_state`, `registers`);
3. find the batch axis of every leaf of the state, and the values that differ between replicas (`links`, `varying`);
4. derive the link of every value that crosses (`crossings`), and draft each role's part of the loop (`emit`);
5. group values into messages and operations into compiled segments (`assemble`), and add what passes through registers
   (`asynchrony`).

Each pass refuses what it cannot handle, so a layout that cannot work is refused before anything is compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.algorithm import Algorithm, Phase
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.graph.build import build_graph
from weft.graph.graph import Graph, Value
from weft.graph.trace import Trace, trace
from weft.layout.layout import Layout
from weft.project.assemble import assemble
from weft.project.asynchrony import check_lanes, register_edges, with_registers
from weft.project.crossings import Crossings
from weft.project.demand import Demand
from weft.project.emit import draft_program
from weft.project.links import Edge, batch_axis, is_key
from weft.project.program import Program
from weft.project.subroles import split_subroles
from weft.project.varying import Variation
from weft.project.views import View, check_agreement, make_view


@dataclass(frozen=True, eq=False)
class Projection:
    """A training loop under a layout: a program for each role, and the values that cross between them."""

    layout: Layout
    trace: Trace
    """The loop at the full number of environments."""
    views: dict[str, View]
    """By role: the loop at the role's batch size."""
    programs: dict[str, Program]
    edges: tuple[Edge, ...]
    homes: tuple[str, ...]
    """For every output (leaves of the state, then metrics): the role that holds it at the end of an iteration."""
    batch_axes: dict[str, tuple[int | None, ...]]
    """By role: the batch axis of each leaf of the state; None where it has none."""

    @property
    def multi_segment(self) -> bool:
        """Whether some role's program consists of more than one compiled segment."""
        return any(program.multi_segment for program in self.programs.values())


def project(
    algo: Algorithm, env_of: Callable[[int], Env], layout: Layout, length: int = 1, phase: Phase = "step"
) -> Projection:
    """Project `length` iterations of an algorithm onto the roles of a layout; `env_of(n)` makes n environments."""
    total = algo.num_envs
    _check_divisibility(layout, total)
    full = trace(algo, env_of(total), length, phase)
    layout = split_subroles(build_graph(full, layout), layout, full.fragments)

    divisors = {role.batch_divisor for role in layout.roles}
    traces = {n: full if n == 1 else trace(algo, env_of(total // n), length, phase) for n in divisors}
    views = _make_views(layout, full, traces)
    check_agreement(views)
    for view in views.values():
        _refuse_divided_draws(layout, view.graph, view.demand)

    batch_axes = {role.name: _state_axes(full, views[role.name].trace) for role in layout.roles}
    variation = Variation(layout, views, batch_axes)
    variation.refuse_diverging_state()

    crossings = Crossings(layout, views, variation, total)
    drafts = [
        draft_program(role, views[role.name].graph, views[role.name].demand, crossings.link) for role in layout.roles
    ]

    programs = with_registers(views, assemble(drafts))
    if layout.consumer is not None:
        check_lanes(layout, layout.consumer, programs, full.state_names, batch_axes)
    edges = (*crossings.edges(length), *register_edges(layout, views, programs))
    return Projection(layout, full, views, programs, edges, _homes(next(iter(views.values()))), batch_axes)


def _check_divisibility(layout: Layout, total: int) -> None:
    for role in layout.roles:
        if total % role.batch_divisor:
            raise WeftError(
                f"num_envs={total} cannot be divided evenly over {role.batch_divisor} replicas of {role.name}: "
                f"make it a multiple of {role.batch_divisor}"
            )
    if layout.lanes and total % layout.lanes:
        raise WeftError(
            f"num_envs={total} cannot be divided evenly over {layout.lanes} lanes: make it a multiple of {layout.lanes}"
        )


def _make_views(layout: Layout, full: Trace, traces: dict[int, Trace]) -> dict[str, View]:
    """By role: the view at its batch size."""
    graph, smallest = build_graph(full, layout), traces[max(traces)].state_avals
    batched = {leaf for leaf, aval in enumerate(full.state_avals) if aval.shape != smallest[leaf].shape}
    by_divisor = {divisor: make_view(traced, layout, graph, batched) for divisor, traced in traces.items()}
    return {role.name: by_divisor[role.batch_divisor] for role in layout.roles}


def _refuse_divided_draws(layout: Layout, graph: Graph, demand: Demand) -> None:
    """Reject random draws in glue that roles with different replica counts would repeat with different keys."""
    for node in graph.nodes:
        if node.body is not None:
            _refuse_divided_draws(layout, node.body, demand.bodies[node])
        elif node.role is None and any(is_key(value.aval) for value in node.inputs):
            for value in node.outputs:
                roles = [role for role in layout.roles if value in demand.needed[role.name]]
                if not is_key(value.aval) and len({role.instances for role in roles}) > 1:
                    raise WeftError(
                        f"{value.name} draws from a random key outside any fragment, and "
                        f"{' and '.join(map(str, roles))} need the result: their replicas would draw different "
                        "numbers; draw them inside a fragment"
                    )


def _state_axes(full: Trace, share: Trace) -> tuple[int | None, ...]:
    leaves = zip(full.state_names, full.state_avals, share.state_avals, strict=True)
    return tuple(batch_axis(name, (whole, part), (full.batch, share.batch)) for name, whole, part in leaves)


def _homes(view: View) -> tuple[str, ...]:
    """For every output: the role that writes it to a register, else one that produces it, else one that receives it."""
    received: dict[Value, dict[str, str]] = {}
    for node in view.graph.nodes:
        if node.body is not None:
            crossings = view.demand.bodies[node].crossings
            received |= {
                output: crossings.get(inner, {}) for output, inner in zip(node.outputs, node.body.outputs, strict=True)
            }
    producers = view.demand.producers
    writers = {leaf: role for role, leaves in view.demand.hints.register_writes.items() for leaf in leaves}
    return tuple(
        writers.get(index) or min(producers[output], key=lambda role: role in received.get(output, {}))
        for index, output in enumerate(view.graph.outputs)
    )
