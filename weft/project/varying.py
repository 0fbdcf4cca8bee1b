"""Which values may differ between the replicas of a role.

A replica's share of the environments and its random keys are its own; what is computed from them varies, and a merge
makes it the same again. A leaf of the state that varies, has no batch axis and is no key would be a different thing on
each replica, and nobody could say which one the state is: that is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jex

from weft.graph.graph import Graph, Node, Value
from weft.graph.marks import mark_of, scan_shape, token_place

Flags = dict[Value, bool]


def find_varying(graph: Graph, role: str, inputs: Sequence[bool], received: Callable[[Node, int], bool]) -> Flags:
    """For every value as `role` sees it, whether it varies; `received` answers for what another role makes."""
    flags: Flags = {}
    _scope(graph, role, inputs, received, flags)
    return flags


def _scope(graph: Graph, role: str, inputs: Sequence[bool], received: Any, flags: Flags) -> list[bool]:
    flags.update(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        given = [flags.get(value, False) for value in node.inputs]
        if node.body is not None:
            results = _loop(node, role, given, received, flags)
        elif node.role not in (None, role):
            # What has no key is inside another role's fragment, and nobody else sees it.
            results = [bool(node.key) and received(node, index) for index in range(len(node.outputs))]
        elif node.kind == "merge":
            results = [False] * len(node.outputs)
        else:
            results = given if node.eqn is None else equation_varies(node.eqn, given)
        flags.update(zip(node.outputs, results, strict=True))
    return [flags.get(value, False) for value in graph.outputs]


def _loop(node: Node, role: str, given: list[bool], received: Any, flags: Flags) -> list[bool]:
    body, given = node.body, list(given)
    assert body is not None

    def once(current: Sequence[bool]) -> list[bool]:
        return _scope(body, role, current, received, flags)

    return _fixed_point(once, given, node.consts, len(node.carried))


def equation_varies(eqn: Any, given: Sequence[bool]) -> list[bool]:
    """Which results of an equation vary, looking for merges inside calls and loops."""
    mark = mark_of(eqn)
    if mark and mark.kind == "merge":
        return [False] * len(eqn.outvars)
    if mark and mark.kind == "host":
        # A token counts calls, and replicas make as many.
        place = token_place(eqn)
        return [index > 0 or place is None or given[place] for index in range(len(eqn.outvars))]
    if mark and mark.kind == "replica":
        return [mark.name == "index"]
    if eqn.primitive.name in ("jit", "pjit"):
        return _jaxpr_varies(eqn.params["jaxpr"], given)
    if eqn.primitive.name == "scan":
        body = eqn.params["jaxpr"]
        return _fixed_point(lambda now: _jaxpr_varies(body, now), list(given), *scan_shape(eqn))
    return [any(given)] * len(eqn.outvars)


def _jaxpr_varies(closed: Any, given: Sequence[bool]) -> list[bool]:
    flags = dict(zip(closed.jaxpr.invars, given, strict=True))

    def flag(atom: Any) -> bool:
        return not isinstance(atom, jex.Literal) and flags.get(atom, False)

    for eqn in closed.jaxpr.eqns:
        flags.update(zip(eqn.outvars, equation_varies(eqn, [flag(atom) for atom in eqn.invars]), strict=True))
    return [flag(atom) for atom in closed.jaxpr.outvars]


def _fixed_point(
    once: Callable[[Sequence[bool]], list[bool]], given: list[bool], consts: int, carried: int
) -> list[bool]:
    """Repeat a loop's body until what varies at the end of a step varies at its start too."""
    while True:
        results = once(given)
        carry = [
            before or after for before, after in zip(given[consts : consts + carried], results[:carried], strict=True)
        ]
        if carry == given[consts : consts + carried]:
            return carry + results[carried:]
        given = given[:consts] + carry + given[consts + carried :]
