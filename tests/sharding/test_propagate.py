"""What the propagation claims about a program holds when the program is evaluated whole and in shares."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax

from tests.sharding.claims import FOLDED, REPLICATED, ROWS, STEPS, claims, sharded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::RuntimeWarning", "ignore::DeprecationWarning")
WEIGHTS = np.arange(-4, 5).reshape(3, 3).astype(np.float32)


def inputs() -> tuple[list[Any], list[Any]]:
    """Arrays of small whole numbers, so that no sum is rounded, and their shardings."""
    random = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return random.integers(-3, 4, shape).astype(np.float32)

    arrays = [numbers(ROWS, 3), numbers(STEPS, ROWS), numbers(STEPS * ROWS), numbers(3), np.float32(2.0), numbers(ROWS)]
    return arrays, [sharded(0), sharded(1), FOLDED, REPLICATED, REPLICATED, sharded(0)]


def draws(draw: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: draw(jax.random.key(1), x.shape)


def while_any(x: Any) -> Any:
    return lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 2, c[1] + 1), (x, 0))[0]


UNARY: list[Callable[[Any], Any]] = [
    jnp.tanh,
    jnp.abs,
    jnp.sign,
    jnp.square,
    lambda x: -x,
    lambda x: x + 1.0,
    lambda x: 2.0 * x,
    lambda x: x / x.size,
    lambda x: x * x.shape[0],
    lambda x: x > 0,
    lambda x: jnp.where(x > 0, x, 1.0),
    lambda x: jnp.where(x > 0, x, 0.0),
    lambda x: x.astype(jnp.int32),
    lambda x: x.astype(jnp.int32) // 2,
    lambda x: x.astype(jnp.int32) // x.shape[0],
    lambda x: x.sum(),
    lambda x: x.sum(0),
    lambda x: x.sum(-1),
    lambda x: x.mean(),
    lambda x: x.mean(0),
    lambda x: x.var(),
    lambda x: x.max(0),
    lambda x: x.max(-1),
    lambda x: x.argmax(0),
    lambda x: x.argmax(-1),
    lambda x: x.any(),
    lambda x: (x - x.mean()) / (x.std() + 1),
    lambda x: jnp.sort(x, 0),
    lambda x: jnp.sort(x, -1),
    lambda x: jnp.argsort(x, -1),
    lambda x: jnp.cumsum(x, 0),
    lambda x: jnp.cumsum(x, -1),
    lambda x: jnp.cumprod(x, -1),
    lambda x: x[::-1],
    lambda x: x[..., ::-1],
    lambda x: jnp.roll(x, 1, 0),
    lambda x: jnp.roll(x, 1, -1),
    lambda x: x.T,
    lambda x: x.reshape(-1),
    lambda x: x.reshape(STEPS, -1),
    lambda x: x.reshape(-1, STEPS),
    lambda x: x.reshape(STEPS, -1, 3),
    lambda x: x.reshape(-1, 2, 2),
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x[None],
    lambda x: x[..., None],
    lambda x: x[0],
    lambda x: x[-1],
    lambda x: x[1:],
    lambda x: x[:2],
    lambda x: x[: x.shape[0] // 2],
    lambda x: x[x.shape[0] // 2 :],
    lambda x: x[..., 0],
    lambda x: x[..., 1:],
    lambda x: x[..., ::2],
    lambda x: x[:, None] * jnp.ones((1, 2, 1)),
    lambda x: jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((1, 1),)),
    lambda x: jnp.pad(x, ((1, 0),) + ((0, 0),) * (x.ndim - 1), constant_values=1),
    lambda x: jnp.concatenate([x, x]),
    lambda x: jnp.concatenate([x, x], -1),
    lambda x: jnp.concatenate([x, jnp.zeros_like(x)]),
    lambda x: jnp.concatenate([x, jnp.ones_like(x)]),
    lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[1:]]),
    lambda x: jnp.stack([x, 2 * x]),
    lambda x: jnp.stack([x, x], -1),
    lambda x: jnp.tile(x, 2),
    lambda x: jnp.repeat(x, 2, 0),
    lambda x: jnp.repeat(x, 2, -1),
    lambda x: jnp.split(x, 2)[1],
    lambda x: jnp.zeros_like(x),
    lambda x: jnp.ones_like(x),
    lambda x: jnp.ones(x.shape[0]),
    lambda x: jnp.ones((x.shape[0], x.shape[0])),
    lambda x: jnp.arange(x.shape[0]),
    lambda x: jnp.arange(x.shape[0]) * 1.0 + x.shape[0],
    lambda x: jnp.broadcast_to(jnp.arange(x.shape[-1]), x.shape),
    lambda x: jnp.eye(x.shape[0]),
    lambda x: x[jnp.arange(x.shape[0])],
    lambda x: x[jnp.arange(x.shape[0]), 0],
    lambda x: x[jnp.arange(x.shape[0]), (x[:, 0] > 0).astype(int)],
    lambda x: x.at[jnp.arange(x.shape[0]), (x[:, 0] > 0).astype(int)].set(7.0),
    lambda x: x.at[jnp.arange(x.shape[0]), (x[:, 0] > 0).astype(int)].add(x[:, 1]),
    lambda x: x[(x[..., 0] > 0).astype(int)],
    lambda x: jnp.zeros(3).at[(x > 0).astype(int)].add(x),
    lambda x: jnp.zeros(3).at[(x > 0).astype(int)].set(x),
    lambda x: jnp.zeros(3).at[(x > 0).astype(int)].max(x),
    lambda x: x.at[0].set(5.0),
    lambda x: x.at[..., 0].set(5.0),
    lambda x: x.at[..., 1:].multiply(2.0),
    lambda x: jnp.take_along_axis(x, (x > 0).astype(int), -1),
    lambda x: jnp.take_along_axis(x, (x > 0).astype(int), 0),
    lambda x: jnp.zeros(x.shape).at[..., 0].set(x[..., 1]),
    lambda x: lax.dynamic_slice_in_dim(x, 1, 1, 0),
    lambda x: lax.dynamic_slice_in_dim(x, 1, 1, -1),
    lambda x: lax.dynamic_update_slice_in_dim(x, x[..., :1] + 1, 1, -1),
    lambda x: lax.dynamic_update_slice_in_dim(x, x[:1] + 1, 1, 0),
    lambda x: lax.dynamic_update_slice_in_dim(jnp.zeros((2, *x.shape)), x[None], 1, 0),
    lambda x: x @ WEIGHTS,
    lambda x: x @ x.T,
    lambda x: x.T @ x,
    lambda x: jnp.einsum("i...,i...->i", x, x),
    lambda x: jnp.einsum("i...,i...->...", x, x),
    lambda x: jnp.vdot(x, x),
    lambda x: jax.nn.softmax(x, -1),
    lambda x: jax.nn.softmax(x, 0),
    lambda x: jax.nn.one_hot((x > 0).astype(int), 3),
    lambda x: lax.top_k(x, 1)[0],
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1,) * (x.ndim - 1) + (2,), (1,) * x.ndim, "VALID"),
    lambda x: lax.reduce_window(x, 0.0, lax.add, (2,) + (1,) * (x.ndim - 1), (1,) * x.ndim, "SAME"),
    lambda x: jax.grad(lambda y: (y**2).sum())(x),
    lambda x: jax.grad(lambda y: (y**2).mean())(x),
    lambda x: jax.grad(lambda y: jnp.sort(y, -1)[..., 0].sum())(x),
    lambda x: jax.grad(lambda w: ((x @ w) ** 2).mean())(WEIGHTS),
    lambda x: jax.grad(lambda w: jnp.take(w, (x > 0).astype(int), axis=0).sum())(WEIGHTS),
    lambda x: jax.vmap(lambda row: row * row.sum())(x),
    lambda x: jax.checkpoint(lambda y: jnp.sin(y) * 2)(x),
    lambda x: jax.nn.relu(x),
    lambda x: jax.jit(lambda y: y.sum() + y)(x),
    lambda x: lax.scan(lambda c, y: (c + y, c * y), jnp.zeros_like(x[0]), x),
    lambda x: lax.scan(lambda c, y: (c + y.sum(), c), 0.0, x),
    lambda x: lax.scan(lambda c, _: (c * 2, c.sum()), x, length=2),
    lambda x: lax.scan(lambda c, _: (c, c), x, length=x.shape[0]),
    lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[..., 0].set(i), x),
    while_any,
    lambda x: lax.while_loop(lambda c: c.sum() < 50, lambda c: jnp.abs(c) + 1, x),
    lambda x: jax.vmap(lambda y: lax.while_loop(lambda c: c < 5, lambda c: c + 2, y))(x.reshape(-1)),
    lambda x: lax.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, x),
    lambda x: lax.cond(x.shape[0] > 4, lambda y: y + 1, lambda y: y - 1, x),
    lambda x: jax.vmap(lambda y: lax.cond(y.sum() > 0, lambda: 1.0, lambda: 2.0))(x),
    lambda x: lax.switch(1, [lambda y: y, lambda y: y * 2], x),
    draws(jax.random.uniform),
    draws(jax.random.bits),
    draws(lambda key, shape: jax.random.split(jax.random.split(key, shape[0])[0])),
    draws(lambda key, shape: jax.random.key_data(jax.random.split(key, shape[0]))),
    draws(lambda key, shape: jax.random.randint(key, shape, 0, 5)),
    draws(lambda key, shape: jax.random.permutation(key, shape[0])),
    draws(lambda key, shape: jax.random.normal(jax.random.wrap_key_data(jnp.ones(4, jnp.uint32), impl="rbg"), shape)),
    draws(lambda key, shape: jax.vmap(jax.random.uniform)(jax.random.split(key, shape[0]))),
    draws(lambda key, shape: jax.vmap(lambda k: jax.random.uniform(k, shape[1:]))(jax.random.split(key, shape[0]))),
    draws(lambda key, shape: jax.vmap(lambda k: jax.random.uniform(k, shape))(jax.random.split(key, 2))),
    draws(lambda key, shape: jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(jnp.arange(shape[0]))),
    draws(lambda key, shape: jax.random.gamma(key, 2.0 * jnp.ones(shape))),
    draws(lambda key, shape: jax.random.categorical(key, jnp.ones((*shape, 3)))),
    lambda x: jax.random.categorical(jax.random.key(2), x),
    lambda x: x + jax.random.normal(jax.random.key(4), x.shape),
    lambda x: jnp.linalg.norm(x, axis=-1),
    lambda x: jnp.linalg.norm(x),
    lambda x: jnp.fft.fft(x).real,
    lambda x: jnp.linalg.cholesky(x[:, None] * 0 + 2 * jnp.eye(3)),
    lambda x: jnp.nan_to_num(x / 0.0),
    lambda x: x ** x.shape[0],
    lambda x: x.at[jnp.nonzero(x > 0, size=2)].set(1),
    lambda x: jnp.unique(x, size=3),
    lambda x: jnp.searchsorted(jnp.arange(3.0), x),
    lambda x: jnp.bincount(jnp.abs(x).astype(int).reshape(-1), length=5),
    lambda x: jax.ops.segment_sum(x, jnp.zeros(x.shape[0], int), 2),
    lambda x: jnp.diff(x, axis=0),
    lambda x: jnp.diff(x, axis=-1),
    lambda x: jnp.median(x),
    lambda x: jnp.outer(x, x),
    lambda x: jnp.convolve(x, jnp.ones(2), mode="same"),
]
BINARY: list[Callable[[Any, Any], Any]] = [
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.maximum,
    lambda x, y: x / (1 + jnp.abs(y)),
    lambda x, y: x / y.sum(),
    lambda x, y: x > y,
    lambda x, y: jnp.where(x > 0, x, y),
    lambda x, y: jnp.concatenate([x, y]),
    lambda x, y: jnp.stack([x, y]),
    lambda x, y: x @ y,
    lambda x, y: jnp.dot(x, y),
    lambda x, y: x[..., None] * y,
    lambda x, y: x[:, None] * y[None],
    lambda x, y: jnp.take(x, jnp.abs(y).astype(int) % 3, axis=0),
    lambda x, y: jnp.take(x, jnp.abs(y).astype(int) % 3, axis=-1),
    lambda x, y: jnp.zeros_like(x).at[..., 0].set(y),
    lambda x, y: jnp.zeros_like(x).at[0].set(y),
    lambda x, y: jax.vmap(lambda a, b: a * b)(x, y),
    lambda x, y: jax.vmap(lambda i: x[i])(jnp.abs(y).astype(int) % 2),
    lambda x, y: jax.vmap(lambda a, i: a[i])(x, jnp.abs(y).astype(int) % 2),
    lambda x, y: jax.vmap(lambda a, i: a.at[i].set(1.0))(x, jnp.abs(y).astype(int) % 2),
    lambda x, y: jnp.clip(x, y.min(), y.max()),
    lambda x, y: lax.cond(jnp.sum(x) > 0, lambda: y, lambda: y * 2),
    lambda x, y: lax.scan(lambda c, a: (c + a, c), y, x),
]


@pytest.mark.parametrize("index", range(len(UNARY)))
def test_the_claims_about_one_operation_hold(index: int) -> None:
    arrays, shardings = inputs()
    applied = 0
    for array, sharding in zip(arrays, shardings, strict=True):
        applied += bool(claims(UNARY[index], [array], [sharding]))
    assert applied


@settings(max_examples=60)
@given(st.data())
def test_the_claims_about_random_programs_hold(data: st.DataObject) -> None:
    arrays, shardings = inputs()

    def program(*values: Any) -> list[Any]:
        made = list(values)
        for name, operation, operands in steps:
            del name
            made += [x for x in jax.tree.leaves(operation(*[made[i] for i in operands])) if x.ndim < 4]
        return made[len(values) :]

    steps: list[tuple[int, Callable[..., Any], tuple[int, ...]]] = []
    count = len(arrays)
    for _ in range(data.draw(st.integers(2, 6))):
        binary = data.draw(st.booleans())
        number = data.draw(st.integers(0, len(BINARY if binary else UNARY) - 1))
        operation = (BINARY if binary else UNARY)[number]
        operands = tuple(data.draw(st.integers(0, count - 1)) for _ in range(1 + binary))
        steps.append((number, operation, operands))
        try:
            count = len(arrays) + len(jax.eval_shape(program, *arrays))
        except Exception:  # an operation that does not fit its operands
            steps.pop()
    claims(program, arrays, shardings)
