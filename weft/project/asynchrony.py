"""Asynchronous layouts: the register reads and writes of each program, and the checks that lanes require.

Input: the assembled programs. Output: the same programs with their register reads and writes, and the edges that pass
through registers. A layout with lanes is refused if its lanes would not be independent of each other.
"""

from dataclasses import replace

from weft.errors import WeftError
from weft.layout.layout import Layout, Role
from weft.project.links import Edge, Link, is_key
from weft.project.program import Program, Send, walk
from weft.project.views import View


def with_registers(views: dict[str, View], programs: dict[str, Program]) -> dict[str, Program]:
    """The programs, with the leaves of the state that each reads from and writes to registers."""
    return {name: replace(program, **_registers(views[name], program)) for name, program in programs.items()}


def check_lanes(
    layout: Layout,
    consumer: Role,
    view: View,
    programs: dict[str, Program],
    names: tuple[str, ...],
    axes: dict[str, tuple],
) -> None:
    """Reject layouts where the learner would own per-environment state, or a free role would exchange messages."""
    _refuse_exchanges_with_free_roles(layout, programs)
    _refuse_split_counters(layout, view, names)
    lanes = consumer.lanes_per_replica
    if consumer.take == lanes:
        return
    for leaf in programs[consumer.name].inputs:
        if axes[consumer.name][leaf] is not None:
            raise WeftError(
                f"{names[leaf]} has a row for every environment and would be kept by {consumer.name}, which takes only "
                f"{consumer.take} of {lanes} lanes at a time: let a role of the lanes run the fragment that produces "
                f"it, or set take={lanes}"
            )


def register_edges(layout: Layout, views: dict[str, View], programs: dict[str, Program]) -> tuple[Edge, ...]:
    """The values that pass through registers."""
    edges = []
    for source, reader in layout.registers:
        graph, role = views[reader].graph, layout.role(reader)
        names = views[reader].trace.state_names
        fan = role.instances // layout.role(source).instances or 1
        link = Link("pair" if role.instances == 1 else "broadcast", fan)
        edges += [
            Edge(source, reader, names[leaf], 1, graph.inputs[leaf].bytes, link, kind="register")
            for leaf in sorted(programs[reader].register_reads & programs[source].register_writes)
        ]
    return tuple(edges)


def _registers(view: View, program: Program) -> dict[str, frozenset[int]]:
    hints = view.demand.hints
    reads = frozenset(leaf for leaf in program.inputs if hints.is_stale_read(program.role, view.graph.inputs[leaf]))
    return {"register_reads": reads, "register_writes": hints.register_writes.get(program.role, frozenset())}


def refuse_unread_registers(layout: Layout, programs: dict[str, Program]) -> None:
    """Reject a register through which nothing passes: its reader would not be bound by max_lag."""
    for source, reader in layout.registers:
        if not programs[reader].register_reads & programs[source].register_writes:
            readers = [
                role.name
                for role in layout.roles
                if role.name != source and programs[source].outputs.keys() & programs[role.name].inputs.keys()
            ]
            raise WeftError(
                f"register {source!r} -> {reader!r}: {reader} reads no state that {source} produces; "
                + (f"give the register to {' or '.join(readers)}" if readers else "leave the register out")
            )


def _refuse_split_counters(layout: Layout, view: View, names: tuple[str, ...]) -> None:
    """Reject a leaf of the state that glue advances on lanes and on another role, at the pace of each."""
    leaves = dict(zip(view.graph.outputs, names, strict=False))
    for node in view.graph.nodes:
        if node.body is None:
            continue
        glue = {
            value for inner in node.body.nodes if inner.role is None and inner.body is None for value in inner.outputs
        }
        demand = view.demand.bodies[node]
        for index in node.carried:
            before, after = node.body.inputs[node.consts + index], node.body.outputs[index]
            name = leaves.get(node.outputs[index])
            if name is None or after not in glue or before.shape or is_key(before.aval):
                continue
            readers = [
                role
                for role in layout.roles
                if before in demand.needed[role.name] and not demand.hints.is_stale_read(role.name, before)
            ]
            lane = next((role.name for role in readers if role.in_lane), None)
            other = next((role.name for role in readers if not role.in_lane), None)
            if lane and other:
                raise WeftError(
                    f"{name} would be advanced by {lane} and by {other}, which iterate at different paces, so each "
                    "would have another value: compute its next value in a fragment of one of them, or keep a leaf "
                    "for each"
                )


def _refuse_exchanges_with_free_roles(layout: Layout, programs: dict[str, Program]) -> None:
    for role in layout.roles:
        for step, _ in walk(programs[role.name].steps):
            if isinstance(step, Send) and role.free != layout.role(step.dest).free:
                free = role.name if role.free else step.dest
                raise WeftError(
                    f"{step.message.partition(':')[2]} goes from {role.name} to {step.dest} within an iteration, but "
                    f"{free} has free=True: a free role and the other roles may exchange only state, through a register"
                )
