"""Projection: from one training loop and a layout to a program for each role.

The passes, in order: trace the loop at each role's share of the environments; build its graph with the layout's roles;
find who needs what, and what comes through registers; see how each crossing value is linked; draft each role's part;
assemble messages and runs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.algorithm import Algorithm, Phase
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.graph.build import build
from weft.graph.graph import Graph, Node, Value, walk
from weft.graph.trace import Trace, trace
from weft.layout.layout import Layout, Role
from weft.project.assemble import assemble
from weft.project.emit import Key, draft
from weft.project.lanes import check_lanes, register_edges, with_registers
from weft.project.links import Edge, Link, batch_axis, is_key, link
from weft.project.needs import Needs
from weft.project.program import Program
from weft.project.strands import split_roles
from weft.project.varying import find_varying
from weft.project.views import View, check_agreement, make_view


@dataclass(frozen=True, eq=False)
class Projection:
    """A training loop under a layout: a program for each role, and what goes between them."""

    layout: Layout
    whole: Trace
    """The loop at the full number of environments."""
    views: dict[str, View]
    programs: dict[str, Program]
    edges: tuple[Edge, ...]
    homes: tuple[str, ...]
    """For every output, state leaves first and metrics after: the role that has it."""
    axes: dict[str, tuple[int | None, ...]]
    """For every role: the batch axis of each leaf of the state, None where it has none."""

    @property
    def interrupted(self) -> bool:
        """Whether some role's program is more than one compiled run."""
        return any(program.interrupted for program in self.programs.values())


def project(
    algo: Algorithm, env_of: Callable[[int], Env], layout: Layout, length: int = 1, phase: Phase = "step"
) -> Projection:
    """Project `length` iterations of an algorithm onto the roles of a layout; `env_of(n)` makes n environments."""
    total = algo.num_envs
    _check_shares(layout, total)
    whole = trace(algo, env_of(total), length, phase)
    layout = split_roles(build(whole, layout), layout, whole.fragments)
    graph = build(whole, layout)
    traces = {
        shares: whole if shares == 1 else trace(algo, env_of(total // shares), length, phase)
        for shares in {role.shares for role in layout.roles}
    }
    least = traces[max(traces)].state_avals
    batched = {leaf for leaf, aval in enumerate(whole.state_avals) if aval.shape != least[leaf].shape}
    by_shares = {shares: make_view(traced, layout, graph, batched) for shares, traced in traces.items()}
    views = {role.name: by_shares[role.shares] for role in layout.roles}
    check_agreement(views)
    for view in views.values():
        _refuse_divided_draws(layout, view.graph, view.needs)
    axes = {role.name: _state_axes(whole, views[role.name].trace) for role in layout.roles}
    varying = _Varying(layout, views, axes, total)
    for role in layout.roles:
        varying.refuse_torn_state(role)
    linked = _Linked(layout, views, varying, total)
    drafts = [draft(role, views[role.name].graph, views[role.name].needs, linked.link) for role in layout.roles]
    programs = with_registers(views, assemble(drafts))
    if layout.taker is not None:
        check_lanes(layout, layout.taker, programs, whole.state_names, axes)
    homes = _homes(next(iter(views.values())))
    edges = (*linked.edges(length), *register_edges(layout, views, programs))
    return Projection(layout, whole, views, programs, edges, homes, axes)


def _check_shares(layout: Layout, total: int) -> None:
    for role in layout.roles:
        if total % role.shares:
            raise WeftError(
                f"num_envs={total} cannot be shared out evenly over {role.shares} replicas of {role.name}: "
                f"make it a multiple of {role.shares}"
            )
    if layout.lanes and total % layout.lanes:
        raise WeftError(f"num_envs={total} cannot be shared out evenly over {layout.lanes} lanes: make it a multiple")


def _refuse_divided_draws(layout: Layout, graph: Graph, needs: Needs) -> None:
    """Each replica draws from its own key, so roles of different counts cannot draw the same numbers by themselves."""
    for node in graph.nodes:
        if node.body is not None:
            _refuse_divided_draws(layout, node.body, needs.bodies[node])
        elif node.role is None and any(is_key(value.aval) for value in node.inputs):
            for value in node.outputs:
                who = [role for role in layout.roles if value in needs.needed[role.name]]
                if not is_key(value.aval) and len({role.copies for role in who}) > 1:
                    raise WeftError(
                        f"{value.name} draws from a random key outside any fragment, and {' and '.join(map(str, who))} "
                        "need the result: their replicas would draw different numbers; draw them inside a fragment"
                    )


def _homes(view: View) -> tuple[str, ...]:
    """For every output, the role that produces it, if it keeps it, else one that receives it."""
    received: dict[Value, dict[str, str]] = {}
    for node in view.graph.nodes:
        if node.body is not None:
            crossings = view.needs.bodies[node].crossings
            received |= {
                out: crossings.get(inner, {}) for out, inner in zip(node.outputs, node.body.outputs, strict=True)
            }
    makers = view.needs.makers
    written = {leaf: role for role, leaves in view.needs.terms.written.items() for leaf in leaves}
    return tuple(
        written.get(index) or min(makers[out], key=lambda role: role in received.get(out, {}))
        for index, out in enumerate(view.graph.outputs)
    )


def _state_axes(whole: Trace, part: Trace) -> tuple[int | None, ...]:
    pairs = zip(whole.state_names, whole.state_avals, part.state_avals, strict=True)
    return tuple(batch_axis(name, (a, b), (whole.batch, part.batch)) for name, a, b in pairs)


@dataclass
class _Varying:
    """For every replicated role, which values may differ between its replicas; roles ask each other about crossings."""

    layout: Layout
    views: dict[str, View]
    axes: dict[str, tuple[int | None, ...]]
    total: int

    def __post_init__(self) -> None:
        self.flags: dict[str, dict[Value, bool]] = {role.name: {} for role in self.layout.roles}
        # A crossing's answer may depend on another role's, so repeat until nothing changes.
        while any([self.refresh(role) for role in self.layout.roles if role.copies > 1]):
            pass

    def refresh(self, role: Role) -> bool:
        view = self.views[role.name]
        inputs = [
            axis is not None or is_key(value.aval)
            for axis, value in zip(self.axes[role.name], view.graph.inputs, strict=True)
        ]
        flags = find_varying(view.graph, role.name, inputs, lambda node, index: self.received(role, node, index))
        changed = flags != self.flags[role.name]
        self.flags[role.name] = flags
        return changed

    def received(self, role: Role, node: Node, index: int) -> bool:
        """Whether what another role makes varies over the replicas of this one."""
        source = self.layout.role(node.role or role.name)
        view = self.views[source.name]
        value, mine = view.values[node.key, index], node.outputs[index]
        return value.shape != mine.shape or is_key(mine.aval) or self.at(source.name, (node.key, index))

    def at(self, role: str, key: Key) -> bool:
        return self.flags[role].get(self.views[role].values[key], False)

    def refuse_torn_state(self, role: Role) -> None:
        if role.copies == 1:
            return
        view = self.views[role.name]
        names = view.trace.state_names
        for name, axis, output in zip(names, self.axes[role.name], view.graph.outputs[: len(names)], strict=True):
            held = role.name in view.needs.makers[output]
            if held and axis is None and not is_key(output.aval) and self.flags[role.name].get(output, False):
                raise WeftError(
                    f"{name} would come to differ between the {role.copies} replicas of {role.name}: it has no batch "
                    "axis and what it is computed from differs; merge that with all_mean or all_sum"
                )


@dataclass
class _Linked:
    """The link of every crossing."""

    layout: Layout
    views: dict[str, View]
    varying: _Varying
    total: int

    def link(self, key: Key, source: str, dest: str) -> Link:
        values = self.views[source].values[key], self.views[dest].values[key]
        varying = self.layout.role(source).copies > 1 and self.varying.at(source, key)
        roles = self.layout.role(source), self.layout.role(dest)
        avals = values[0].aval, values[1].aval
        merge = self.merged(values[1], dest) if varying else ""
        return link(values[0].name, *roles, avals, batch=self.total, varying=varying, merge=merge)

    def merged(self, value: Value, dest: str) -> str:
        """The operation by which a role merges a value from its lanes, if that is all it does with it."""
        uses = [node for node, _ in walk(self.views[dest].graph) if value in node.inputs and node.role in (None, dest)]
        operations = {node.name if node.kind == "merge" and node.role == dest else "" for node in uses}
        return operations.pop() if len(operations) == 1 else ""

    def edges(self, length: int) -> tuple[Edge, ...]:
        crossings = next(iter(self.views.values())).crossings()
        return tuple(
            Edge(
                source,
                dest,
                self.views[dest].values[key].name,
                times // length,
                self.bytes(key, dest),
                self.link(key, source, dest),
            )
            for (key, source, dest), times in crossings.items()
        )

    def bytes(self, key: Key, dest: str) -> int:
        return self.views[dest].values[key].bytes * self.layout.role(dest).copies
