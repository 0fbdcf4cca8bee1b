"""A projected loop computes the same values as the loop itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.toys import (
    Toy,
    assert_same,
    assert_unchanged,
    layout_of,
    on,
    plain,
    projected,
    replicated,
    run,
    start_of,
    toy,
)
from weft import Layout, Role, all_mean, all_sum, replica
from weft.errors import WeftError
from weft.metrics import Mean
from weft.runtime.local import LocalEngine

TWO = layout_of(one="a", two="b")


def mod(x: jax.Array) -> jax.Array:
    return jnp.mod(x, 31)


@jax.custom_vjp
def custom(x: jax.Array) -> jax.Array:
    return x * 3


custom.defvjp(lambda x: (custom(x), None), lambda _, g: (g * 2,))


def grad(x: jax.Array) -> jax.Array:
    return jax.grad(lambda x: jnp.sum(custom(on("a", lambda x: custom(x) * x)(x))))(x)


@pytest.mark.parametrize(
    "inner",
    [
        custom,
        jax.vmap(lambda x: x * 2 + 1),
        jax.checkpoint(lambda x: x + np.arange(4.0, dtype=np.float32)),
        lambda x: lax.while_loop(lambda c: c.sum() < 30, lambda c: c + 1, x),
        lambda x: lax.cond(x.sum() > 20, lambda x: x + 1, lambda x: x * 2, x),
        lambda x: jax.value_and_grad(lambda x: jnp.sum(custom(x) * x))(x)[1],
        lambda x: jax.jit(lambda x: x + 5)(x),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + i, x),
        lambda x: x[jnp.argsort(-x)],
    ],
    ids=["custom_vjp", "vmap", "remat", "while", "cond", "grad", "jit", "fori", "sort"],
)
def test_a_fragment_may_hold_any_jax_code(inner: Any) -> None:
    assert_unchanged(toy({"x": jnp.arange(4.0)}, lambda s: {"x": mod(on("b")(on("a", inner)(s["x"])))}), TWO)


@pytest.mark.parametrize(
    "outer",
    [
        lambda x: jax.vmap(on("a"))(x),
        jax.checkpoint(lambda x: on("a", lambda x: x + np.arange(4.0, dtype=np.float32))(x) * 2),
        grad,
        lambda x: lax.map(on("a"), x),
        lambda x: lax.cond(x.sum() > 20, on("a"), lambda x: x, x),
    ],
    ids=["vmap", "remat", "grad", "map", "cond"],
)
def test_a_fragment_may_be_inside_any_jax_code_of_one_role(outer: Any) -> None:
    assert_unchanged(toy({"x": jnp.arange(4.0)}, lambda s: {"x": mod(on("b")(mod(outer(s["x"]))))}), TWO)


def test_state_leaves_may_be_unchanged_swapped_unused_or_constant() -> None:
    def loop(s):
        a = on("a")(s["x"])
        b = on("b")(mod(a))
        return {
            "x": mod(b),
            "same": s["same"],
            "left": s["right"],
            "right": s["left"],
            "unused": a,
            "constant": jnp.float32(3),
            "twice": mod(b),
            "zero": jnp.zeros_like(s["zero"]),
        }

    start = {
        "x": jnp.arange(4.0),
        "same": jnp.int32(5),
        "left": jnp.float32(1),
        "right": jnp.float32(2),
        "unused": jnp.zeros(4),
        "constant": jnp.float32(0),
        "twice": jnp.ones(4),
        "zero": jnp.ones(2),
    }
    for layout in (TWO, layout_of(two="b", one="a"), layout_of(all="*")):
        assert_unchanged(toy(start, loop), layout, iterations=4)


def test_several_roles_may_need_a_value_that_one_of_them_only_stores() -> None:
    def loop(s):
        a = mod(on("a")(s["x"]))
        b, c = on("b")(a), on("c", lambda a, b: a + b)(a, s["held"])
        return {"x": mod(b + c), "held": a, "older": s["held"]}

    start = {"x": jnp.arange(4.0), "held": jnp.zeros(4), "older": jnp.zeros(4)}
    layout = layout_of(one="a", two="b", three="c")
    assert_unchanged(toy(start, loop), layout, iterations=4)
    receivers = {edge.dest for edge in projected(toy(start, loop), layout).edges if edge.name == "a"}
    assert receivers == {"two", "three"}


def test_keys_booleans_and_integers_may_cross() -> None:
    def loop(s):
        key, key_a = jax.random.split(s["key"])
        noise, flag, keys = on("a", lambda k: (jax.random.randint(k, (4,), 0, 9), True, jax.random.split(k, 3)))(key_a)
        count, key = on("b", lambda n, f, k, ks: (jnp.where(f, n + 1, n), jax.random.fold_in(k, ks.size)))(
            s["count"], s["flag"], key, keys
        )
        return {"key": key, "count": count + noise, "flag": ~s["flag"] & flag}

    start = {"key": jax.random.key(3), "count": jnp.zeros(4, jnp.int32), "flag": jnp.array(True)}
    assert_unchanged(toy(start, loop), TWO, iterations=4)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_may_be_stacked_by_a_shared_loop(impl: str) -> None:
    def loop(s):
        def tick(key, _):
            key, drawn = on("a", lambda k: tuple(jax.random.split(k)))(key)
            return on("b", lambda k: jax.random.fold_in(k, 1))(key), drawn

        key, keys = lax.scan(tick, s["key"], length=3)
        return {"key": key, "draws": on("b", jax.vmap(lambda k: jax.random.randint(k, (), 0, 99)))(keys)}

    start = {"key": jax.random.key(1, impl=impl), "draws": jnp.zeros(3, jnp.int32)}
    assert_unchanged(toy(start, loop), TWO)


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_may_nest_run_backwards_and_leave_results_unused(reverse: bool) -> None:
    def loop(s):
        def tick(carry, row):
            x, count = carry
            x = mod(on("a", lambda x, row: x + row)(x, row))
            (y, _), ys = lax.scan(lambda c, _: ((mod(on("b")(c[0])), c[1] + 1), c[0]), (x, count), length=2)
            return (y, count + 1), (ys, y, x)

        (x, count), (nested, unused, xs) = lax.scan(tick, (s["x"], s["n"]), s["rows"], reverse=reverse)
        return {"x": x, "n": count, "rows": mod(xs + nested.sum(1))}

    start = {"x": jnp.arange(4.0), "n": jnp.int32(0), "rows": jnp.arange(12.0).reshape(3, 4)}
    assert_unchanged(toy(start, loop), TWO)
    assert_unchanged(toy(start, loop), layout_of(one="*"))


def test_a_loop_may_swap_the_parts_of_its_carry() -> None:
    def loop(s):
        def tick(carry, _):
            left, right, x = carry
            return (right, left, jnp.mod(on("b")(on("a", lambda x, y: x + y)(x, left)), 31)), right

        (left, right, x), stacked = lax.scan(tick, (s["left"], s["right"], s["x"]), length=3)
        return {"left": left, "right": right, "x": x, "stacked": stacked}

    start = {"left": jnp.float32(1), "right": jnp.float32(2), "x": jnp.arange(4.0), "stacked": jnp.zeros(3)}
    assert_unchanged(toy(start, loop), TWO)


def test_metrics_may_be_constants_state_or_results_of_several_roles() -> None:
    def loop(s):
        x = mod(on("b")(on("a")(s["x"])))
        metrics = {
            "x": Mean.of(x),
            "constant": Mean(jnp.float32(3), jnp.float32(2)),
            "state": Mean.of(s["x"]),
            "halves": Mean(jnp.sum(on("a")(x)), jnp.sum(on("b")(x))),
        }
        return {"x": x}, metrics

    assert_unchanged(toy({"x": jnp.arange(4.0)}, loop), TWO)


@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (4, 2), (2, 2)])
def test_a_metric_keeps_its_mean_over_replicas(counts: tuple[int, int]) -> None:
    def loop(s):
        x = mod(on("a")(s["x"]))
        w = on("b", lambda x: all_mean(x.mean()))(x)
        means = {"rows": Mean.of(x), "scalar": Mean.of(w), "constant": Mean.of(jnp.float32(5))}
        return {"x": x, "w": w}, means

    algo = toy(lambda env: {"x": 4 * jnp.arange(float(env.num_envs)), "w": jnp.float32(0)}, loop)
    _, got = run(algo, replicated(a=counts[0], b=counts[1]))
    _, expected = plain(algo)
    for ours, theirs in zip(got, expected, strict=True):
        for name in theirs:
            assert ours[name].total / ours[name].count == theirs[name].total / theirs[name].count, name


def rows_by_share(total: int, count: int) -> np.ndarray:
    return np.arange(float(total), dtype=np.float32).reshape(count, -1)


def merging(operation: Any) -> Any:
    """A loop that merges the sums of all rows into a weight."""

    def learn(x, w):
        merged = operation(jnp.sum(x) + w)
        return x + 1, merged

    def loop(s):
        x, w = on("a", learn)(s["x"], s["w"])
        return {"x": x, "w": w}

    return toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(1)}, loop, num_envs=8)


@pytest.mark.parametrize("where", ["replicas", "devices"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("operation", "reduce"), [(all_mean, np.mean), (all_sum, np.sum)], ids=["mean", "sum"])
def test_a_merge_is_the_mean_or_sum_over_the_shares(operation: Any, reduce: Any, count: int, where: str) -> None:
    layout = Layout(Role("a", ("*",), **{where: count}))
    ended, _ = run(merging(operation), layout, iterations=3)
    rows, w = rows_by_share(8, count), np.float32(1)
    for _ in range(3):
        rows, w = rows + 1, reduce([part.sum() + w for part in rows])
    np.testing.assert_array_equal(ended["x"], rows.reshape(-1))
    np.testing.assert_array_equal(ended["w"], w)


@pytest.mark.parametrize("where", ["replicas", "devices"])
def test_a_merge_may_be_inside_loops_and_calls_and_have_several_leaves(where: str) -> None:
    def learn(x, w):
        def tick(c, row):
            tree = all_sum({"row": row, "n": jnp.int32(1), "one": 1.0})
            return c + tree["row"] * tree["one"] + tree["n"], jax.jit(all_mean)(c)

        return lax.scan(tick, w, x)

    def rows(env):
        return {"x": jnp.arange(2.0 * env.num_envs).reshape(2, -1), "w": jnp.float32(0), "ws": jnp.zeros(2)}

    def by_column(s):
        w, ws = on("a", lambda x, w: learn(x.sum(1), w))(s["x"], s["w"])
        return {"x": s["x"], "w": w, "ws": ws}

    ended, _ = run(toy(rows, by_column, num_envs=4), Layout(Role("a", ("*",), **{where: 2})), iterations=1)
    assert (ended["w"], ended["ws"].tolist()) == (6 * 2 + 2 + 22 * 2 + 2, [0, 14])


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (replicated(a=1), ([0] * 4, [1] * 4)),
        (replicated(a=4), ([0, 1, 2, 3], [4] * 4)),
        (replicated(a=2), ([0, 0, 1, 1], [2] * 4)),
        (Layout(Role("a", ("a",), devices=4)), ([0, 1, 2, 3], [4] * 4)),
        (Layout(Role("a", ("a",), replicas=2, devices=2)), ([0, 1, 2, 3], [4] * 4)),
    ],
    ids=["alone", "four", "two", "devices", "both"],
)
def test_a_replica_knows_its_index_and_count(layout: Layout, expected: Any) -> None:
    def loop(s):
        def fill(x):
            index, count = replica()
            return jnp.full_like(x, index), jnp.full_like(x, count)

        index, count = on("a", fill)(s["index"])
        return {"index": index, "count": count}

    algo = toy(lambda env: dict.fromkeys(("index", "count"), jnp.zeros(env.num_envs, jnp.int32)), loop)
    ended, _ = run(algo, layout)
    assert (ended["index"].tolist(), ended["count"].tolist()) == expected


def drawing(env: Any) -> dict[str, jax.Array]:
    return {"x": jnp.zeros(env.num_envs, jnp.int32), "key": jax.random.key(5)}


def draw(s: dict[str, jax.Array]) -> dict[str, jax.Array]:
    key, key_draw = jax.random.split(s["key"])
    return {"x": on("a", lambda k, x: jax.random.randint(k, x.shape, 0, 10**6))(key_draw, s["x"]), "key": key}


@pytest.mark.parametrize("where", ["replicas", "devices"])
def test_each_replica_draws_from_the_key_folded_with_its_index(where: str) -> None:
    ended, _ = run(toy(drawing, draw), Layout(Role("a", ("a",), **{where: 4})), iterations=1)
    keys = [jax.random.split(jax.random.fold_in(jax.random.key(5), i))[1] for i in range(4)]
    assert ended["x"].tolist() == [int(jax.random.randint(key, (1,), 0, 10**6)[0]) for key in keys]
    assert len(set(ended["x"].tolist())) == 4
    assert_unchanged(toy(drawing, draw), Layout(Role("a", ("a",), **{where: 1})))


def test_a_key_sent_to_replicas_is_folded_with_their_indices() -> None:
    def loop(s):
        key = on("b", lambda k: jax.random.fold_in(k, 7))(s["key"])
        return {"x": on("a", lambda k, x: jax.random.randint(k, x.shape, 0, 10**6))(key, s["x"]), "key": key}

    ended, _ = run(toy(drawing, loop), replicated(a=2, b=1), iterations=1)
    sent = jax.random.fold_in(jax.random.key(5), 7)
    drawn = [jax.random.randint(jax.random.fold_in(sent, i), (2,), 0, 10**6) for i in range(2)]
    assert ended["x"].tolist() == jnp.concatenate(drawn).tolist()
    assert_unchanged(toy(drawing, loop), replicated(a=1, b=1))


def test_keys_with_a_batch_axis_are_scattered_unchanged() -> None:
    def loop(s):
        keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(s["keys"])
        return {"x": on("a", jax.vmap(lambda k: jax.random.randint(k, (), 0, 10**6)))(keys), "keys": keys}

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs, int), "keys": split_keys(env.num_envs)}, loop)
    for layout in (replicated(a=2), Layout(Role("a", ("a",), devices=4))):
        assert_unchanged(algo, layout)


def test_roles_with_different_replica_counts_cannot_both_draw_outside_fragments() -> None:
    def loop(s):
        key, key_draw = jax.random.split(s["key"])
        noise = jax.random.uniform(key_draw, s["x"].shape)
        return {
            "x": on("a", lambda x, n: x + n)(s["x"], noise),
            "y": on("b", lambda y, n: y - n)(s["y"], noise),
            "key": key,
        }

    algo = toy(lambda env: dict.fromkeys("xy", jnp.zeros(env.num_envs)) | {"key": jax.random.key(0)}, loop)
    with pytest.raises(WeftError, match=r"draws from a random key .* a x2 {a} and b {b} need .* inside a fragment"):
        projected(algo, replicated(a=2, b=1))
    for layout in (replicated(a=1, b=1), replicated(a=2, b=2)):
        ended, _ = run(algo, layout, iterations=1)
        np.testing.assert_array_equal(ended["x"], -ended["y"])


def split_keys(count: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), count)


@pytest.mark.parametrize("where", ["replicas", "devices"])
def test_a_number_of_environments_that_replicas_do_not_divide_is_refused(where: str) -> None:
    layout = Layout(Role("a", ("*",), **{where: 3}))
    with pytest.raises(WeftError, match="num_envs=4 cannot be .* over 3 replicas of a: .* multiple of 3"):
        projected(merging_four(), layout)


def merging_four() -> Any:
    return toy(lambda env: {"x": jnp.zeros(env.num_envs)}, lambda s: {"x": on("a")(s["x"])})


def test_replica_counts_that_do_not_divide_each_other_are_refused() -> None:
    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs)}, lambda s: {"x": on("b")(on("a")(s["x"]))}, num_envs=6)
    with pytest.raises(WeftError, match="so that one of the two numbers divides the other"):
        projected(algo, replicated(a=2, b=3))


def test_a_loop_whose_structure_depends_on_the_number_of_environments_is_refused() -> None:
    def step(env, s):
        x = on("b")(on("a")(s["x"]))
        return ({"x": on("b")(on("a")(x)) if env.num_envs > 2 else x}, {})

    algo = Toy(start=lambda env, key: {"x": jnp.zeros(env.num_envs)}, loop=step)
    with pytest.raises(WeftError, match="another structure with . environments than with ."):
        projected(algo, replicated(a=2, b=1))


def test_placement_does_not_depend_on_the_batch_size_of_a_role() -> None:
    def loop(s):
        x, b = mod(on("a")(s["x"])), mod(on("b")(s["b"]))
        return {"x": x, "b": b}, {"both": Mean.of(jnp.sum(b) + jnp.max(x))}

    # With 2 environments sending x takes fewer bytes, with 4 environments sending b does.
    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "b": jnp.zeros(3)}, loop)
    assert_same(run(algo, replicated(a=1, b=2))[0], plain(algo)[0])


def test_a_call_outside_fragments_may_hold_a_merge() -> None:
    def loop(s):
        w = jax.jit(lambda w: all_sum(w) * 2 + 1)(on("a", jnp.sum)(s["x"]))
        return {"x": mod(on("a")(s["x"])), "w": mod(on("b", lambda w, old: w + old)(w, s["w"])), "v": mod(w)}

    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(1), "v": jnp.float32(1)}, loop)
    assert_unchanged(algo, replicated(a=2, b=1))


def test_the_initial_state_stays_usable_after_a_run() -> None:
    algo = merging_four()
    engine, state = LocalEngine(projected(algo, replicated(a=1))), start_of(merging_four())
    assert_same(engine.run(state, 5), engine.run(state, 5))
    assert_same(engine.run(state, 0), state)
