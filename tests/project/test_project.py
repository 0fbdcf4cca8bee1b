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
from weft import Layout, Role, all_gather, all_mean, all_sum, per_replica, replica, share
from weft.errors import WeftError
from weft.host import host_call, new_token
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


def merging(merged: Any) -> Any:
    """A loop that adds a value, merged over all rows, to a weight."""

    def learn(x, w):
        return x + 1, w + merged(x)

    def loop(s):
        x, w = on("a", learn)(s["x"], s["w"])
        return {"x": x, "w": w}

    return toy(lambda env: {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(1)}, loop, num_envs=8)


MERGED = {
    "a mean": lambda x: all_mean(x.mean()),
    "a sum": lambda x: all_sum(x.sum()),
    "a mean of sums": lambda x: all_mean(x.sum()),
    "a sum of means": lambda x: all_sum(x.mean()),
    "an equal value": lambda x: all_sum(jnp.float32(3)),
    "squares of all rows": lambda x: all_sum(jnp.square(x - all_mean(x.mean())).sum()),
    "all rows": lambda x: jnp.sort(all_gather(x))[2],
    "several values": lambda x: sum(jax.tree.leaves(all_mean({"sum": x.sum(), "mean": 2 * x.mean(), "one": 1.0}))),
}


@pytest.mark.parametrize("where", ["replicas", "devices"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("merged", MERGED.values(), ids=MERGED.keys())
def test_a_merge_returns_what_one_replica_with_all_rows_computes(merged: Any, count: int, where: str) -> None:
    assert_unchanged(merging(merged), Layout(Role("a", ("*",), **{where: count})))


@pytest.mark.parametrize("where", ["replicas", "devices"])
@pytest.mark.parametrize(("operation", "reduce"), [(all_mean, np.mean), (all_sum, np.sum)], ids=["mean", "sum"])
def test_values_declared_per_replica_are_merged_as_the_name_of_the_merge_says(
    operation: Any, reduce: Any, where: str
) -> None:
    algo = merging(lambda x: operation(per_replica(jnp.max(x) ** 2)))
    ended, _ = run(algo, Layout(Role("a", ("*",), **{where: 4})), iterations=1)
    assert ended["w"] == 1 + reduce([1**2, 3**2, 5**2, 7**2])


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

    assert_unchanged(toy(rows, by_column, num_envs=4), Layout(Role("a", ("*",), **{where: 2})))


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
            return jnp.full_like(x, index), jnp.full_like(x, per_replica(count))

        index, count = on("a", fill)(s["index"])
        return {"index": index, "count": count}

    algo = toy(lambda env: dict.fromkeys(("index", "count"), jnp.zeros(env.num_envs, jnp.int32)), loop)
    ended, _ = run(algo, layout)
    assert (ended["index"].tolist(), ended["count"].tolist()) == expected


DRAWS = {
    "a typed key": lambda key, x: jax.random.randint(key, x.shape, 0, 10**6),
    "a raw key": lambda key, x: jax.random.randint(jax.random.key_data(key), x.shape, 0, 10**6),
    "an rbg key": lambda key, x: jax.random.randint(
        jax.random.wrap_key_data(jnp.tile(jax.random.key_data(key), 2), impl="rbg"), x.shape, 0, 10**6
    ),
    "rows second": lambda key, x: jax.random.randint(key, (3, *x.shape), 0, 10**6)[1],
    "a key for each row": lambda key, x: jax.vmap(lambda k: jax.random.randint(k, (), 0, 10**6))(
        jax.random.split(key, x.shape[0])
    ),
    "a key for each row number": lambda key, x: jax.vmap(
        lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 0, 10**6)
    )(jnp.arange(x.shape[0])),
}


@pytest.mark.parametrize("layout", ["a2", "devices", "a4 b2", "b glue"])
@pytest.mark.parametrize("name", DRAWS)
def test_each_row_draws_the_same_numbers_whichever_replica_holds_it(name: str, layout: str) -> None:
    draw = DRAWS[name]

    def loop(s):
        key, key_draw = jax.random.split(s["key"])
        key_draw = on("b", lambda k: jax.random.fold_in(k, 7))(key_draw)
        noise = draw(key_draw, s["x"]) if layout == "b glue" else 0
        return {"x": on("a", lambda k, x, n: draw(k, x) + n)(key_draw, s["x"], noise), "key": key}

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs, jnp.int32), "key": jax.random.key(5)}, loop)
    layouts = {
        "a2": replicated(a=2, b=1),
        "devices": Layout(Role("a", ("a", "b"), devices=4)),
        "a4 b2": replicated(a=4, b=2),
        "b glue": replicated(a=2, b=4),
    }
    assert_unchanged(algo, layouts[layout])


def test_keys_with_a_batch_axis_are_scattered_unchanged() -> None:
    def loop(s):
        keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(s["keys"])
        return {"x": on("a", jax.vmap(lambda k: jax.random.randint(k, (), 0, 10**6)))(keys), "keys": keys}

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs, int), "keys": split_keys(env.num_envs)}, loop)
    for layout in (replicated(a=2), Layout(Role("a", ("a",), devices=4))):
        assert_unchanged(algo, layout)


def test_roles_with_different_replica_counts_draw_the_same_numbers_outside_fragments() -> None:
    def loop(s):
        key, key_draw = jax.random.split(s["key"])
        noise = jax.random.uniform(key_draw, s["x"].shape)
        return {
            "x": on("a", lambda x, n: x + n)(s["x"], noise),
            "y": on("b", lambda y, n: y - n)(s["y"], noise),
            "key": key,
        }

    algo = toy(lambda env: dict.fromkeys("xy", jnp.zeros(env.num_envs)) | {"key": jax.random.key(0)}, loop)
    for layout in (replicated(a=2, b=1), replicated(a=4, b=2), replicated(a=1, b=1)):
        assert_unchanged(algo, layout)


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


def test_replicas_compute_what_the_whole_loop_computes_if_its_structure_depends_on_the_number_of_environments() -> None:
    def step(env, s):
        x = on("b")(on("a")(s["x"]))
        return ({"x": on("b")(on("a")(x)) if env.num_envs > 2 else x}, {})

    algo = Toy(start=lambda env, key: {"x": jnp.zeros(env.num_envs)}, loop=step)
    assert_unchanged(algo, replicated(a=2, b=1))


@pytest.mark.parametrize("shared", [False, True], ids=["inside a fragment", "over two roles"])
def test_a_loop_whose_length_depends_on_the_number_of_environments_is_refused(shared: bool) -> None:
    def step(env, s):
        def tick(x, _):
            return (on("b")(on("a")(x)) if shared else x + 1), None

        def scan(x):
            return lax.scan(tick, x, length=8 // env.num_envs)[0]

        return ({"x": scan(s["x"]) if shared else on("b")(on("a", scan)(s["x"]))}, {})

    algo = Toy(start=lambda env, key: {"x": jnp.zeros(env.num_envs)}, loop=step)
    with pytest.raises(WeftError, match="(crosses .* times|loop of .* steps) .* independent of env.num_envs"):
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


def test_a_side_effect_outside_fragments_runs_on_a_single_role_and_is_refused_on_several() -> None:
    printed: list[float] = []

    def loop(s):
        jax.debug.callback(lambda x: printed.append(float(x)), s["x"].sum())
        return {"x": on("b")(on("a")(s["x"]))}

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs)}, loop)
    for layout in (layout_of(all="*"), replicated(a=1, b=1)):
        if len(layout.roles) == 1:
            run(algo, layout, iterations=2)
            jax.effects_barrier()
            assert printed == [0.0, 12.0]
        else:
            with pytest.raises(WeftError, match="debug_callback` with a side effect .* outside any fragment"):
                projected(algo, layout)


def test_host_code_under_vmap_is_refused() -> None:
    def double(x):
        return host_call(lambda token, x: x * 2, jax.ShapeDtypeStruct((), jnp.float32), new_token(1), x, name="a")[1]

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs)}, lambda s: {"x": jax.vmap(double)(s["x"])})
    with pytest.raises(WeftError, match="host code 'a' is called under jax.vmap: call it once"):
        projected(algo, layout_of(all="*"))


@pytest.mark.parametrize("counts", [(2, 1), (4, 2), (1, 4), (4, 4)])
@pytest.mark.parametrize("mean", [True, False])
def test_gradients_through_roles_of_different_counts_are_those_of_one_replica(mean: bool, counts: Any) -> None:
    """Edges encode their rows, a server computes the loss; every gradient is merged."""

    def average(x):
        return jnp.mean(x) if mean else jnp.sum(x) / all_sum(x.size)

    def loop(s):
        def loss(weights):
            code = on("edge", lambda w, x: x * w)(weights["edge"], s["x"])
            return on("server", lambda w, code: average((code * w - 1) ** 2))(weights["server"], code)

        grads = jax.grad(loss)({"edge": s["edge"], "server": s["server"]})
        edge = on("edge", lambda w, g: jnp.round((w - all_mean(g)) * 4) / 4)(s["edge"], grads["edge"])
        server = on("server", lambda w, g: jnp.round((w - all_mean(g)) * 4) / 4)(s["server"], grads["server"])
        return {"x": s["x"], "edge": edge, "server": server}

    start = {"edge": jnp.float32(1), "server": jnp.float32(2)}
    algo = toy(lambda env: start | {"x": jnp.arange(float(env.num_envs)) / 4}, loop)
    layout = replicated(edge=counts[0], server=counts[1])
    if mean and counts in ((4, 2), (1, 4)):
        with pytest.raises(WeftError, match="scaled by the number of replicas: divide sums by all_sum of their counts"):
            projected(algo, layout)
    else:
        assert_unchanged(algo, layout)


def test_states_of_a_table_are_divided_by_share() -> None:
    """Value iteration over a ring of states: each replica updates its share, with the values of all."""
    states = 12

    def step(env, s):
        def backup(values, rewards, number):
            return rewards + jnp.floor(all_gather(values)[(number + 1) % states] / 2)

        return {**s, "values": on("a", backup)(s["values"], s["rewards"], s["number"])}, {}

    def start(env, key):
        rows = jnp.arange(float(share(states)))
        return {"values": 0 * rows, "rewards": rows % 5, "number": jnp.arange(share(states))}

    algo = Toy(start=start, loop=step, num_envs=4)
    for count in (1, 2, 4):
        assert_unchanged(algo, replicated(a=count))


@pytest.mark.parametrize(
    ("local", "reason"),
    [
        (lambda x: x - x.max(), "`reduce_max` along axis 0"),
        (lambda x: jnp.argsort(x) * 1.0, "`sort` along axis 0"),
        (lambda x: x[::-1], "`rev` along axis 0"),
        (lambda x: jnp.roll(x, 1), "some rows"),
        (lambda x: x - x.mean(), "a sum over the rows of one replica"),
        (lambda x: x.at[0].set(0), "some rows"),
        (lambda x: lax.cond(x.sum() > 4, lambda: x, lambda: -x), "a sum over the rows of one replica"),
        (lambda x: x + replica()[1], "the number of replicas"),
        (lambda x: jnp.full_like(x, x.shape[0] ** 3), "a number that is"),
    ],
    ids=["max", "ranking", "reversal", "roll", "centring", "indexing", "branch", "count", "size"],
)
def test_a_value_that_would_depend_on_the_number_of_replicas_is_refused_with_its_operation(local, reason) -> None:
    algo = toy(lambda env: {"x": jnp.arange(float(env.num_envs))}, lambda s: {"x": on("a", local)(s["x"])})
    assert_unchanged(algo, replicated(a=1))
    with pytest.raises(WeftError, match=reason):
        projected(algo, replicated(a=2))
    if not reason.startswith(("the number", "a number")):
        declared = toy(lambda env: {"x": jnp.arange(float(env.num_envs))}, lambda s: {"x": own(s["x"])})
        own = on("a", lambda x: local(per_replica(x)))
        run(declared, replicated(a=2))
