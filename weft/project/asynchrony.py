"""Asynchronous layouts: the register reads and writes of each program, and the checks that lanes require.

Input: the assembled programs. Output: the same programs with their register reads and writes, and the edges that pass
through registers. A layout with lanes is refused if its lanes would not be independent of each other.
"""

from dataclasses import replace

from weft.errors import WeftError
from weft.layout.layout import Layout, Role
from weft.project.links import Edge, Link
from weft.project.program import Merge, Program, Send, walk
from weft.project.views import View


def with_registers(views: dict[str, View], programs: dict[str, Program]) -> dict[str, Program]:
    """The programs, with the leaves of the state that each reads from and writes to registers."""
    return {name: replace(program, **_registers(views[name], program)) for name, program in programs.items()}


def check_lanes(
    layout: Layout, consumer: Role, programs: dict[str, Program], names: tuple[str, ...], axes: dict[str, tuple]
) -> None:
    """Reject layouts where workers would wait for each other, or the learner would own per-environment state."""
    _refuse_exchanges_with_free_roles(layout, programs)
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
    for role in layout.roles:
        merges = [step for step, _ in walk(programs[role.name].steps) if isinstance(step, Merge)]
        if role.in_lane and merges:
            merge = merges[0].message.rpartition("/")[2]
            raise WeftError(
                f"{merge} merges values over the {role.replicas} replicas of {role.name}, so each lane would wait for "
                f"all others, but {consumer.name} takes {consumer.take} of {lanes} lanes: set take={lanes}, use one "
                "lane, or leave out the merge (normalise_obs and normalise_reward need it)"
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


def _refuse_exchanges_with_free_roles(layout: Layout, programs: dict[str, Program]) -> None:
    for role in layout.roles:
        for step, _ in walk(programs[role.name].steps):
            if isinstance(step, Send) and role.free != layout.role(step.dest).free:
                free = role.name if role.free else step.dest
                raise WeftError(
                    f"{step.message.partition(':')[2]} goes from {role.name} to {step.dest} within an iteration, but "
                    f"{free} has free=True: a free role and the other roles may exchange only state, through a register"
                )
