"""Projection: from one training loop and a layout to a program for each role.

`project` applies these passes in order:

1. trace the loop at the full number of environments, and split `apart` roles into subroles (`subroles`);
2. for every batch size that a role needs: trace the loop, build its graph with the layout's roles on the nodes, and
   find out which role needs which value (`views`, `demand`, `worker_state`, `registers`);
3. find the batch axis of every leaf of the state, and how the values of a role's replicas make up those of the whole
   (`links`, `division`, `weft.sharding`);
4. derive the link of every value that crosses (`crossings`), and draft each role's part of the loop (`emit`);
5. group values into messages and operations into compiled segments (`assemble`), and add what passes through registers
   (`asynchrony`).

Each pass refuses what it cannot handle, so a layout that cannot work is refused before anything is compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from weft.algorithm import Algorithm, Phase
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.fragments import tracing_shares
from weft.graph.build import build_graph
from weft.graph.graph import Value
from weft.graph.resize import resized, same_operations
from weft.graph.rows import number_rows
from weft.graph.trace import Trace, trace
from weft.layout.layout import Layout
from weft.project.assemble import assemble
from weft.project.asynchrony import check_lanes, refuse_unread_registers, register_edges, with_registers
from weft.project.crossings import Crossings
from weft.project.division import Division
from weft.project.emit import draft_program
from weft.project.links import Edge, batch_axis
from weft.project.program import Program
from weft.project.subroles import split_subroles
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
    merges: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    """By role: what its merges do with each value, by the identity of the merge's equation."""

    causes: dict[str, frozenset[str]] = field(default_factory=dict)
    """By leaf and metric: why it need not equal that of one replica bit for bit (see `weft.sharding`)."""
    terms: int = 1
    """The largest number of terms in a sum that replicas compute in parts."""

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

    traces = {1: full}
    for divisor in {layout.whole_divisor, *(role.batch_divisor for role in layout.roles)} - {1}:
        traces[divisor] = _trace_share(algo, env_of, layout, full, divisor, phase)
    by_divisor = _make_views(layout, full, traces)
    views = {role.name: by_divisor[role.batch_divisor] for role in layout.roles}
    check_agreement(views)

    batch_axes = {role.name: _state_axes(full, views[role.name].trace) for role in layout.roles}
    division = Division(layout, views, _wholes(layout, by_divisor), batch_axes)
    division.refuse_merges()
    division.refuse_differences()
    if layout.whole_divisor > 1:
        # Lanes iterate at their own pace, so the state of none may depend on the rows of another.
        Division(layout, views, dict.fromkeys(views, by_divisor[1]), batch_axes, among_lanes=True).refuse_differences()

    crossings = Crossings(layout, views, division)
    drafts = [
        draft_program(role, views[role.name].graph, views[role.name].demand, crossings.link, division.operations)
        for role in layout.roles
    ]

    programs = with_registers(views, assemble(drafts))
    if layout.consumer is not None:
        view = views[layout.consumer.name]
        check_lanes(layout, layout.consumer, view, programs, full.state_names, batch_axes)
        if phase == "step" and layout.max_lag is not None:
            refuse_unread_registers(layout, programs)
    edges = (*crossings.edges(length), *register_edges(layout, views, programs))
    homes = _homes(next(iter(views.values())))
    merges, causes = division.merge_operations(), division.causes()
    return Projection(
        layout, full, views, programs, edges, homes, batch_axes, merges, causes=causes, terms=division.terms
    )


def _trace_share(
    algo: Algorithm, env_of: Callable[[int], Env], layout: Layout, full: Trace, divisor: int, phase: Phase
) -> Trace:
    """The loop at a share of the environments, with the random numbers and the row numbers of its own rows."""
    rows = full.batch // divisor
    with tracing_shares(max(1, divisor // layout.whole_divisor)):
        share = trace(algo, env_of(rows), full.length, phase)
        if not same_operations(full.jaxpr.jaxpr, share.jaxpr.jaxpr):
            share = replace(share, jaxpr=_resized(lambda count: trace(algo, env_of(count), full.length, phase), share))
    return replace(share, jaxpr=number_rows(full.jaxpr, share.jaxpr))


def _resized(trace_rows: Callable[[int], Trace], share: Trace) -> Any:
    """The jaxpr of a share with the equations of a larger one (see `weft.graph.resize`), where that can be traced."""
    try:
        double, quadruple = trace_rows(2 * share.batch), trace_rows(4 * share.batch)
    except Exception:  # the author's code may demand any number of rows
        return share.jaxpr
    return resized(double.jaxpr, quadruple.jaxpr, share.jaxpr)


def _wholes(layout: Layout, by_divisor: dict[int, View]) -> dict[str, View]:
    """By role: the loop whose environments the replicas of the role divide. A free role has all of them."""
    return {
        role.name: by_divisor[1 if role.free else min(role.batch_divisor, layout.whole_divisor)]
        for role in layout.roles
    }


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


def _make_views(layout: Layout, full: Trace, traces: dict[int, Trace]) -> dict[int, View]:
    """By divisor of the batch: the view at that size."""
    graph, smallest = build_graph(full, layout), traces[max(traces)].state_avals
    batched = {leaf for leaf, aval in enumerate(full.state_avals) if aval.shape != smallest[leaf].shape}
    return {divisor: make_view(traced, layout, graph, batched) for divisor, traced in traces.items()}


def _state_axes(full: Trace, share: Trace) -> tuple[int | None, ...]:
    leaves = zip(full.state_names, full.state_avals, share.state_avals, strict=True)
    sizes = full.batch, share.batch
    return tuple(batch_axis(name, (whole.shape, part.shape), sizes) for name, whole, part in leaves)


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
