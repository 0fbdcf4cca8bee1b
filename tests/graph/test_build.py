"""Building graphs: every fragment gets its role, and control flow that cannot be divided is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.toys import assert_unchanged, env_of, layout_of, on, projected, replicated, toy
from weft import Layout, Role, all_mean, all_sum
from weft.errors import WeftError
from weft.graph.build import build_graph
from weft.graph.graph import check, walk
from weft.graph.trace import trace

X = {"x": jnp.arange(4.0)}


def batched(env: Any) -> dict[str, jax.Array]:
    return {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(1)}


def placed(loop: Any, layout: Layout, start: Any = X) -> list[tuple[str, str | None, str]]:
    """The placed nodes of a loop as (kind, role, key), without the training loop around them."""
    graph = build_graph(trace(toy(start, loop), env_of(4)), layout)
    check(graph)
    found = [(node.kind, node.role, node.key.removeprefix("loop/")) for node, _ in walk(graph) if node.key]
    return [entry for entry in found if entry != ("loop", None, "loop")]


def nested(s: Any) -> dict[str, Any]:
    def outer(x):
        return on("second")(on("first")(x) + 1)

    return {"x": jnp.mod(on("last")(on("outer", outer)(s["x"])), 31)}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (layout_of(one="outer", two="last"), ["one outer", "two last"]),
        (layout_of(one="outer first", two="last second"), ["one outer", "two last"]),
        (layout_of(one="first", two="second", three="last"), ["one first", "two second", "three last"]),
        (layout_of(one="first", two="*"), ["one first", "two second", "two last"]),
        (layout_of(one="first second", two="*"), ["one outer", "two last"]),
        (layout_of(one="last", two="*"), ["two outer", "one last"]),
    ],
    ids=["outer", "outer wins", "opened", "rest", "inner of one role", "unnamed"],
)
def test_the_outermost_fragment_that_the_layout_names_is_placed(layout: Layout, expected: list[str]) -> None:
    assert [f"{role} {key}" for _, role, key in placed(nested, layout)] == expected
    assert_unchanged(toy(X, nested), layout)


def test_dotted_names_follow_their_prefix_unless_placed_themselves() -> None:
    def loop(s):
        return {"x": jnp.mod(on("env.episodes")(on("env")(s["x"])), 31)}

    assert placed(loop, layout_of(one="env", two="*")) == [("loop", "one", "scan")]
    split = placed(loop, layout_of(one="env", two="env.episodes"))
    assert split == [("fragment", "one", "env"), ("fragment", "two", "env.episodes")]
    # A layout may name a prefix that is not a fragment itself.
    assert placed(lambda s: {"x": on("env.episodes")(s["x"])}, layout_of(one="env")) == [("loop", "one", "scan")]


def test_repeated_calls_have_different_keys() -> None:
    def loop(s):
        x, _ = lax.scan(lambda c, _: (on("b")(on("a")(c)), None), on("a")(on("a")(s["x"])), length=2)
        return {"x": x}

    keys = [key for _, _, key in placed(loop, layout_of(one="a", two="b"))]
    assert keys == ["a", "a#2", "loop/a", "loop/b"]


def test_calls_and_loops_of_one_role_stay_single_nodes() -> None:
    def loop(s):
        x, _ = lax.scan(lambda c, _: (on("a")(c), None), s["x"], length=2)
        x = lax.cond(x.sum() > 3, on("a"), lambda x: x, x)
        return {"x": jnp.mod(on("b")(jax.jit(lambda x: on("a")(x) * 2)(x)), 31)}

    layout = layout_of(one="a", two="b")
    assert [entry[:2] for entry in placed(loop, layout)] == [
        ("loop", "one"),
        ("loop", "one"),
        ("fragment", "one"),
        ("fragment", "two"),
    ]
    assert_unchanged(toy(X, loop), layout)


@pytest.mark.parametrize(
    ("what", "cut"),
    [
        ("cond", lambda x: lax.cond(x.sum() > 3, on("a"), on("b"), x)),
        ("while", lambda x: lax.while_loop(lambda c: c.sum() < 50, lambda c: on("b")(on("a")(c)), x)),
        ("remat", jax.checkpoint(lambda x: on("b")(on("a")(x)))),
    ],
)
def test_control_flow_over_several_roles_is_refused_with_advice(what: str, cut: Any) -> None:
    with pytest.raises(WeftError) as error:
        projected(toy(X, lambda s: {"x": cut(s["x"])}), layout_of(one="a", two="b"))
    message = str(error.value).replace("remat2", "remat").replace("checkpoint", "remat")
    assert f"`{what}` spans the roles one, two (it holds a, b)" in message
    assert f"move the `{what}` inside a fragment, or run a and b on one role" in message
    assert_unchanged(toy(X, lambda s: {"x": jnp.mod(on("c", cut)(s["x"]), 31)}), layout_of(one="c"))


def test_a_branch_with_a_merge_over_replicas_is_refused() -> None:
    def loop(s):
        grown = on("a", lambda x: lax.cond(x.sum() > 0, lambda x: all_mean(x), lambda x: x, x))(s["x"])
        return {"x": grown, "w": s["w"]}

    with pytest.raises(WeftError, match="`cond` on role a holds a merge over its replicas.*only `lax.scan`"):
        projected(toy(batched, loop), replicated(a=2))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            layout_of(one="a"),
            "no role runs the fragment 'b': add it to a role's runs .*one {a}.* or let a role run '\\*'",
        ),
        (
            layout_of(one="a", two="b", three="leern"),
            "role 'three' runs 'leern', .* only a, b, learn: did you mean 'learn",
        ),
        (
            layout_of(one="a", two="b", three="a.inner"),
            "role 'three' runs 'a.inner', .*: take a layout that names only these",
        ),
        (layout_of(one="a", two="b", three="lear"), "role 'three' runs 'lear', .*: did you mean 'learn'"),
    ],
    ids=["unplaced", "misspelt", "below", "part of a name"],
)
def test_unknown_and_unplaced_fragment_names_are_refused(layout: Layout, message: str) -> None:
    def loop(s):
        on("learn")(s["x"])
        return {"x": on("b")(on("a")(s["x"]))}

    with pytest.raises(WeftError, match=message):
        projected(toy(X, loop), layout)


def test_an_unplaced_fragment_inside_an_inlined_one_is_refused() -> None:
    with pytest.raises(WeftError, match="no role runs the fragment 'second'"):
        projected(toy(X, nested), layout_of(one="first", two="last"))


def test_a_loop_with_no_steps_over_several_roles_is_refused() -> None:
    def loop(s):
        return {"x": lax.scan(lambda c, _: (on("b")(on("a")(c)), None), s["x"], length=0)[0]}

    with pytest.raises(WeftError, match="loop with 0 steps"):
        projected(toy(X, loop), layout_of(one="a", two="b"))


def test_one_merge_of_values_from_several_replicated_roles_is_refused() -> None:
    def loop(s):
        total = all_sum(on("a", jnp.sum)(s["x"]) + on("b", jnp.sum)(s["x"]))
        return {"x": s["x"], "w": total}

    with pytest.raises(WeftError, match=r"several roles \(a, b\): merge the values of each role separately"):
        projected(toy(batched, loop), replicated(a=2, b=2))


def test_a_merge_of_values_that_no_role_computed_is_refused() -> None:
    def loop(s):
        return {"x": on("a", lambda x, n: x + n)(s["x"], all_sum(jnp.ones(()))), "w": on("b")(s["w"])}

    with pytest.raises(WeftError, match="no role computed"):
        projected(toy(batched, loop), replicated(a=2, b=1))
    assert_unchanged(toy(batched, loop), replicated(a=1, b=1))


@pytest.mark.parametrize("where", ["before a loop", "in a loop", "after a loop", "around iterations"])
def test_a_merge_outside_fragments_is_over_the_role_that_computed_its_values(where: str) -> None:
    def loop(s):
        def tick(carry, _):
            x, w = carry
            total = all_sum(jnp.sum(x)) if where == "in a loop" else 0.0
            return (jnp.mod(on("a")(x), 31), jnp.mod(on("b")(w) + total, 31)), x

        first = all_sum(jnp.sum(on("a")(s["x"]))) if where == "before a loop" else 0.0
        (x, w), xs = lax.scan(tick, (s["x"], s["w"]), length=3)
        last = all_sum(jnp.sum(xs)) if where == "after a loop" else 0.0
        earlier = all_sum(jnp.sum(s["x"])) if where == "around iterations" else 0.0
        return {"x": jnp.mod(on("a", lambda x, y: x + y)(x, first + last + earlier), 31), "w": w}

    assert_unchanged(toy(batched, loop), replicated(a=2, b=1))


def test_constants_and_literals_reach_all_roles_that_need_them() -> None:
    table = np.arange(4, dtype=np.float32)

    def loop(s):
        a = on("a", lambda x: (x + table, jnp.float32(3), jnp.bfloat16(1.5), jnp.int8(-2)))(s["x"])
        b = on("b", lambda x, y: jnp.mod(x * y + table, 31))(a[0] + table, a[1])
        return {"x": b, "half": a[2], "small": a[3], "flag": jnp.array(False), "table": jnp.asarray(table)}

    start = {
        "x": jnp.arange(4.0),
        "half": jnp.bfloat16(0),
        "small": jnp.int8(0),
        "flag": jnp.array(True),
        "table": jnp.zeros(4),
    }
    assert_unchanged(toy(start, loop), layout_of(one="a", two="b"))


def test_roles_may_have_any_names() -> None:
    layout = Layout(Role("Grüße", ("a",)), Role("two words", ("b",)))
    assert_unchanged(toy(X, lambda s: {"x": jnp.mod(on("b")(on("a")(s["x"])), 31)}), layout)
