"""Links between replicas are derived from the shapes of a value."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import assert_same, assert_unchanged, on, plain, projected, replicated, run, toy
from weft import Role, all_mean, all_sum, per_replica
from weft.errors import WeftError
from weft.project.links import Link, batch_axis, link
from weft.sharding.sharding import REPLICATED, Sharding, sharded, unknown

OWN = Sharding("own")


def linked(source: int, dest: int, sharding: Sharding, merge: str = "") -> Link:
    roles = Role("source", ("a",), replicas=source), Role("dest", ("b",), replicas=dest)
    return link("value", *roles, sharding, merge)


@pytest.mark.parametrize(
    ("counts", "sharding", "expected"),
    [
        ((2, 2), REPLICATED, Link("pair")),
        ((2, 2), sharded(0), Link("pair")),
        ((4, 1), sharded(0), Link("gather", 4, 0)),
        ((4, 2), sharded(1), Link("gather", 2, 1)),
        ((4, 1), sharded(0, 5), Link("gather", 4, 0, 5)),
        ((1, 4), sharded(2), Link("scatter", 4, 2)),
        ((2, 4), sharded(0), Link("scatter", 2, 0)),
        ((1, 4), REPLICATED, Link("broadcast", 4)),
        ((4, 1), REPLICATED, Link("first", 4)),
        ((4, 2), REPLICATED, Link("first", 2)),
        ((4, 1), Sharding("partial"), Link("merge", 4, operation="sum")),
        ((4, 2), Sharding("partial", power=1), Link("merge", 2, operation="mean")),
    ],
)
def test_links_follow_from_shardings(counts: Any, sharding: Sharding, expected: Link) -> None:
    assert linked(*counts, sharding) == expected


def test_values_of_replicas_are_merged_on_arrival_if_the_destination_merges_them() -> None:
    assert linked(4, 1, OWN, merge="mean") == Link("merge", 4, operation="mean")
    assert linked(4, 1, sharded(0), merge="mean") == Link("gather", 4, 0)


def test_a_value_that_cannot_be_linked_is_refused_with_the_reason() -> None:
    with pytest.raises(WeftError, match="value goes from source to dest, which divide .* by 4 and 1, but it is odd"):
        linked(4, 1, unknown("is odd"))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 4), (8, 8)), r"\[4, 4\] with 4 environments and \[8, 8\] with 8, .* keep one axis"),
        (((4,), (8, 1)), "1 axes with 4 environments and 2 with 8"),
        (((5,), (9,)), "axis 0 of leaf has 5 entries with 4 environments and 9 with 8, .* proportional"),
    ],
)
def test_shapes_without_one_batch_axis_are_refused(shapes: Any, message: str) -> None:
    with pytest.raises(WeftError, match=message):
        batch_axis("leaf", shapes, (4, 8))


def test_one_batch_divisor_must_divide_the_other() -> None:
    with pytest.raises(
        WeftError,
        match="from source, which divides the batch by 4, to dest, .* by 6: .* one of the two numbers divides",
    ):
        linked(4, 6, sharded(0))


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


@pytest.mark.parametrize("counts", [(2, 1), (4, 2), (2, 4)])
def test_steps_folded_into_the_batch_axis_keep_their_order(counts: tuple[int, int]) -> None:
    def loop(s):
        _, xs = lax.scan(lambda c, _: (on("a")(c),) * 2, s["x"], length=3)
        folded = on("a", lambda xs: xs.reshape(-1))(xs)
        y = on("b", lambda xs: jnp.mod(xs * 3, 31))(folded)
        return {"x": s["x"], "y": y.reshape(3, -1)}

    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "y": jnp.zeros((3, env.num_envs))}, loop)
    assert_unchanged(algo, replicated(**dict(zip("ab", counts, strict=True))))


def test_a_value_that_is_equal_on_all_replicas_is_received_from_the_first() -> None:
    def loop(s):
        mean = on("a", lambda x: all_mean(jnp.mean(x)))(s["x"])
        return {"x": jnp.mod(on("a", lambda x, w: x + w)(s["x"], s["w"]), 32), "w": on("b")(mean)}

    algo = toy(lambda env: {"x": 4 * jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    assert "first" in {edge.link.kind for edge in projected(algo, replicated(a=2, b=1)).edges}
    assert_unchanged(algo, replicated(a=2, b=1))


def test_a_mean_over_the_rows_of_several_replicas_is_merged_on_arrival() -> None:
    def loop(s):
        return {"x": s["x"], "w": on("b")(on("a", jnp.mean)(s["x"]))}

    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    assert_unchanged(algo, replicated(a=2, b=1))


def test_a_value_that_depends_on_the_rows_of_one_replica_is_refused() -> None:
    def loop(s):
        return {"x": s["x"], "w": on("b")(on("a", jnp.max)(s["x"]))}

    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    with pytest.raises(
        WeftError, match="a goes from a to b, .* `reduce_max` along axis 0, .* all_gather, or .* per_replica"
    ):
        projected(algo, replicated(a=2, b=1))


def test_a_value_that_is_each_replicas_own_must_be_merged_before_one_role_gets_it() -> None:
    def loop(merge):
        def step(s):
            own = on("a", lambda x: per_replica(jnp.max(x)))(s["x"])
            return {"x": s["x"], "w": on("b")(merge(own))}

        return toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, step)

    with pytest.raises(WeftError, match="a goes from a to b, .* is each replica's own value"):
        projected(loop(lambda own: own), replicated(a=2, b=1))
    ended, _ = run(loop(all_sum), replicated(a=2, b=1), iterations=1)
    assert ended["w"] == (1 + 3) * 2 + 1
