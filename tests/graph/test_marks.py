"""Marks are found inside all JAX transformations, and dotted names follow their prefix."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import on
from weft import all_mean, all_sum, fragment, replica
from weft.errors import WeftError
from weft.graph.marks import Mark, count_calls, count_fragment_calls, mark_of, marks_in, placed_role

X = jnp.arange(4.0)


def eqns(fn, *args):
    return jax.make_jaxpr(fn)(*args).eqns


def test_each_marked_call_has_the_mark_of_its_kind() -> None:
    found = [
        mark_of(eqn) for eqn in eqns(lambda x: (on("a")(x), all_mean(x), all_sum(x), replica(), jax.jit(abs)(x)), X)
    ]
    fragment_, mean, sum_, index, count, other = found
    assert (fragment_, mean, sum_) == (Mark("fragment", "a"), Mark("merge", "mean"), Mark("merge", "sum"))
    assert (index, count, other) == (Mark("replica", "index"), Mark("replica", "count"), None)


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.vmap,
        jax.checkpoint,
        jax.grad,
        lambda f: lambda x: lax.cond(True, f, lambda x: x.sum() * 0, x),
        lambda f: lambda x: lax.while_loop(lambda c: c.sum() < 0, lambda c: c + f(c), x),
        lambda f: lambda x: lax.map(f, x),
    ],
    ids=["jit", "vmap", "remat", "grad", "cond", "while", "map"],
)
def test_marks_are_found_inside_transformations(wrap) -> None:
    inner = wrap(lambda x: on("outer", lambda x: on("inner")(x))(x).sum())
    names = {mark.name for eqn in eqns(inner, X if wrap is not jax.vmap else X[:, None]) for mark in marks_in(eqn)}
    assert names == {"outer", "inner"}


def test_dotted_names_are_placed_by_their_longest_placed_prefix() -> None:
    placement = {"env": "world", "env.episodes": "learner"}
    assert placed_role("env", placement) == "world"
    assert placed_role("env.reset", placement) == "world"
    assert placed_role("env.episodes", placement) == "learner"
    assert placed_role("env.episodes.last", placement) == "learner"
    assert placed_role("environment", placement) is None


def test_calls_in_loops_count_once_per_step() -> None:
    def tick(x, _):
        return on("a", lambda x: on("b")(x))(on("b")(x)), None

    jaxpr = jax.make_jaxpr(lambda x: lax.scan(lambda c, _: lax.scan(tick, c, length=3), on("a")(x), length=2))(X)
    assert count_calls(jaxpr.jaxpr, "a") == 1 + 6
    assert count_calls(jaxpr.jaxpr, "b") == 12
    outermost = sum((count_fragment_calls(eqn, 1) for eqn in jaxpr.eqns), start=count_fragment_calls(jaxpr.eqns[0], 0))
    assert outermost == {"a": 7, "b": 6}


def test_a_fragment_behaves_like_its_function() -> None:
    @fragment
    def scale(x, factor, *, offset=0):
        """Scale an array."""
        return {"y": x * factor + offset, "n": None}

    assert scale.__name__ == "scale" and scale.__doc__ == "Scale an array."
    assert scale(X, 2, offset=1)["y"].tolist() == [1, 3, 5, 7]
    assert jax.grad(lambda x: scale(x, 2)["y"].sum())(X).tolist() == [2] * 4
    assert jax.vmap(lambda x: scale(x, 3)["y"])(X).tolist() == [0, 3, 6, 9]


def test_outside_weft_a_merge_is_the_identity_and_a_replica_is_0_of_1() -> None:
    tree = {"a": X, "b": (X.sum(), 2.0)}
    assert jax.tree.map(lambda x: jnp.asarray(x).tolist(), all_mean(tree)) == {"a": [0, 1, 2, 3], "b": (6, 2)}
    assert jax.tree.map(lambda x: jnp.asarray(x).tolist(), all_sum(tree)) == {"a": [0, 1, 2, 3], "b": (6, 2)}
    assert [int(x) for x in replica()] == [0, 1]


@pytest.mark.parametrize("value", [jnp.int32(1), jnp.array(True), jax.random.key(0)], ids=["int", "bool", "key"])
def test_all_mean_refuses_dtypes_without_a_mean(value) -> None:
    with pytest.raises(WeftError, match=r"all_mean of \['count'\].*cast it"):
        all_mean({"count": value})


def test_all_sum_refuses_dtypes_without_a_sum() -> None:
    assert int(all_sum(jnp.int32(3))) == 3
    with pytest.raises(WeftError, match="all_sum of its argument, which is bool"):
        all_sum(jnp.array(True))


def test_a_call_inside_a_call_of_the_same_name_counts_as_one_call() -> None:
    inner = on("env")
    jaxpr = jax.make_jaxpr(lambda x: on("env", lambda x: inner(inner(x)))(x))(jnp.zeros(2))
    assert count_calls(jaxpr.jaxpr, "env") == 1


def steps(action):
    return on("env", lambda x: {"obs": x, "reward": x[:, 0]})(action)


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (steps, 1),
        (lambda x: lax.scan(lambda c, _: (steps(c)["obs"], None), x, length=5)[0], 5),
        (lambda x: lax.cond(x.sum() > 0, lambda: steps(x), lambda: steps(-x)), 1),
        (lambda x: jax.vmap(steps)(jnp.stack([x, x, x])), 3),
        (lambda x: jax.vmap(lambda y: lax.scan(lambda c, _: (steps(c)["obs"], None), y, length=2)[0])(x[None]), 2),
    ],
    ids=["once", "scan", "cond", "vmap over agents", "scan under vmap"],
)
def test_calls_of_the_environment_are_counted_as_often_as_they_happen(loop, expected) -> None:
    assert count_calls(jax.make_jaxpr(loop)(jnp.ones((4, 2))).jaxpr, "env", rows=4) == expected


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (lambda x: lax.cond(x.sum() > 0, lambda: steps(x)["obs"], lambda: x), "a `cond` call env 0 or 1 times"),
        (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: steps(c)["obs"], x), "a `while` loop calls env"),
    ],
    ids=["cond", "while"],
)
def test_a_number_of_calls_that_is_not_fixed_is_refused(loop, message) -> None:
    with pytest.raises(WeftError, match=message):
        count_calls(jax.make_jaxpr(loop)(jnp.ones((4, 2))).jaxpr, "env")
