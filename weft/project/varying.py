"""Variation: which values may differ between the replicas of a role.

Each replica has its own share of the environments and its own random keys. A value that is computed from them varies; a
merge over the replicas makes it equal again. A leaf of the state that varies and is neither a key nor divided along a
batch axis would have a different value on each replica, and it would be undefined which one is the state. Such a loop
is refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from weft.errors import WeftError
from weft.graph.graph import Graph, Node, Value
from weft.graph.marks import mark_of, scan_shape, token_index
from weft.layout.layout import Layout, Role
from weft.project.emit import ValueKey
from weft.project.links import is_key
from weft.project.views import View

Flags = dict[Value, bool]
"""Whether each value varies."""
ReceivedVaries = Callable[[Node, int], bool]
"""Whether a result of another role's node varies between the replicas that receive it."""


@dataclass
class Variation:
    """For every role with several instances: which values may differ between them."""

    layout: Layout
    views: dict[str, View]
    batch_axes: dict[str, tuple[int | None, ...]]

    def __post_init__(self) -> None:
        self.flags: dict[str, Flags] = {role.name: {} for role in self.layout.roles}
        # A received value varies if it varies on the role that sends it, so repeat until nothing changes.
        while any([self.update(role) for role in self.layout.roles if role.instances > 1]):
            pass

    def update(self, role: Role) -> bool:
        """Compute a role's flags from those of the other roles. Returns whether they changed."""
        graph = self.views[role.name].graph
        axes = self.batch_axes[role.name]
        inputs = [axis is not None or is_key(value.aval) for axis, value in zip(axes, graph.inputs, strict=True)]
        flags = find_varying(graph, role.name, inputs, lambda node, index: self.received_varies(role, node, index))
        changed = flags != self.flags[role.name]
        self.flags[role.name] = flags
        return changed

    def received_varies(self, role: Role, node: Node, index: int) -> bool:
        source = node.role or role.name
        sent, received = self.views[source].values[node.key, index], node.outputs[index]
        return sent.shape != received.shape or is_key(received.aval) or self.varies(source, (node.key, index))

    def varies(self, role: str, key: ValueKey) -> bool:
        return self.flags[role].get(self.views[role].values[key], False)

    def refuse_diverging_state(self) -> None:
        """Reject a loop that would leave the replicas of a role with different values of one leaf of the state."""
        for role in self.layout.roles:
            if role.instances > 1:
                self._refuse_diverging_state(role)

    def _refuse_diverging_state(self, role: Role) -> None:
        view = self.views[role.name]
        names = view.trace.state_names
        leaves = zip(names, self.batch_axes[role.name], view.graph.outputs[: len(names)], strict=True)
        for name, axis, output in leaves:
            produced = role.name in view.demand.producers[output]
            if produced and axis is None and not is_key(output.aval) and self.flags[role.name].get(output, False):
                raise WeftError(
                    f"{name} would come to differ between the {role.instances} replicas of {role.name}: it has no "
                    "batch axis, and it is computed from values that differ; merge these with all_mean or all_sum"
                )


def find_varying(graph: Graph, role: str, inputs: Sequence[bool], received_varies: ReceivedVaries) -> Flags:
    """For every value as `role` sees it: whether it varies. `inputs` says which of the graph's inputs do."""
    flags: Flags = {}
    _scan_scope(graph, role, inputs, received_varies, flags)
    return flags


def equation_varies(eqn: Any, inputs: Sequence[bool]) -> list[bool]:
    """Which results of an equation vary, given which inputs do. Merges inside calls and loops count."""
    mark = mark_of(eqn)
    if mark and mark.kind == "merge":
        return [False] * len(eqn.outvars)
    if mark and mark.kind == "host":
        # An order token counts calls, and all replicas make the same number of calls.
        token = token_index(eqn)
        return [index > 0 or token is None or inputs[token] for index in range(len(eqn.outvars))]
    if mark and mark.kind == "replica":
        return [mark.name == "index"]
    if eqn.primitive.name in ("jit", "pjit"):
        return _jaxpr_varies(eqn.params["jaxpr"], inputs)
    if eqn.primitive.name == "scan":
        body = eqn.params["jaxpr"]
        return _fixed_point(lambda current: _jaxpr_varies(body, current), list(inputs), *scan_shape(eqn))
    return [any(inputs)] * len(eqn.outvars)


def _scan_scope(
    graph: Graph, role: str, inputs: Sequence[bool], received_varies: ReceivedVaries, flags: Flags
) -> list[bool]:
    flags.update(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        operands = [flags.get(value, False) for value in node.inputs]
        if node.body is not None:
            results = _scan_loop(node, role, operands, received_varies, flags)
        elif node.role not in (None, role):
            # A node without a key is inside another role's fragment, and its results never leave that role.
            results = [bool(node.key) and received_varies(node, index) for index in range(len(node.outputs))]
        elif node.kind == "merge":
            results = [False] * len(node.outputs)
        else:
            results = operands if node.eqn is None else equation_varies(node.eqn, operands)
        flags.update(zip(node.outputs, results, strict=True))
    return [flags.get(value, False) for value in graph.outputs]


def _scan_loop(
    node: Node, role: str, operands: list[bool], received_varies: ReceivedVaries, flags: Flags
) -> list[bool]:
    body = node.body
    assert body is not None

    def step(current: Sequence[bool]) -> list[bool]:
        return _scan_scope(body, role, current, received_varies, flags)

    return _fixed_point(step, list(operands), node.consts, len(node.carried))


def _jaxpr_varies(closed: Any, inputs: Sequence[bool]) -> list[bool]:
    flags = dict(zip(closed.jaxpr.invars, inputs, strict=True))

    def flag(atom: Any) -> bool:
        return not isinstance(atom, jex.Literal) and flags.get(atom, False)

    for eqn in closed.jaxpr.eqns:
        flags.update(zip(eqn.outvars, equation_varies(eqn, [flag(atom) for atom in eqn.invars]), strict=True))
    return [flag(atom) for atom in closed.jaxpr.outvars]


def _fixed_point(
    step: Callable[[Sequence[bool]], list[bool]], inputs: list[bool], consts: int, carried: int
) -> list[bool]:
    """Apply a loop's body until every part of the carry that varies at the end of a step varies at its start, too."""
    while True:
        results = step(inputs)
        before, after = inputs[consts : consts + carried], results[:carried]
        carry = [old or new for old, new in zip(before, after, strict=True)]
        if carry == before:
            return carry + results[carried:]
        inputs = inputs[:consts] + carry + inputs[consts + carried :]
