"""Finding the marks of `weft.fragments` and `weft.host` in a jaxpr.

Fragment names may be dotted: a role that runs `env` also runs `env.episodes`, unless the layout places that name
itself."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax.extend.core as jex

from weft.fragments import FRAGMENT, HOST, MERGE, REPLICA


class Mark(NamedTuple):
    """The mark of a call.

    The kinds are `fragment` and `host` (with their name), `merge` (with `mean` or `sum`) and `replica` (with `index` or
    `count`).
    """

    kind: str
    name: str


def mark_of(eqn: Any) -> Mark | None:
    """The mark of an equation, if it has one."""
    label = eqn.params.get("name", "") if eqn.primitive.name in ("jit", "pjit") else ""
    for prefix in (FRAGMENT, HOST, MERGE, REPLICA):
        if label.startswith(prefix):
            return Mark(prefix.removesuffix(":"), label.removeprefix(prefix))
    return None


def marks_in(eqn: Any) -> frozenset[Mark]:
    """All marks of an equation and of the equations inside it."""
    own = mark_of(eqn)
    inner = frozenset().union(*(_marks_of_jaxpr(jaxpr) for jaxpr in jex.jaxprs_in_params(eqn.params)))
    return inner | {own} if own else inner


def placed_role(name: str, placement: Mapping[str, str]) -> str | None:
    """The role that runs a fragment, by its name or by the longest dotted prefix of it in `placement`."""
    while name:
        if name in placement:
            return placement[name]
        name = name.rpartition(".")[0]
    return None


def count_calls(jaxpr: Any, name: str) -> int:
    """How often one evaluation of a jaxpr calls the fragment `name`. Calls in a loop count once per step.

    A call inside a call of the same name does not count: stepping a wrapped environment is one call.
    """
    return sum(_count_calls(eqn, name) for eqn in jaxpr.eqns)


def count_fragment_calls(eqn: Any, times: int) -> Counter[str]:
    """How often an equation calls each fragment. Of nested fragments, only the outermost counts."""
    mark = mark_of(eqn)
    if mark and mark.kind == "fragment":
        return Counter({mark.name: times})
    inner = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
    parts = [count_fragment_calls(e, inner) for part in jex.jaxprs_in_params(eqn.params) for e in part.eqns]
    return sum(parts, Counter())


def scan_shape(eqn: Any) -> tuple[int, int]:
    """The number of a scan's constant operands, and the size of its carry."""
    if "num_carry" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()  # jax 0.11 keeps the operands' structure instead
    return len(consts), len(carry)


def jaxpr_params(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parameters of an equation that are jaxprs or tuples of jaxprs, by name."""
    for key, value in params.items():
        if (
            isinstance(value, jex.ClosedJaxpr | jex.Jaxpr)
            or isinstance(value, tuple)
            and value
            and all(isinstance(item, jex.ClosedJaxpr) for item in value)
        ):
            yield key, value


def host_function(eqn: Any) -> Callable[..., Sequence[Any]]:
    """The Python function that an equation marked as host code calls, from its operands to its used results."""
    body = eqn.params["jaxpr"].jaxpr
    (call,) = body.eqns
    positions = [body.invars.index(atom) for atom in call.invars]
    used = [call.outvars.index(atom) for atom in body.outvars]
    in_order, all_used = positions == list(range(len(body.invars))), used == list(range(len(call.outvars)))
    # The flat function inside the callback: calling the callback itself would flatten its arguments once more.
    callback = call.params["callback"].callback_func

    def function(*operands: Any) -> Sequence[Any]:
        results = callback(*(operands if in_order else [operands[index] for index in positions]))
        return results if all_used else [results[index] for index in used]

    return function


def token_index(eqn: Any) -> int | None:
    """The index of a host call's order token among its operands; None if the first result is not the next token."""
    body = eqn.params["jaxpr"].jaxpr
    (call,) = body.eqns
    return body.invars.index(call.invars[0]) if body.outvars[:1] == call.outvars[:1] else None


_cache: WeakKeyDictionary[Any, frozenset[Mark]] = WeakKeyDictionary()


def _marks_of_jaxpr(jaxpr: Any) -> frozenset[Mark]:
    if jaxpr not in _cache:
        _cache[jaxpr] = frozenset().union(*(marks_in(eqn) for eqn in jaxpr.eqns))
    return _cache[jaxpr]


def _count_calls(eqn: Any, name: str) -> int:
    if mark_of(eqn) == Mark("fragment", name):
        return 1
    times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return times * sum(count_calls(part, name) for part in jex.jaxprs_in_params(eqn.params))
