"""Finding the marks of `weft.fragments` and `weft.host` in a jaxpr.

Fragment names may be dotted: a role that runs `env` also runs `env.episodes`, unless the layout places that name
itself."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax.extend.core as jex

from weft.errors import WeftError
from weft.fragments import FRAGMENT, HOST, MERGE, PER_REPLICA, REPLICA, ROWS


class Mark(NamedTuple):
    """The mark of a call.

    The kinds are `fragment` and `host` (with their name), `merge` (with `mean`, `sum` or `gather` and an axis),
    `replica` (with `index` or `count`), `per_replica`, and `rows` (with the primitive that creates rows, see `rows`).
    """

    kind: str
    name: str


def mark_of(eqn: Any) -> Mark | None:
    """The mark of an equation, if it has one."""
    label = eqn.params.get("name", "") if eqn.primitive.name in ("jit", "pjit") else ""
    for prefix in (FRAGMENT, HOST, MERGE, PER_REPLICA, REPLICA, ROWS):
        if label.startswith(prefix):
            return Mark(prefix.removesuffix(":"), label.removeprefix(prefix))
    return None


def marks_in(eqn: Any) -> frozenset[Mark]:
    """All marks of an equation and of the equations inside it."""
    own = mark_of(eqn)
    inner = frozenset().union(*(_marks_of_jaxpr(jaxpr) for jaxpr in jex.jaxprs_in_params(eqn.params)))
    return inner | {own} if own else inner


def uses_replica_index(eqn: Any) -> bool:
    """Whether an equation asks for the index of the replica that runs it."""
    return any(mark == Mark("replica", "index") for mark in marks_in(eqn))


def placed_role(name: str, placement: Mapping[str, str]) -> str | None:
    """The role that runs a fragment, by its name or by the longest dotted prefix of it in `placement`."""
    while name:
        if name in placement:
            return placement[name]
        name = name.rpartition(".")[0]
    return None


def count_calls(jaxpr: Any, name: str, rows: int | None = None) -> int:
    """How often one evaluation of a jaxpr calls the fragment `name`. Calls in a loop count once per step.

    A call inside a call of the same name does not count: stepping a wrapped environment is one call. A call under
    `jax.vmap` counts once for each element of the mapped axes, if it returns an array with one entry for each of `rows`
    rows. Raises an error if the number of calls is not fixed.
    """
    return sum(_count_calls(eqn, name, rows) for eqn in jaxpr.eqns)


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


def refuse_mapped_host_call(eqn: Any) -> None:
    """Reject a host call under `jax.vmap`: weft calls the function itself, with the arrays that it declares."""
    calls = eqn.params["jaxpr"].jaxpr.eqns
    if len(calls) != 1 or calls[0].primitive.name != "io_callback":
        mark = mark_of(eqn)
        raise WeftError(
            f"the host code {mark.name if mark else ''!r} is called under jax.vmap: call it once, with an array that "
            "holds all rows, outside jax.vmap"
        )


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


def _count_calls(eqn: Any, name: str, rows: int | None) -> int:
    if mark_of(eqn) == Mark("fragment", name):
        return _mapped_calls(eqn, rows)
    times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    counts = [count_calls(part, name, rows) for part in jex.jaxprs_in_params(eqn.params)]
    if eqn.primitive.name == "while" and any(counts):
        raise WeftError(
            f"a `while` loop calls {name}, so the number of its calls in an iteration is not fixed: call it in a "
            "`lax.scan`, or define the algorithm's property steps_per_iteration"
        )
    if eqn.primitive.name == "cond":
        if len(set(counts)) > 1:
            raise WeftError(
                f"the branches of a `cond` call {name} {' or '.join(map(str, sorted(set(counts))))} times: call it "
                "equally often in each, or define the algorithm's property steps_per_iteration"
            )
        return counts[0]
    return times * sum(counts)


def _mapped_calls(eqn: Any, rows: int | None) -> int:
    """1, or the number of calls that `jax.vmap` made one: a step of the environment returns one reward for each row."""
    shapes = [var.aval.shape for var in eqn.outvars]
    if rows is None or (rows,) in shapes:
        return 1
    mapped = min((shape for shape in shapes if shape[-1:] == (rows,)), key=len, default=())
    return math.prod(mapped[:-1])
