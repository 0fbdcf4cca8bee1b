"""Links between replicas are derived from the shapes of a value."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import assert_same, assert_unchanged, on, plain, projected, replicated, run, toy
from weft import Role, all_mean
from weft.errors import WeftError
from weft.project.links import Link, link

BATCH = 8


def linked(source: int, dest: int, shapes: tuple[Any, Any], *, varying: bool = True, merge: str = "") -> Link:
    avals = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    roles = Role("source", ("a",), replicas=source), Role("dest", ("b",), replicas=dest)
    return link("value", *roles, avals, batch=BATCH, varying=varying, merge=merge)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "shapes", "varying", "expected"),
    [
        ((2, 2), ((3,), (3,)), True, Link("pair")),
        ((2, 2), ((4, 3), (4, 3)), True, Link("pair")),
        ((4, 1), ((2, 5), (8, 5)), True, Link("gather", 4, 0)),
        ((4, 2), ((5, 2), (5, 4)), True, Link("gather", 2, 1)),
        ((1, 4), ((3, 4, 8), (3, 4, 2)), True, Link("scatter", 4, 2)),
        ((2, 4), ((4,), (2,)), True, Link("scatter", 2, 0)),
        ((1, 4), ((5,), (5,)), True, Link("broadcast", 4)),
        ((4, 1), ((5,), (5,)), False, Link("first", 4)),
        ((4, 2), ((), ()), False, Link("first", 2)),
    ],
)
def test_links_follow_from_shapes(counts: Any, shapes: Any, varying: bool, expected: Link) -> None:
    assert linked(*counts, shapes, varying=varying) == expected


def test_differing_values_are_merged_on_arrival_if_the_destination_merges_them() -> None:
    assert linked(4, 1, ((5,), (5,)), merge="mean") == Link("merge", 4, operation="mean")
    assert linked(4, 1, ((2, 5), (8, 5)), merge="mean") == Link("gather", 4, 0)


@pytest.mark.parametrize(
    ("counts", "shapes", "message"),
    [
        ((4, 1), ((5,), (5,)), "each of the 4 replicas of source, dest needs a single one.*all_mean"),
        ((2, 4), ((3 * 4,), (3 * 2,)), "axis 0 of value has 12 entries for 4 environments: another axis is folded"),
        ((2, 1), ((4, 4), (8, 8)), "changes in several axes"),
        ((2, 1), ((4,), (8, 1)), "1 axes with 4 environments and 2 with 8"),
        ((4, 8), ((2, 3), (1, 5)), "changes in several axes"),
    ],
)
def test_values_that_cannot_be_linked_are_refused(counts: Any, shapes: Any, message: str) -> None:
    with pytest.raises(WeftError, match=message):
        linked(*counts, shapes)


def test_one_batch_divisor_must_divide_the_other() -> None:
    with pytest.raises(
        WeftError,
        match="from source, which divides the batch by 4, to dest, .* by 6: .* one of the two numbers divides",
    ):
        linked(4, 6, ((3,), (2,)))


def chain(s: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Sends a row per environment through three roles and back, along its first and its second axis."""
    x = on("a", lambda x: x * 2 + 1)(s["x"])
    y = on("b", lambda x, y: jnp.mod(x.T * 3 + y, 31))(x, s["y"])
    z = on("c", lambda y, w: jnp.mod(y.T + w, 31))(y, s["w"])
    return {"x": jnp.mod(x + z, 31), "y": y, "w": s["w"] + 1}


def rows(env: Any) -> dict[str, jax.Array]:
    table = jnp.arange(3.0 * env.num_envs).reshape(env.num_envs, 3)
    return {"x": table, "y": jnp.zeros((3, env.num_envs)), "w": jnp.float32(0)}


@pytest.mark.parametrize("counts", [(4, 2, 1), (1, 2, 4), (2, 2, 1), (1, 4, 1), (4, 4, 4), (4, 1, 2)])
def test_rows_keep_their_order_through_any_chain_of_replicas(counts: tuple[int, ...]) -> None:
    algo = toy(rows, chain)
    assert_unchanged(algo, replicated(**dict(zip("abc", counts, strict=True))))


def test_the_links_of_a_chain() -> None:
    edges = {
        (edge.source, edge.dest, edge.link.kind, edge.link.fan, edge.link.axis)
        for edge in projected(toy(rows, chain), replicated(a=4, b=2, c=1)).edges
    }
    assert ("a", "b", "gather", 2, 0) in edges
    assert ("b", "c", "gather", 2, 1) in edges
    assert ("c", "a", "scatter", 4, 0) in edges
    assert {edge[2] for edge in projected_edges(replicated(a=2, b=2, c=2))} == {"pair"}


def projected_edges(layout: Any) -> set[tuple[Any, ...]]:
    return {(e.source, e.dest, e.link.kind) for e in projected(toy(rows, chain), layout).edges}


def test_time_leads_and_the_batch_axis_is_second() -> None:
    def loop(s):
        x, xs = lax.scan(lambda c, _: (jnp.mod(on("a")(c), 31),) * 2, s["x"], length=3)
        return {"x": x, "n": on("b", lambda xs: jnp.mod(xs * jnp.arange(1.0, 4.0)[:, None], 31).T)(xs)}

    algo = toy(lambda env: {"x": jnp.arange(4.0)[: env.num_envs], "n": jnp.zeros((env.num_envs, 3))}, loop)
    (edge,) = [edge for edge in projected(algo, replicated(a=2, b=1)).edges if edge.dest == "b"]
    assert (edge.link, edge.times, edge.bytes) == (Link("gather", 2, 1), 1, 3 * 4 * 4)
    # Both replicas start from the same values, so the gathered rows must be equal for both.
    ended, _ = run(toy(lambda env: rows(env) | {"n": jnp.zeros((env.num_envs, 3))}, by_rows), replicated(a=2, b=1))
    assert_same(ended, plain(toy(lambda env: rows(env) | {"n": jnp.zeros((env.num_envs, 3))}, by_rows))[0])


def by_rows(s: dict[str, jax.Array]) -> dict[str, jax.Array]:
    x, xs = lax.scan(lambda c, _: (jnp.mod(on("a")(c), 31),) * 2, s["x"], length=2)
    return s | {"x": x, "n": on("b", lambda xs: jnp.mod(xs[0] + 2 * xs[1], 31))(xs)}


def test_folding_time_into_the_batch_before_crossing_is_refused() -> None:
    def loop(s):
        _, xs = lax.scan(lambda c, _: (on("a")(c),) * 2, s["x"], length=3)
        return {"x": s["x"], "w": on("b", jnp.sum)(on("a", lambda xs: xs.reshape(-1))(xs))}

    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    with pytest.raises(WeftError, match="another axis is folded into it.*fold it in the fragment that uses the value"):
        projected(algo, replicated(a=2, b=1))


def test_a_value_that_is_equal_on_all_replicas_is_received_from_the_first() -> None:
    def loop(s):
        mean = on("a", lambda x: all_mean(jnp.mean(x)))(s["x"])
        return {"x": jnp.mod(on("a", lambda x, w: x + w)(s["x"], s["w"]), 32), "w": on("b")(mean)}

    algo = toy(lambda env: {"x": 4 * jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    assert "first" in {edge.link.kind for edge in projected(algo, replicated(a=2, b=1)).edges}
    assert_unchanged(algo, replicated(a=2, b=1))


def test_an_unmerged_value_without_a_batch_axis_is_refused() -> None:
    def loop(s):
        return {"x": s["x"], "w": on("b")(on("a", jnp.mean)(s["x"]))}

    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    with pytest.raises(
        WeftError, match="a may have a different value on each of the 2 replicas of a, .* all_mean or all_sum"
    ):
        projected(algo, replicated(a=2, b=1))
