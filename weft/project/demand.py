"""Demand analysis: which role needs which value, and which role it comes from.

Input: a graph and the roles. Output: a `Demand`, which lists the values that each role needs and the values that cross
from one role to another. It follows from these rules, applied to the nodes last to first:

- a node with a role runs on that role, which needs the node's inputs;
- glue runs on every role that needs its result, and each of these roles needs its inputs;
- a value crosses if one role needs it and a node of another role produces it;
- a role that needs a loop's carry at the start of a step also needs it at the end, for the next step. The analysis of a
  loop is therefore repeated until nothing changes.

A result of a shared loop can often be produced on several roles. A role that has the value inside the loop anyway
produces it: the environment's role stacks the rewards of a rollout and sends them once, after the loop. If no role has
the value, the role that must receive the fewest bytes for it produces it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.graph.graph import Graph, Node, Value

OutputsByRole = dict[str, set[int]]
"""The indices of a graph's outputs that each role ends with."""
RolesByOutput = dict[int, tuple[str, ...]]
"""By index of an output, some roles."""
NONE: Mapping[Value, str] = {}


@dataclass(frozen=True, eq=False)
class Demand:
    """The result of the analysis for one scope: a whole graph, or the body of a loop."""

    needed: dict[str, set[Value]]
    """By role: the values that it needs."""
    crossings: dict[Value, dict[str, str]] = field(default_factory=dict)
    """By value: the roles that receive it, each with the role that sends it."""
    producers: dict[Value, tuple[str, ...]] = field(default_factory=dict)
    """By result of a shared loop and by output of the graph: the roles that produce it."""
    bodies: dict[Node, "Demand"] = field(default_factory=dict)
    """The demand inside each shared loop."""
    hints: "PlacementHints" = field(default_factory=lambda: PlacementHints())

    def size(self, value: Value) -> int:
        return self.hints.sizes.get(value, value.bytes)

    def crossing_bytes(self, times: int = 1) -> int:
        """Bytes that cross in this scope and in the loops inside it, if the scope runs `times` times."""
        own = sum(self.size(value) * len(receivers) for value, receivers in self.crossings.items())
        return times * (own + sum(body.crossing_bytes(node.length) for node, body in self.bodies.items()))


@dataclass(frozen=True, eq=False)
class PlacementHints:
    """Facts about values that the analysis takes into account and that are not in the graph."""

    sizes: Mapping[Value, int] = field(default_factory=dict)
    """The size in bytes to assume for a value, where it is not the value's own."""
    stale_reads: Mapping[str, frozenset[Value]] = field(default_factory=dict)
    """By role: the values that it reads from a register at the start of an iteration. It need not end with them."""
    register_writes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By role: the outputs that it must end with, because it writes them to a register."""
    analysed_loops: dict[Any, tuple["Demand", RolesByOutput]] = field(default_factory=dict, init=False)
    """Cache of analysed loops by their demanded results: comparing costs analyses the same loop many times."""

    def is_stale_read(self, role: str, value: Value) -> bool:
        return value in self.stale_reads.get(role, ())


Analyse = Callable[[OutputsByRole], Demand]


def find_demand(
    graph: Graph,
    roles: tuple[str, ...],
    carried: int,
    groups: tuple[str, ...],
    hints: PlacementHints,
) -> Demand:
    """The demand of a whole graph. Every output is produced by at least one role.

    The graph is repeated: its first `carried` outputs are the next state. A role that starts from a leaf of the state
    must also end with it, unless it reads the leaf from a register. Outputs of one group (the total and the count of a
    metric) are produced by one role.
    """
    loop_results = {output for node in graph.nodes if node.body is not None for output in node.outputs}
    flexible = {output: group for output, group in zip(graph.outputs, groups, strict=True) if output in loop_results}
    required: OutputsByRole = {role: set(hints.register_writes.get(role, ())) for role in roles}
    while True:
        demand = _analyse_program(graph, roles, required, flexible, groups, hints)
        extended = {role: required[role] | _carry_needed(role, graph.inputs[:carried], demand) for role in roles}
        # The sets only grow, so this terminates.
        if extended == required:
            return demand
        required = extended


def _analyse_program(
    graph: Graph,
    roles: tuple[str, ...],
    required: OutputsByRole,
    flexible: dict[Value, str],
    groups: tuple[str, ...],
    hints: PlacementHints,
) -> Demand:
    """The demand if each role ends with its required outputs, and every other output has some producer."""

    def analyse(produced: OutputsByRole) -> Demand:
        return _analyse(graph, roles, {role: produced[role] | required[role] for role in roles}, hints, flexible)

    demanded = {
        index: tuple(role for role in roles if index in required[role])
        for index, output in enumerate(graph.outputs)
        if output not in flexible
    }
    demand, producers = _choose_producers(graph, roles, demanded, analyse, dict(enumerate(groups)))
    demand.producers.update({graph.outputs[index]: chosen for index, chosen in producers.items()})
    return demand


def _carry_needed(role: str, inputs: tuple[Value, ...], demand: Demand) -> set[int]:
    """The indices of the carry that a role needs at the start, and therefore must have at the end."""
    return {
        index
        for index, value in enumerate(inputs)
        if value in demand.needed[role] and not demand.hints.is_stale_read(role, value)
    }


def _roles_needing(demand: Demand, roles: tuple[str, ...], value: Value) -> tuple[str, ...]:
    return tuple(role for role in roles if value in demand.needed[role])


def _analyse(
    graph: Graph,
    roles: tuple[str, ...],
    produced: OutputsByRole,
    hints: PlacementHints,
    flexible: Mapping[Value, str] = NONE,
) -> Demand:
    """The demand of one scope whose roles end with the outputs in `produced`.

    A producer is chosen for each of the `flexible` loop results, even if no role needs them.
    """
    demand = Demand({role: set() for role in roles}, hints=hints)
    for role in roles:
        _add_needed(demand, role, [graph.outputs[index] for index in produced[role]])
    for node in reversed(graph.nodes):
        if node.body is not None:
            _analyse_loop(demand, node, roles, flexible)
        elif node.role is not None:
            _add_crossings(demand, node.outputs, roles, node.role)
            _add_needed(demand, node.role, node.inputs)
        else:
            for role in roles:
                if demand.needed[role].intersection(node.outputs):
                    _add_needed(demand, role, node.inputs)
    return demand


def _analyse_loop(demand: Demand, node: Node, roles: tuple[str, ...], flexible: Mapping[Value, str]) -> None:
    """Choose producers for the results of a shared loop, then add what its body needs from outside."""
    body = node.body
    assert body is not None
    demanded = {
        index: _roles_needing(demand, roles, output)
        for index, output in enumerate(node.outputs)
        if output in flexible or _roles_needing(demand, roles, output)
    }

    def analyse(produced: OutputsByRole) -> Demand:
        return _analyse_body(node, body, roles, produced, demand.hints)

    groups = {index: flexible[node.outputs[index]] for index in demanded if node.outputs[index] in flexible}
    question = (node, tuple(demanded.items()), tuple(groups.items()))
    if question not in demand.hints.analysed_loops:
        demand.hints.analysed_loops[question] = _choose_producers(body, roles, demanded, analyse, groups)
    demand.bodies[node], producers = demand.hints.analysed_loops[question]
    for index, chosen in producers.items():
        demand.producers[node.outputs[index]] = chosen
        _add_crossings(demand, (node.outputs[index],), [role for role in roles if role not in chosen], chosen[0])
    for role in roles:
        inside = demand.bodies[node].needed[role]
        outside = [outer for outer, inner in zip(node.inputs, body.inputs, strict=True) if inner in inside]
        _add_needed(demand, role, outside)


def _analyse_body(
    node: Node, body: Graph, roles: tuple[str, ...], produced: OutputsByRole, hints: PlacementHints
) -> Demand:
    """Repeat until every role that needs a carry at the start of a step also has it at the end."""
    produced = {role: set(indices) for role, indices in produced.items()}
    while True:
        demand = _analyse(body, roles, produced, hints)
        before = sum(map(len, produced.values()))
        for role in roles:
            produced[role] |= _carry_needed(role, body.inputs[node.consts :][: len(node.carried)], demand)
        if sum(map(len, produced.values())) == before:
            return demand


def _choose_producers(
    graph: Graph, roles: tuple[str, ...], demanded: RolesByOutput, analyse: Analyse, groups: Mapping[int, str]
) -> tuple[Demand, RolesByOutput]:
    """Choose the roles that produce each demanded output, and analyse the graph for that choice.

    In order of preference: roles that need the output and have it available, one role that has it available, the role
    for which it is cheapest.
    """
    produced: OutputsByRole = {role: set() for role in roles}
    availability = _Availability(graph, analyse(produced))
    producers: RolesByOutput = {}
    inseparable = _inseparable(demanded, groups)
    for index, receivers in demanded.items():
        holders = tuple(
            role for role in roles if all(availability.at(role, graph.outputs[i]) for i in inseparable[index])
        )
        producers[index] = tuple(role for role in holders if role in receivers) or holders[:1]
        for role in producers[index]:
            produced[role].add(index)
    for index in demanded:
        if not producers[index]:
            cheapest = _cheapest_role(graph, roles, produced, inseparable[index], analyse)
            produced[cheapest] |= inseparable[index]
            producers |= dict.fromkeys(inseparable[index], (cheapest,))
    # The outputs that were placed last may have made other demanded outputs available.
    availability = _Availability(graph, analyse(produced))
    for index, receivers in demanded.items():
        holders = tuple(role for role in receivers if availability.at(role, graph.outputs[index]))
        producers[index] = holders or producers[index]
        for role in producers[index]:
            produced[role].add(index)
    return analyse(produced), producers


def _inseparable(demanded: RolesByOutput, groups: Mapping[int, str]) -> dict[int, set[int]]:
    """For every output, the outputs that must have the same producer: itself if a role needs it, else its group."""
    return {
        index: {index}
        if receivers
        else {i for i in demanded if i == index or (i in groups and groups[i] == groups.get(index))}
        for index, receivers in demanded.items()
    }


def _cheapest_role(
    graph: Graph, roles: tuple[str, ...], produced: OutputsByRole, outputs: set[int], analyse: Analyse
) -> str:
    """The role that can produce some outputs with the fewest bytes sent."""

    def cost(role: str) -> int:
        demand = analyse(produced | {role: produced[role] | outputs})
        inputs = sum(demand.size(value) for value in graph.inputs for r in roles if value in demand.needed[r])
        return demand.crossing_bytes() + inputs

    return min(roles, key=cost)


class _Availability:
    """Tells whether a value is available on a role: the role can compute it without receiving anything more."""

    def __init__(self, graph: Graph, demand: Demand):
        self.demand = demand
        self.nodes = {output: node for node in graph.nodes for output in node.outputs}
        self.cache: dict[tuple[str, Value], bool] = {}

    def at(self, role: str, value: Value) -> bool:
        if (role, value) not in self.cache:
            self.cache[role, value] = self._compute(role, value)
        return self.cache[role, value]

    def _compute(self, role: str, value: Value) -> bool:
        if value.is_const or value in self.demand.needed[role]:
            return True
        node = self.nodes.get(value)
        if node is None:
            return False
        if node.body is not None:
            return role in self.demand.producers.get(value, ())
        return node.role == role if node.role else all(self.at(role, source) for source in node.inputs)


def _add_needed(demand: Demand, role: str, values: Iterable[Value]) -> None:
    demand.needed[role].update(value for value in values if not value.is_const)


def _add_crossings(demand: Demand, values: Iterable[Value], roles: Iterable[str], source: str) -> None:
    for value in values:
        for role in roles:
            if role != source and value in demand.needed[role]:
                demand.crossings.setdefault(value, {})[role] = source
