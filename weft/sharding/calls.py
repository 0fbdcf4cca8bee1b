"""The shardings of the results of equations that hold other equations: calls, loops, branches."""

from collections.abc import Sequence
from typing import Any

from weft.graph.marks import scan_shape
from weft.sharding.propagate import Propagation, Rule, Shardings, blocking
from weft.sharding.sharding import Sharding, common_fold, describe, join, unknown


def _call(name: str) -> Rule:
    def rule(work: Propagation, whole: Any, share: Any, operands: Shardings) -> Shardings:
        return work.jaxpr(whole.params[name], share.params[name], operands)

    return rule


def _scan(work: Propagation, whole: Any, share: Any, operands: Shardings) -> Shardings:
    consts, carried = scan_shape(share)
    lengths = whole.params["length"], share.params["length"]
    if lengths[0] != lengths[1]:
        return work.structures_differ(share, operands, other_length(lengths))
    operands = [*operands[: consts + carried], *(inside(sharding) for sharding in operands[consts + carried :])]
    bodies = whole.params["jaxpr"], share.params["jaxpr"]
    results = work.loop(lambda current: work.jaxpr(*bodies, current), operands, consts, carried)
    return [*results[:carried], *(outside(sharding) for sharding in results[carried:])]


def other_length(lengths: tuple[int, int]) -> Sharding:
    return unknown(
        f"comes from a loop of {lengths[0]} steps with all environments and of {lengths[1]} on a replica: make the "
        "number of steps independent of env.num_envs"
    )


def inside(sharding: Sharding) -> Sharding:
    """The sharding of one row of a loop's stacked input."""
    if sharding.kind != "sharded":
        return sharding
    return sharding.moved(sharding.axis - 1) if sharding.axis else unknown("is one row of a loop over the environments")


def outside(sharding: Sharding) -> Sharding:
    """The sharding of a loop's stacked result."""
    return sharding.moved(sharding.axis + 1) if sharding.kind == "sharded" else sharding


def _while(work: Propagation, whole: Any, share: Any, operands: Shardings) -> Shardings:
    tested, changed = share.params["cond_nconsts"], share.params["body_nconsts"]
    for_test, rest = operands[:tested], operands[tested:]
    bodies = whole.params["body_jaxpr"], share.params["body_jaxpr"]
    results = work.loop(lambda current: work.jaxpr(*bodies, current), rest, changed, len(rest) - changed)
    tests = whole.params["cond_jaxpr"], share.params["cond_jaxpr"]
    (again,) = work.jaxpr(*tests, [*for_test, *results])
    return [_chosen(again, sharding, "a loop whose number of steps") for sharding in results]


def _cond(work: Propagation, whole: Any, share: Any, operands: Shardings) -> Shardings:
    index, values = operands[0], operands[1:]
    branches = zip(whole.params["branches"], share.params["branches"], strict=True)
    columns = zip(*[work.jaxpr(a, b, values) for a, b in branches], strict=True)
    return [_chosen(index, _joined(column), "a branch whose choice") for column in columns]


def _joined(shardings: Sequence[Sharding]) -> Sharding:
    result = shardings[0]
    for sharding in shardings[1:]:
        result = join(result, sharding)
    return result


def _chosen(choice: Sharding, sharding: Sharding, what: str) -> Sharding:
    """The sharding of a value that depends on a choice. A `while` under `jax.vmap` has a choice for each row."""
    if blocked := blocking([choice, sharding]):
        return blocked
    if choice.kind == sharding.kind == "sharded" and choice.is_exact and choice.axis == sharding.axis:
        folded = common_fold(choice.folded, sharding.folded)
        if folded is not None:
            return sharding.moved(sharding.axis, folded).depending_on(choice.depends_on)
    if choice.kind in ("replicated", "zero") and choice.is_exact:
        return sharding.depending_on(choice.depends_on)
    return unknown(f"comes from {what} is {describe(choice)}")


CONTROL: dict[str, Rule] = {
    **dict.fromkeys(("jit", "pjit", "checkpoint", "remat2"), _call("jaxpr")),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "closed_call", "core_call"), _call("call_jaxpr")),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
