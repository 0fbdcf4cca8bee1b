"""The shardings of the results of marked calls: merges, `replica()`, `per_replica`, rows, host code."""

from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.marks import Mark, mark_of, token_index
from weft.graph.rows import differing_axis
from weft.sharding.merges import REFUSED, Merges, merge_one
from weft.sharding.pair import Pair
from weft.sharding.propagate import Propagation, Shardings, blocking
from weft.sharding.sharding import LANE, OWN, Sharding, all_causes, describe, sharded, unknown


def _merge(work: Propagation, mark: Mark, whole: Any, share: Any, operands: Shardings) -> Shardings:
    """Records what the merge does with each operand."""
    shapes = [(a.aval.shape, b.aval.shape) for a, b in zip(whole.invars, share.invars, strict=True)]
    if not work.merges_replicas and mark.name.startswith("gather"):
        return [unknown("collects the rows of lanes that do not wait for each other with all_gather")] * len(operands)
    if not work.merges_replicas:
        return [
            each if each.kind in ("unknown", "pending") else Sharding("own", depends_on=each.depends_on | OWN | LANE)
            for each in operands
        ]
    merged = [merge_one(mark.name, each, has_rows=a != b) for each, (a, b) in zip(operands, shapes, strict=True)]
    refusal = next((sharding.reason for operation, sharding in merged if operation == REFUSED), "")
    operations = tuple(operation for operation, _ in merged)
    work.merges.add(Merges({} if refusal else {id(share): operations}, refusal=refusal))
    return [sharding for _, sharding in merged]


def _replica(work: Propagation, mark: Mark, whole: Any, share: Any, operands: Shardings) -> Shardings:
    return [Sharding("own", depends_on=OWN) if mark.name == "index" else Sharding("replicated", power=1)]


def _per_replica(work: Propagation, mark: Mark, whole: Any, share: Any, operands: Shardings) -> Shardings:
    return [each if each.kind == "pending" else Sharding("own", depends_on=each.depends_on | OWN) for each in operands]


def _rows(work: Propagation, mark: Mark, whole: Any, share: Any, operands: Shardings) -> Shardings:
    """A call that creates the replica's own rows, or that indexes them."""
    name, _, columns = mark.name.partition(" ")
    inner = mark_of(whole)
    if whole.primitive.name != name and not (inner and inner.kind == "rows"):
        return work.structures_differ(share, operands)
    if blocked := blocking(operands):
        return [blocked] * len(share.outvars)
    if columns:
        indexed = tuple(int(column) for column in columns.split(","))
        return work.by_rule(Pair(name, _inner(name, whole), _inner(name, share), operands, indexed))
    odd = next((each for each in operands if each.kind not in ("replicated", "zero") or not each.is_exact), None)
    if odd is not None:
        return [unknown(f"is drawn with keys that are {describe(odd)}")]
    axis = differing_axis(whole.outvars[0].aval.shape, share.outvars[0].aval.shape)
    assert axis is not None
    return [sharded(axis).depending_on(all_causes(operands))]


def _inner(name: str, eqn: Any) -> Any:
    """The gather or scatter itself, or the one in a call that indexes a replica's own rows."""
    return eqn if eqn.primitive.name == name else next(e for e in eqn.params["jaxpr"].eqns if e.primitive.name == name)


def _host(work: Propagation, mark: Mark, whole: Any, share: Any, operands: Shardings) -> Shardings:
    """Results of host code. The order token counts calls, which all replicas make; a result with a row for every
    environment is sharded, because host code that is called for some rows must treat them like the same rows of all."""
    token = token_index(share)
    shapes = zip([var.aval.shape for var in whole.outvars], [var.aval.shape for var in share.outvars], strict=True)
    results = [_host_result(mark, *each, operands) for each in shapes]
    if token is not None and not any(sharding.is_unknown for sharding in operands):
        results[0] = operands[token]
    return results


def _host_result(mark: Mark, whole: Sequence[int], share: Sequence[int], operands: Shardings) -> Sharding:
    if blocked := blocking(operands):
        return blocked
    odd = next((each for each in operands if each.kind == "partial" or not each.is_exact), None)
    if odd is not None:
        return unknown(f"comes from the host function {mark.name}, which is given a value that is {describe(odd)}")
    axis = differing_axis(whole, share)
    if axis is None:
        return unknown(f"comes from the host function {mark.name} and has no row for every environment")
    return sharded(axis).depending_on(all_causes(operands))


MARKS: dict[str, Callable[..., Shardings]] = {
    "merge": _merge,
    "replica": _replica,
    "per_replica": _per_replica,
    "rows": _rows,
    "host": _host,
}
