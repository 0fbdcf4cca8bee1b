"""Recognising in a jaxpr what `weft.fragment` marked.

Names may be dotted: whoever places `env` places `env.episodes` too, unless that is placed apart.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax.extend.core as jex

from weft.fragments import FRAGMENT, HOST, MERGE, REPLICA


class Mark(NamedTuple):
    """A marked call: a fragment or host code by its name, a merge by its operation, `replica` by which number."""

    kind: str
    name: str


def mark_of(eqn: Any) -> Mark | None:
    """The mark that an equation carries, if any."""
    label = eqn.params.get("name", "") if eqn.primitive.name in ("jit", "pjit") else ""
    for prefix in (FRAGMENT, HOST, MERGE, REPLICA):
        if label.startswith(prefix):
            return Mark(prefix.removesuffix(":"), label.removeprefix(prefix))
    return None


def marks_in(eqn: Any) -> frozenset[Mark]:
    """Every mark on an equation and anywhere inside it."""
    own = mark_of(eqn)
    inner = frozenset().union(*(_marks_of_jaxpr(jaxpr) for jaxpr in jex.jaxprs_in_params(eqn.params)))
    return inner | {own} if own else inner


def placed_role(name: str, placement: Mapping[str, str]) -> str | None:
    """The role that runs a fragment: by its own name, or by the longest dotted prefix of it that is placed."""
    while name:
        if name in placement:
            return placement[name]
        name = name.rpartition(".")[0]
    return None


def count_calls(jaxpr: Any, name: str) -> int:
    """How often one run of a jaxpr calls the fragment `name`; loops count by their length.

    A call within a call of the same name is part of it: a wrapped environment is stepped once.
    """
    return sum(_calls(eqn, name) for eqn in jaxpr.eqns)


def count_fragment_calls(eqn: Any, times: int) -> Counter[str]:
    """How often an equation calls each fragment, counting only the outermost of nested ones."""
    mark = mark_of(eqn)
    if mark and mark.kind == "fragment":
        return Counter({mark.name: times})
    inner = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
    parts = [count_fragment_calls(e, inner) for part in jex.jaxprs_in_params(eqn.params) for e in part.eqns]
    return sum(parts, Counter())


def scan_shape(eqn: Any) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are its carry."""
    if "num_carry" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()  # jax 0.11 keeps the operands' structure instead
    return len(consts), len(carry)


def jaxpr_params(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parameters of an equation that hold closed jaxprs, as (name, jaxpr or tuple of them)."""
    for key, value in params.items():
        if (
            isinstance(value, jex.ClosedJaxpr | jex.Jaxpr)
            or isinstance(value, tuple)
            and value
            and all(isinstance(item, jex.ClosedJaxpr) for item in value)
        ):
            yield key, value


def host_function(eqn: Any) -> Callable[..., Sequence[Any]]:
    """What an equation marked as host code calls, from its operands to those of its results that are used."""
    body = eqn.params["jaxpr"].jaxpr
    (call,) = body.eqns
    given = [body.invars.index(atom) for atom in call.invars]
    wanted = [call.outvars.index(atom) for atom in body.outvars]
    in_order, all_wanted = given == list(range(len(body.invars))), wanted == list(range(len(call.outvars)))
    # Its own function takes and gives flat lists: JAX's way around it would only flatten them once more.
    callback = call.params["callback"].callback_func

    def function(*operands: Any) -> Sequence[Any]:
        results = callback(*(operands if in_order else [operands[index] for index in given]))
        return results if all_wanted else [results[index] for index in wanted]

    return function


def token_index(eqn: Any) -> int | None:
    """Which operand of an equation marked as host code is its token; None if its first result is not the next one."""
    body = eqn.params["jaxpr"].jaxpr
    (call,) = body.eqns
    return body.invars.index(call.invars[0]) if body.outvars[:1] == call.outvars[:1] else None


_known: WeakKeyDictionary[Any, frozenset[Mark]] = WeakKeyDictionary()


def _marks_of_jaxpr(jaxpr: Any) -> frozenset[Mark]:
    if jaxpr not in _known:
        _known[jaxpr] = frozenset().union(*(marks_in(eqn) for eqn in jaxpr.eqns))
    return _known[jaxpr]


def _calls(eqn: Any, name: str) -> int:
    if mark_of(eqn) == Mark("fragment", name):
        return 1
    times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return times * sum(count_calls(part, name) for part in jex.jaxprs_in_params(eqn.params))
