"""Variation: values that may differ between replicas, and state that must not."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import on, projected, replicated, toy
from weft import Layout, Role, all_mean, all_sum, replica
from weft.errors import WeftError
from weft.graph.marks import token_index
from weft.host import host_call, new_token
from weft.project.varying import equation_varies


def start(env: Any) -> dict[str, jax.Array]:
    return {"x": jnp.arange(float(env.num_envs)), "w": jnp.float32(0), "key": jax.random.key(0)}


def moves(w: Any) -> Any:
    return toy(start, lambda s: s | {"w": on("a", w)(s["x"], s["w"], s["key"])})


BOTH = (replicated(a=2), Layout(Role("a", ("a",), devices=2)))


@pytest.mark.parametrize("layout", BOTH, ids=["replicas", "devices"])
@pytest.mark.parametrize(
    "w",
    [
        lambda x, w, key: w + x.sum(),
        lambda x, w, key: w + jax.random.uniform(key),
        lambda x, w, key: w + replica()[0],
        lambda x, w, key: lax.scan(lambda c, row: (c + row, None), w, x)[0],
        lambda x, w, key: lax.cond(x.sum() > 3, lambda: w, lambda: w + 1),
        lambda x, w, key: all_mean(w) + x[0],
        lambda x, w, key: lax.scan(lambda c, _: ((c[1], c[2], x.sum()), None), (w, w, w), length=2)[0][0],
    ],
    ids=["share", "key", "replica", "scan", "cond", "merged too early", "slowly"],
)
def test_a_state_leaf_that_would_differ_between_replicas_is_refused(w: Any, layout: Layout) -> None:
    with pytest.raises(WeftError, match=r"state\['w'\] would come to differ between the 2 replicas of a.*all_mean"):
        projected(moves(w), layout)


@pytest.mark.parametrize("layout", BOTH, ids=["replicas", "devices"])
@pytest.mark.parametrize(
    "w",
    [
        lambda x, w, key: w + all_sum(x.sum()),
        lambda x, w, key: w + 1,
        lambda x, w, key: w + replica()[1],
        lambda x, w, key: lax.scan(lambda c, _: (c + all_mean(x.sum()), None), w, length=2)[0],
        lambda x, w, key: jax.jit(lambda x: all_mean(x))(jax.random.uniform(key)),
    ],
    ids=["sum", "constant", "count", "scan", "nested"],
)
def test_a_leaf_that_is_merged_or_never_differs_is_accepted(w: Any, layout: Layout) -> None:
    projected(moves(w), layout)


def test_a_value_computed_by_another_role_from_varying_values_varies() -> None:
    def loop(s):
        mean = on("a", lambda x: x.mean())(s["x"])
        return s | {"w": on("b")(mean)}

    with pytest.raises(WeftError, match=r"state\['w'\] would come to differ between the 2 replicas of b"):
        projected(toy(start, loop), replicated(a=2, b=2))


@pytest.mark.parametrize("what", ["key", "x"])
def test_a_value_with_a_different_share_for_each_replica_varies(what: str) -> None:
    def loop(s):
        sent = on("b", lambda v: v)(s[what])
        draw = jax.random.uniform if what == "key" else jnp.sum
        return s | {"w": on("a", lambda w, v: w + draw(v))(s["w"], sent)}

    with pytest.raises(WeftError, match=r"state\['w'\] would come to differ between the 2 replicas of a"):
        projected(toy(start, loop), replicated(a=2, b=1))


def test_keys_and_rows_may_differ_between_replicas() -> None:
    def loop(s):
        key, other = jax.random.split(s["key"])
        return s | {"x": on("a", lambda x, k: x + jax.random.uniform(k, x.shape))(s["x"], other), "key": key}

    projected(toy(start, loop), replicated(a=2))


def test_results_of_an_equation_vary_if_its_inputs_do() -> None:
    def flags(fn: Any, *inputs: bool) -> list[bool]:
        jaxpr = jax.make_jaxpr(jax.jit(fn))(*[1.0] * len(inputs))
        return equation_varies(jaxpr.eqns[0], inputs)

    assert flags(lambda a, b: (a + 1, b + 1, a + b), True, False) == [True, False, True]
    assert flags(lambda a, b: (all_mean(a), all_sum(a) + b, replica()[1], replica()[0]), True, False) == [
        False,
        False,
        False,
        True,
    ]


def test_the_order_token_of_a_host_call_varies_if_the_token_before_it_does() -> None:
    def call(token: Any, x: Any) -> Any:
        return host_call(lambda token, x: x, jax.ShapeDtypeStruct((), jnp.float32), token, x, name="host")

    (equation,) = jax.make_jaxpr(call)(new_token(1), jnp.float32(0)).eqns
    token = token_index(equation)
    assert token is not None
    assert equation_varies(equation, [index == token for index in range(2)]) == [True, True]
    assert equation_varies(equation, [index != token for index in range(2)]) == [False, True]
