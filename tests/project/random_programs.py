"""Random training loops as plain data, and an interpreter for them.

A loop has random fragments, host code, nested loops, glue and a random assignment of values to the next state. All
arithmetic is on small whole numbers, even if the dtype is float. Every result is therefore exact, and a program has one
correct result for any grouping of its operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from weft import Algorithm, Layout, Role, all_gather, all_mean, all_sum, fragment
from weft.host import host_call, new_token
from weft.metrics import Mean

FRAGMENTS = ("a", "b", "c", "d", "e")
KINDS = ("float", "int", "bool", "key")


class Glue(NamedTuple):
    op: str
    args: tuple[int, ...]


class Call(NamedTuple):
    name: str
    args: tuple[int, ...]
    body: tuple[Any, ...]
    results: tuple[int, ...]


class Scan(NamedTuple):
    length: int
    reverse: bool
    carry: tuple[int, ...]
    xs: tuple[int, ...]
    body: tuple[Any, ...]
    carry_out: tuple[int, ...]
    ys: tuple[int, ...]


@jax.custom_vjp
def _custom(x: jax.Array) -> jax.Array:
    return jnp.mod(x * 7 + 3, 31)


_custom.defvjp(lambda x: (_custom(x), None), lambda _, g: (g,))


def _draw_each(keys: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: jax.random.randint(key, (), 0, 31))(keys).astype(jnp.float32)


def _host(x: jax.Array) -> jax.Array:
    def double(token: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.mod(x * 2 + 1, 31)

    return host_call(double, jax.ShapeDtypeStruct(x.shape, x.dtype), new_token(len(x)), x, name="host")[1]


OPS: dict[str, tuple[tuple[str, ...], str, Callable[..., Any]]] = {
    "mix": (("float", "float"), "float", lambda a, b: jnp.mod(a * 2 + b * 3 + 1, 31)),
    "shift": (("float", "int"), "float", lambda a, i: jnp.mod(a + i.astype(jnp.float32), 31)),
    "pick": (("bool", "float", "float"), "float", jnp.where),
    "roll": (("float",), "float", lambda a: jnp.roll(a, 1)),
    "vmap": (("float", "float"), "float", jax.vmap(lambda a, b: jnp.mod(a * b, 31))),
    "remat": (("float",), "float", jax.checkpoint(lambda a: jnp.mod(a * 5 + 2, 31))),
    "custom": (("float",), "float", _custom),
    "host": (("float",), "float", lambda a: _host(a)),
    "count": (("int",), "int", lambda i: (i * 3 + 1) % 17),
    "total": (("float",), "int", lambda a: all_sum(jnp.sum(a)).astype(jnp.int32) % 17),
    "mean": (("float",), "int", lambda a: all_mean(jnp.mean(a)).astype(jnp.int32) % 17),
    "largest": (("float",), "int", lambda a: jnp.max(all_gather(a)).astype(jnp.int32)),
    "above": (("float",), "bool", lambda a: all_sum(jnp.sum(a)) > 40),
    "not": (("bool",), "bool", jnp.logical_not),
    "split": (("key",), "key", lambda k: jax.random.split(k)[0]),
    "fold": (("key", "int"), "key", jax.random.fold_in),
    "draw": (("key", "float"), "float", lambda k, a: jax.random.randint(k, a.shape, 0, 31).astype(jnp.float32)),
    "keys": (("key", "float"), "float", lambda k, a: _draw_each(jax.random.split(k, len(a)))),
    "number": (("float",), "float", lambda a: jnp.mod(a + jnp.arange(len(a)) * 5, 31)),
    "sum2": (("float2",), "float", lambda s: jnp.mod(jnp.sum(s, axis=0), 31)),
    "sum3": (("float3",), "float", lambda s: jnp.mod(jnp.sum(s, axis=0), 31)),
}


def interpret(body: tuple[Any, ...], values: list[Any]) -> list[Any]:
    """Execute statements, each of which appends its results to the list of values."""
    for statement in body:
        match statement:
            case Glue(op, args):
                values = [*values, OPS[op][2](*[values[i] for i in args])]
            case Call(name, args, inner, results):
                call = fragment(lambda *xs, inner=inner, results=results: _results(inner, list(xs), results), name=name)
                values = [*values, *call(*[values[i] for i in args])]
            case Scan():
                values = [*values, *_scan(statement, values)]
    return values


def _results(body: tuple[Any, ...], values: list[Any], results: tuple[int, ...]) -> tuple[Any, ...]:
    values = interpret(body, values)
    return tuple(values[i] for i in results)


def _scan(scan: Scan, values: list[Any]) -> list[Any]:
    def tick(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        inside = interpret(scan.body, [*values, *carry, *xs])
        return tuple(inside[i] for i in scan.carry_out), tuple(inside[i] for i in scan.ys)

    init, xs = tuple(values[i] for i in scan.carry), tuple(values[i] for i in scan.xs)
    carry, ys = lax.scan(tick, init, xs, length=scan.length, reverse=scan.reverse)
    return [*carry, *ys]


@dataclass(frozen=True, kw_only=True)
class Random(Algorithm):
    """A random loop: kinds of the leaves, statements of one iteration, and indices of the next leaves and metrics."""

    kinds: tuple[str, ...]
    body: tuple[Any, ...]
    wiring: tuple[int, ...]
    metrics: tuple[int, ...]

    def init(self, env: Any, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, len(self.kinds))
        return {
            f"leaf{i}": _first(kind, k, env.num_envs) for i, (kind, k) in enumerate(zip(self.kinds, keys, strict=True))
        }

    def step(self, env: Any, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Mean]]:
        values = interpret(self.body, list(state.values()))
        state = {name: values[i] for name, i in zip(state, self.wiring, strict=True)}
        return state, {f"metric{n}": Mean.of(values[i]) for n, i in enumerate(self.metrics)}


def _first(kind: str, key: jax.Array, rows: int) -> jax.Array:
    floats = jax.random.randint(key, (rows,), 0, 31)
    first = {"float": floats.astype(jnp.float32), "int": floats[0], "bool": floats[0] > 15, "key": key}
    return first[kind]


@st.composite
def programs(draw: st.DrawFn, *, most_replicas: int = 1) -> tuple[Random, Layout]:
    """A random loop of 2 to 5 fragments, with loops nested at most two deep, and a layout of 1 to 3 roles for it."""
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=5))) + ("float", "key")
    names = FRAGMENTS[: draw(st.integers(2, 5))]
    body, final = _body(draw, list(kinds), names, depth=2, must=names)
    used = sorted(_used(body))
    wiring = tuple(draw(_of_kind(final, kind)) for kind in kinds)
    floats = [i for i, kind in enumerate(final) if kind == "float"]
    metrics = tuple(draw(st.lists(st.sampled_from(floats), max_size=3)))
    return Random(num_envs=4, kinds=kinds, body=body, wiring=wiring, metrics=metrics), draw(
        _layouts(used, most_replicas)
    )


@st.composite
def _layouts(draw: st.DrawFn, used: list[str], most_replicas: int) -> Layout:
    count = draw(st.sampled_from((3, 2, 1)))
    named = [name for name in used if draw(st.integers(0, 4)) < 4] or used
    placed = {name: (i + draw(st.integers(0, count - 1))) % count for i, name in enumerate(named)} | {"*": count - 1}
    runs = [tuple(name for name in placed if placed[name] == role) for role in range(count)]
    counts = [count for count in (1, 2, 4) if count <= most_replicas]
    roles = [Role(f"role{i}", names, draw(st.sampled_from(counts))) for i, names in enumerate(runs) if names]
    return Layout(*draw(st.permutations(roles)))


def _body(draw: st.DrawFn, kinds: list[str], names: tuple[str, ...], depth: int, must: tuple[str, ...] = ()) -> Any:
    """Statements that call every fragment of `must`, and the kinds of all values after them."""
    body = []
    while must or draw(st.booleans()):
        choices = ["call", *(["scan"] if depth else []), "glue"]
        now, must = must[: (count := draw(st.integers(1, 3)))], must[count:]
        statement, result_kinds = _STATEMENTS[draw(st.sampled_from(choices))](draw, kinds, names, depth, now)
        if not isinstance(statement, Scan):
            must = now[isinstance(statement, Call) :] + must
        if statement is not None:
            body.append(statement)
            kinds = [*kinds, *result_kinds]
    return tuple(body), kinds


def _glue(draw: st.DrawFn, kinds: list[str], names: tuple[str, ...], depth: int, must: tuple[str, ...]) -> Any:
    possible = sorted(op for op, (operands, _, _) in OPS.items() if set(operands) <= set(kinds))
    if not possible:
        return None, []
    op = draw(st.sampled_from(possible))
    args = tuple(draw(_of_kind(kinds, kind)) for kind in OPS[op][0])
    return Glue(op, args), [OPS[op][1]]


def _call(draw: st.DrawFn, kinds: list[str], names: tuple[str, ...], depth: int, must: tuple[str, ...]) -> Any:
    if not names:
        return None, []
    args = draw(st.lists(_newest_first(range(len(kinds))), min_size=1, max_size=4))
    # A fragment may hold fragments with later names only, so the nesting is finite.
    name = must[0] if must else draw(st.sampled_from(names))
    body, inner = _body(draw, [kinds[i] for i in args], names[names.index(name) + 1 :], depth=min(depth, 1))
    results = tuple(draw(st.lists(st.integers(0, len(inner) - 1), min_size=1, max_size=3)))
    return Call(name, tuple(args), body, results), [inner[i] for i in results]


def _scan_statement(
    draw: st.DrawFn, kinds: list[str], names: tuple[str, ...], depth: int, must: tuple[str, ...]
) -> Any:
    length = draw(st.sampled_from((2, 3)))
    plain = [i for i, kind in enumerate(kinds) if kind in KINDS]
    if not plain:
        return None, []
    carry = tuple(draw(st.lists(st.sampled_from(plain), min_size=1, max_size=3)))
    stacked = [i for i, kind in enumerate(kinds) if kind == f"float{length}"]
    xs = tuple(draw(st.lists(st.sampled_from(stacked), max_size=1))) if stacked else ()
    body, inner = _body(draw, [*kinds, *(kinds[i] for i in carry), *("float" for _ in xs)], names, depth - 1, must)
    carry_out = tuple(draw(_of_kind(inner, kinds[i])) for i in carry)
    floats = [i for i, kind in enumerate(inner) if kind == "float"]
    ys = tuple(draw(st.lists(st.sampled_from(floats), max_size=2))) if floats else ()
    result_kinds = [*(kinds[i] for i in carry), *(f"float{length}" for _ in ys)]
    return Scan(length, draw(st.booleans()), carry, xs, body, carry_out, ys), result_kinds


_STATEMENTS = {"glue": _glue, "call": _call, "scan": _scan_statement}


def _of_kind(kinds: list[str], kind: str) -> st.SearchStrategy[int]:
    return _newest_first([i for i, k in enumerate(kinds) if k == kind])


def _newest_first(indices: Sequence[int]) -> st.SearchStrategy[int]:
    """Prefer recent values, so that simple examples chain their statements."""
    return st.sampled_from(list(indices)[::-1])


def _used(body: tuple[Any, ...]) -> set[str]:
    names = {statement.name for statement in body if isinstance(statement, Call)}
    names |= {statement.op for statement in body if isinstance(statement, Glue) and statement.op == "host"}
    return names.union(*(_used(statement.body) for statement in body if not isinstance(statement, Glue)))
