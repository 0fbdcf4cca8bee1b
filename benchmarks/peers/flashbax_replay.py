"""flashbax, compiled and with its state donated, measured: see `replay_worker`."""

from typing import Any

import flashbax
import jax
import jax.numpy as jnp
from replay_worker import Repeated, obey, transitions

ITEMS = 1_000_000


def insert(batch: int, *, prioritised: bool = False) -> Repeated:
    buffer, state, given = made(batch, prioritised)
    add = jax.jit(buffer.add, donate_argnums=0)

    def repeat() -> int:
        nonlocal state
        state = jax.block_until_ready(add(state, given))
        return batch

    return repeat


def sample(batch: int, *, prioritised: bool = False) -> Repeated:
    buffer, state, key = full(batch, prioritised)
    draw = jax.jit(buffer.sample)

    def repeat() -> int:
        nonlocal key
        key, key_draw = jax.random.split(key)
        jax.block_until_ready(draw(state, key_draw))
        return batch

    return repeat


def update(batch: int) -> Repeated:
    buffer, state, key = full(batch, True)
    indices = jax.jit(buffer.sample)(state, key).indices
    new = jax.random.uniform(key, (batch,))
    change = jax.jit(buffer.set_priorities, donate_argnums=0)

    def repeat() -> int:
        nonlocal state
        state = jax.block_until_ready(change(state, indices, new))
        return batch

    return repeat


def full(batch: int, prioritised: bool) -> tuple[Any, Any, jax.Array]:
    buffer, state, given = made(batch, prioritised)
    add = jax.jit(buffer.add, donate_argnums=0)
    for _ in range(ITEMS // batch + 1):
        state = add(state, given)
    return buffer, state, jax.random.key(0)


def made(batch: int, prioritised: bool) -> tuple[Any, Any, Any]:
    make = flashbax.make_prioritised_item_buffer if prioritised else flashbax.make_item_buffer
    buffer = make(ITEMS, 1, batch, add_batches=True)
    given = jax.tree.map(jnp.asarray, transitions(batch))
    return buffer, buffer.init(jax.tree.map(lambda column: column[0], given)), given


if __name__ == "__main__":
    obey({"insert": insert, "sample": sample, "update": update})
