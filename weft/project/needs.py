"""Who needs which value, and from whom it comes.

Every node that has a role runs there and needs its inputs there. Glue runs wherever its result is needed, so it passes
the need on to its inputs. A value that a role needs and another role's node makes is a crossing. A loop's carry that a
role needs at the start of a step it needs at the end too, for the next one; the fixed point of that is found by
repetition.

The results of a shared loop are made by whoever has their value in the loop anyway: the stacked rewards of a rollout
come from the environment's role in one piece, not step by step. Where nobody has it, the role that must be sent least
makes it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.graph.graph import Graph, Node, Value

Wants = dict[str, set[int]]
Wanted = dict[int, tuple[str, ...]]
NONE: Mapping[Value, str] = {}


@dataclass(frozen=True, eq=False)
class Needs:
    """One scope's answer: the values needed on each role, what crosses, and the same for the loops inside."""

    needed: dict[str, set[Value]]
    crossings: dict[Value, dict[str, str]] = field(default_factory=dict)
    """By value: the roles that receive it, and who sends it to each."""
    makers: dict[Value, tuple[str, ...]] = field(default_factory=dict)
    """By result of a shared loop: the roles that make it."""
    bodies: dict[Node, "Needs"] = field(default_factory=dict)
    terms: "Terms" = field(default_factory=lambda: Terms())

    def size(self, value: Value) -> int:
        return self.terms.sizes.get(value, value.bytes)

    def cost(self, times: int = 1) -> int:
        """Bytes that cross in this scope and below it."""
        own = sum(self.size(value) * len(receivers) for value, receivers in self.crossings.items())
        return times * (own + sum(body.cost(node.length) for node, body in self.bodies.items()))


@dataclass(frozen=True, eq=False)
class Terms:
    """What is known of values beside the graph."""

    sizes: Mapping[Value, int] = field(default_factory=dict)
    """The bytes that count for a value where these are not its own."""
    relaxed: Mapping[str, frozenset[Value]] = field(default_factory=dict)
    """By role: what it starts an iteration with but need not have at the end of it, for a register gives it anew."""
    written: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By role: the outputs that it must end with, for the register."""
    settled: dict[Any, tuple["Needs", Wanted]] = field(default_factory=dict, init=False)
    """Loops that were settled, by what was wanted of them: costs are compared by settling them again and again."""

    def relax(self, role: str, value: Value) -> bool:
        return value in self.relaxed.get(role, ())


Settle = Callable[[Wants], Needs]


def find_needs(
    graph: Graph,
    roles: tuple[str, ...],
    carried: int,
    groups: tuple[str, ...],
    terms: Terms,
) -> Needs:
    """The needs of a whole program, whose every output some role must end up with.

    The program is itself repeated: the first `carried` outputs are the next state, which whoever started from must have
    again, unless it is relaxed for them. Outputs of one group (a metric's total and count) are made by one role. Sizes
    decide who does where it is a question of cost.
    """
    shared = {output for node in graph.nodes if node.body is not None for output in node.outputs}
    loose = {output: group for output, group in zip(graph.outputs, groups, strict=True) if output in shared}
    held: Wants = {role: set(terms.written.get(role, ())) for role in roles}
    while True:
        needs = _settle_program(graph, roles, held, loose, groups, terms)
        # What is held only grows, so this ends.
        again = {role: held[role] | _again(role, graph.inputs[:carried], needs) for role in roles}
        if again == held:
            return needs
        held = again


def _settle_program(
    graph: Graph, roles: tuple[str, ...], held: Wants, loose: dict[Value, str], groups: tuple[str, ...], terms: Terms
) -> Needs:
    """The program where each role ends with the outputs it must hold, and every other output has some maker."""

    def settle(makes: Wants) -> Needs:
        return _settle(graph, roles, {role: makes[role] | held[role] for role in roles}, terms, loose)

    wanted = {
        index: tuple(role for role in roles if index in held[role])
        for index, output in enumerate(graph.outputs)
        if output not in loose
    }
    needs, makers = _place(graph, roles, wanted, settle, dict(enumerate(groups)))
    needs.makers.update({graph.outputs[index]: who for index, who in makers.items()})
    return needs


def _again(role: str, inputs: tuple[Value, ...], needs: Needs) -> set[int]:
    """Which of what is carried a role needs at the start, and so at the end."""
    return {i for i, value in enumerate(inputs) if value in needs.needed[role] and not needs.terms.relax(role, value)}


def _needing(needs: Needs, roles: tuple[str, ...], value: Value) -> tuple[str, ...]:
    return tuple(role for role in roles if value in needs.needed[role])


def _settle(
    graph: Graph, roles: tuple[str, ...], makes: Wants, terms: Terms, loose: Mapping[Value, str] = NONE
) -> Needs:
    """One scope where each role must end with the outputs that `makes` gives it, and somebody with the `loose` ones."""
    needs = Needs({role: set() for role in roles}, terms=terms)
    for role in roles:
        _need(needs, role, [graph.outputs[index] for index in makes[role]])
    for node in reversed(graph.nodes):
        if node.body is not None:
            _need_loop(needs, node, roles, loose)
        elif node.role is not None:
            _cross(needs, node.outputs, roles, node.role)
            _need(needs, node.role, node.inputs)
        else:
            for role in roles:
                if needs.needed[role].intersection(node.outputs):
                    _need(needs, role, node.inputs)
    return needs


def _need_loop(needs: Needs, node: Node, roles: tuple[str, ...], loose: Mapping[Value, str]) -> None:
    """A shared loop: settle who makes which result, then need what its body needs from outside."""
    body = node.body
    assert body is not None
    wanted = {
        index: _needing(needs, roles, output)
        for index, output in enumerate(node.outputs)
        if output in loose or _needing(needs, roles, output)
    }

    def settle(makes: Wants) -> Needs:
        return _settle_loop(node, body, roles, makes, needs.terms)

    groups = {index: loose[node.outputs[index]] for index in wanted if node.outputs[index] in loose}
    asked = (node, tuple(wanted.items()), tuple(groups.items()))
    if asked not in needs.terms.settled:
        needs.terms.settled[asked] = _place(body, roles, wanted, settle, groups)
    needs.bodies[node], makers = needs.terms.settled[asked]
    for index, who in makers.items():
        needs.makers[node.outputs[index]] = who
        _cross(needs, (node.outputs[index],), [role for role in roles if role not in who], who[0])
    for role in roles:
        inside = needs.bodies[node].needed[role]
        _need(needs, role, [outer for outer, inner in zip(node.inputs, body.inputs, strict=True) if inner in inside])


def _settle_loop(node: Node, body: Graph, roles: tuple[str, ...], makes: Wants, terms: Terms) -> Needs:
    """Repeat until whoever needs a carry at the start of a step also has it at the end."""
    makes = {role: set(indices) for role, indices in makes.items()}
    while True:
        needs = _settle(body, roles, makes, terms)
        before = sum(map(len, makes.values()))
        for role in roles:
            makes[role] |= _again(role, body.inputs[node.consts :][: len(node.carried)], needs)
        if sum(map(len, makes.values())) == before:
            return needs


def _place(
    graph: Graph, roles: tuple[str, ...], wanted: Wanted, settle: Settle, groups: Mapping[int, str]
) -> tuple[Needs, Wanted]:
    """Choose who makes each wanted output: who wants it and has it for nothing, else who has it, else the cheapest."""
    makes: Wants = {role: set() for role in roles}
    free = _Free(graph, settle(makes))
    makers: Wanted = {}
    together = _together(wanted, groups)
    for index, who in wanted.items():
        having = tuple(role for role in roles if all(free.at(role, graph.outputs[i]) for i in together[index]))
        makers[index] = tuple(role for role in having if role in who) or having[:1]
        for role in makers[index]:
            makes[role].add(index)
    for index in wanted:
        if not makers[index]:
            cheapest = _cheapest(graph, roles, makes, together[index], settle)
            makes[cheapest] |= together[index]
            makers |= dict.fromkeys(together[index], (cheapest,))
    # What was placed last may have brought to others what they want.
    free = _Free(graph, settle(makes))
    for index, who in wanted.items():
        makers[index] = tuple(role for role in who if free.at(role, graph.outputs[index])) or makers[index]
        for role in makers[index]:
            makes[role].add(index)
    return settle(makes), makers


def _together(wanted: Wanted, groups: Mapping[int, str]) -> dict[int, set[int]]:
    """For every output, those that must have the same maker: itself if some role wants it, else its whole group."""
    return {
        index: {index} if who else {i for i in wanted if i == index or (i in groups and groups[i] == groups.get(index))}
        for index, who in wanted.items()
    }


def _cheapest(graph: Graph, roles: tuple[str, ...], makes: Wants, outputs: set[int], settle: Settle) -> str:
    """The role that can make some outputs with the fewest bytes sent to it."""

    def cost(role: str) -> int:
        needs = settle(makes | {role: makes[role] | outputs})
        inputs = sum(needs.size(value) for value in graph.inputs for r in roles if value in needs.needed[r])
        return needs.cost() + inputs

    return min(roles, key=cost)


class _Free:
    """Whether a role could have a value without anything more being sent to it."""

    def __init__(self, graph: Graph, needs: Needs):
        self.needs = needs
        self.made = {output: node for node in graph.nodes for output in node.outputs}
        self.known: dict[tuple[str, Value], bool] = {}

    def at(self, role: str, value: Value) -> bool:
        if (role, value) not in self.known:
            self.known[role, value] = self._find(role, value)
        return self.known[role, value]

    def _find(self, role: str, value: Value) -> bool:
        if value.is_const or value in self.needs.needed[role]:
            return True
        node = self.made.get(value)
        if node is None:
            return False
        if node.body is not None:
            return role in self.needs.makers.get(value, ())
        return node.role == role if node.role else all(self.at(role, source) for source in node.inputs)


def _need(needs: Needs, role: str, values: Iterable[Value]) -> None:
    needs.needed[role].update(value for value in values if not value.is_const)


def _cross(needs: Needs, values: Iterable[Value], roles: Iterable[str], source: str) -> None:
    for value in values:
        for role in roles:
            if role != source and value in needs.needed[role]:
                needs.crossings.setdefault(value, {})[role] = source
