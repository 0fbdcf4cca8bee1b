"""What a layout with lanes and registers adds to the programs, and what it cannot have."""

from dataclasses import replace

from weft.errors import WeftError
from weft.layout.layout import Layout, Role
from weft.project.links import Edge, Link
from weft.project.program import Merge, Program, Send, walk
from weft.project.views import View


def with_registers(views: dict[str, View], programs: dict[str, Program]) -> dict[str, Program]:
    """The programs, with the leaves of the state that they read from registers and those that they write."""
    return {name: replace(program, **_registers(views[name], program)) for name, program in programs.items()}


def _registers(view: View, program: Program) -> dict[str, frozenset[int]]:
    terms = view.needs.terms
    reads = frozenset(leaf for leaf in program.inputs if terms.relax(program.role, view.graph.inputs[leaf]))
    return {"reads": reads, "writes": terms.written.get(program.role, frozenset())}


def check_lanes(
    layout: Layout, taker: Role, programs: dict[str, Program], names: tuple[str, ...], axes: dict[str, tuple]
) -> None:
    """What would tie the lanes to each other, or rows of the state to whoever takes now these and now those."""
    _refuse_ties(layout, programs)
    if taker.take == taker.of:
        return
    for leaf in programs[taker.name].inputs:
        if axes[taker.name][leaf] is not None:
            raise WeftError(
                f"{names[leaf]} has a row for every environment and is kept by {taker.name}, which takes {taker.take} "
                f"of {taker.of} lanes at a time: let a role of the lanes run what makes it, or take all {taker.of}"
            )
    for role in layout.roles:
        merges = [step for step, _ in walk(programs[role.name].steps) if isinstance(step, Merge)]
        if role.in_lane and merges:
            what = merges[0].message.rpartition("/")[2]
            raise WeftError(
                f"{what} merges over the {role.replicas} replicas of {role.name}, so that each would wait for all, but "
                f"{taker.name} takes {taker.take} of {taker.of}: take all {taker.of}, use one lane, or do without "
                "(as without normalise_obs and normalise_reward)"
            )


def _refuse_ties(layout: Layout, programs: dict[str, Program]) -> None:
    for role in layout.roles:
        for step, _ in walk(programs[role.name].steps):
            if isinstance(step, Send) and role.free != layout.role(step.to).free:
                who = role.name if role.free else step.to
                raise WeftError(
                    f"{step.message.partition(':')[2]} goes from {role.name} to {step.to}, but {who} is free of the "
                    "lanes: what they exchange must be state that comes through a register"
                )


def register_edges(layout: Layout, views: dict[str, View], programs: dict[str, Program]) -> tuple[Edge, ...]:
    """What crosses through registers."""
    edges = []
    for maker, reader in layout.registers:
        graph, role = views[reader].graph, layout.role(reader)
        names = views[reader].trace.state_names
        link = Link("pair" if role.copies == 1 else "broadcast", role.copies // layout.role(maker).copies or 1)
        edges += [
            Edge(maker, reader, names[leaf], 1, graph.inputs[leaf].bytes, link, kind="register")
            for leaf in sorted(programs[reader].reads & programs[maker].writes)
        ]
    return tuple(edges)
