"""Every operation computes what its name says, and marked calls are replaced by their bodies."""

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

X = jnp.arange(4.0)


def op(kind: str, *inputs: Any, context: ReplicaContext | None = None, **params: Any) -> list[Any]:
    return list(eval_op(Op(kind, (), (), params), context or ReplicaContext(), *inputs))


def test_index_selects_one_step() -> None:
    stack = jnp.arange(6.0).reshape(3, 2)
    for step in range(3):
        assert op("index", stack, jnp.int32(step))[0].tolist() == [2 * step, 2 * step + 1]


@pytest.mark.parametrize("axis", [0, 1])
def test_join_reverses_split(axis: int) -> None:
    table = jnp.arange(16).reshape(4, 4)
    parts = op("split", table, axis=axis, parts=2)
    assert [part.shape for part in parts] == [(2, 4) if axis == 0 else (4, 2)] * 2
    assert op("join", *parts, axis=axis)[0].tolist() == table.tolist()


def test_constants_become_arrays_of_their_dtype() -> None:
    (array,) = op("constant", np.int8(3))
    assert isinstance(array, jax.Array) and array.dtype == jnp.int8


def test_split_and_join_keep_the_steps_that_are_folded_into_an_axis() -> None:
    steps = jnp.arange(12).reshape(3, 4)
    parts = op("split", steps.reshape(-1), axis=0, parts=2, runs=3)
    assert [part.tolist() for part in parts] == [steps[:, :2].reshape(-1).tolist(), steps[:, 2:].reshape(-1).tolist()]
    assert op("join", *parts, axis=0, runs=3)[0].tolist() == list(range(12))


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
def test_replacing_marks_by_their_bodies_changes_no_result_and_leaves_no_mark(name: str, barriers: bool) -> None:
    jaxpr = jax.make_jaxpr(MARKED[name])(X)
    context = ReplicaContext(barriers=barriers)
    retraced = jax.make_jaxpr(lambda x: eval_jaxpr(jaxpr, [x], context))(X)
    assert "fragment:" not in str(retraced) and "merge:" not in str(retraced)
    assert ("optimization_barrier" in str(retraced)) == barriers
    for found, expected in zip(
        jax.jit(lambda x: eval_jaxpr(jaxpr, [x], context))(X), jax.tree.leaves(MARKED[name](X)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_custom_derivative_rule_is_preserved() -> None:
    @jax.custom_vjp
    def double(x):
        return on("a", lambda x: 2 * x)(x)

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g * 7,))
    jaxpr = jax.make_jaxpr(double)(X)
    np.testing.assert_array_equal(eval_jaxpr(jaxpr, [X], ReplicaContext())[0], 2 * X)


def test_replica_index_and_count_come_from_the_context() -> None:
    index, count = jax.make_jaxpr(replica)().eqns
    context = ReplicaContext(index=3, count=5)
    assert [int(eval_equation(eqn, [], context)[0]) for eqn in (index, count)] == [3, 5]
    assert [int(eval_equation(eqn, [], ReplicaContext())[0]) for eqn in (index, count)] == [0, 1]
