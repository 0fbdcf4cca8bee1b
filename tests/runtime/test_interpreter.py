"""Every operation computes what its name says, with marks dissolved."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.toys import on
from weft import all_mean, all_sum, replica
from weft.project.program import Op
from weft.runtime.interpreter import ReplicaContext, eval_equation, eval_jaxpr, eval_op
from weft.runtime.keys import fold_keys

X = jnp.arange(4.0)


def op(kind: str, *inputs: Any, context: ReplicaContext | None = None, **params: Any) -> list[Any]:
    return list(eval_op(Op(kind, (), (), params), context or ReplicaContext(), *inputs))


def test_index_takes_a_step() -> None:
    stack = jnp.arange(6.0).reshape(3, 2)
    for step in range(3):
        assert op("index", stack, jnp.int32(step))[0].tolist() == [2 * step, 2 * step + 1]


@pytest.mark.parametrize("axis", [0, 1])
def test_split_and_join_are_inverse(axis: int) -> None:
    table = jnp.arange(16).reshape(4, 4)
    parts = op("split", table, axis=axis, parts=2)
    assert [part.shape for part in parts] == [(2, 4) if axis == 0 else (4, 2)] * 2
    assert op("join", *parts, axis=axis)[0].tolist() == table.tolist()


def test_constants_become_arrays_of_their_type() -> None:
    (made,) = op("constant", np.int8(3))
    assert isinstance(made, jax.Array) and made.dtype == jnp.int8


def test_folding_uses_the_replica_that_is_given() -> None:
    key = jax.random.key(1)
    (folded,) = op("fold", key, jnp.int32(3))
    assert jnp.array_equal(jax.random.key_data(folded), jax.random.key_data(jax.random.fold_in(key, 3)))


def test_every_key_of_an_array_is_folded() -> None:
    keys = jax.random.split(jax.random.key(0), (2, 3))
    folded = fold_keys(keys, 5)
    assert folded.shape == (2, 3)
    for index in np.ndindex(2, 3):
        expected = jax.random.fold_in(keys[index], 5)
        assert jnp.array_equal(jax.random.key_data(folded[index]), jax.random.key_data(expected))


MARKED = {
    "nested": lambda x: on("a", lambda x: on("b")(x) * 2)(x),
    "scan": lambda x: lax.scan(lambda c, _: (on("a")(c), c), x, length=3),
    "reverse": lambda x: lax.scan(lambda c, row: (on("a")(c) + row, c), x.sum(), x, reverse=True),
    "cond": lambda x: lax.cond(x.sum() > 3, on("a"), on("b", lambda x: x), x),
    "switch": lambda x: lax.switch(2, [on("a"), lambda x: x, on("b", lambda x: x * 9)], x),
    "while": lambda x: lax.while_loop(lambda c: on("a", jnp.sum)(c) < 99, on("b"), x),
    "remat": jax.checkpoint(lambda x: on("a", lambda x: x + np.arange(4.0, dtype=np.float32))(x)),
    "vmap": jax.vmap(lambda x: on("a")(x)),
    "jit": jax.jit(lambda x: on("a")(x) + 1),
    "merge": lambda x: on("a", lambda x: all_sum(x) + all_mean(x))(x),
    "grad": jax.grad(lambda x: jnp.sum(on("a", lambda x: x**3)(x))),
}


@pytest.mark.parametrize("barriers", [False, True])
@pytest.mark.parametrize("name", MARKED)
def test_dissolving_marks_changes_no_result_and_leaves_none(name: str, barriers: bool) -> None:
    jaxpr = jax.make_jaxpr(MARKED[name])(X)
    context = ReplicaContext(barriers=barriers)
    again = jax.make_jaxpr(lambda x: eval_jaxpr(jaxpr, [x], context))(X)
    assert "fragment:" not in str(again) and "merge:" not in str(again)
    assert ("optimization_barrier" in str(again)) == barriers
    for ours, theirs in zip(
        jax.jit(lambda x: eval_jaxpr(jaxpr, [x], context))(X), jax.tree.leaves(MARKED[name](X)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_custom_derivative_rule_survives() -> None:
    @jax.custom_vjp
    def double(x):
        return on("a", lambda x: 2 * x)(x)

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g * 7,))
    jaxpr = jax.make_jaxpr(double)(X)
    np.testing.assert_array_equal(eval_jaxpr(jaxpr, [X], ReplicaContext())[0], 2 * X)


def test_a_replica_is_what_the_context_says() -> None:
    index, count = jax.make_jaxpr(replica)().eqns
    context = ReplicaContext(index=3, count=5)
    assert [int(eval_equation(eqn, [], context)[0]) for eqn in (index, count)] == [3, 5]
    assert [int(eval_equation(eqn, [], ReplicaContext())[0]) for eqn in (index, count)] == [0, 1]
