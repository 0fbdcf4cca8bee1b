"""weft's table of arrays, compiled and with its state donated: as many rows as transitions that come at once."""

from typing import Any

import jax
import jax.numpy as jnp
from replay_worker import Repeated, transitions

from weft.replay.device import DeviceReplay
from weft.replay.experience import Kept


def insert(batch: int, items: int, *, prioritised: bool = False) -> Repeated:
    table, state, given = made(batch, items, prioritised)
    add = adding(table, batch)

    def repeat() -> int:
        nonlocal state
        state = jax.block_until_ready(add(state, given))
        return batch

    return repeat


def sample(batch: int, items: int, *, prioritised: bool = False) -> Repeated:
    table, state, key = full(batch, items, prioritised)
    draw = jax.jit(lambda state, key: table.sample(state, key, (batch,))[1])

    def repeat() -> int:
        nonlocal key
        key, key_draw = jax.random.split(key)
        jax.block_until_ready(draw(state, key_draw))
        return batch

    return repeat


def update(batch: int, items: int) -> Repeated:
    table, state, key = full(batch, items, True)
    drawn = table.sample(state, key, (batch,))[1].key
    new = jax.random.uniform(key, (batch,))
    change = jax.jit(table.update, donate_argnums=0)

    def repeat() -> int:
        nonlocal state
        state = jax.block_until_ready(change(state, drawn, new))
        return batch

    return repeat


def full(batch: int, items: int, prioritised: bool) -> tuple[DeviceReplay, Any, jax.Array]:
    table, state, given = made(batch, items, prioritised)
    add = adding(table, batch)
    for _ in range(items // batch + 1):
        state = add(state, given)
    return table, state, jax.random.key(0)


def adding(table: DeviceReplay, batch: int) -> Any:
    return jax.jit(lambda state, steps: table.insert(state, jnp.arange(batch), steps, None), donate_argnums=0)


def made(batch: int, items: int, prioritised: bool) -> tuple[DeviceReplay, Any, Any]:
    table = DeviceReplay(Kept(capacity=items, rows=batch, exponent=0.6 if prioritised else None))
    given = jax.tree.map(jnp.asarray, transitions(batch))
    return table, table.init(given, jax.random.key(0)), jax.tree.map(lambda column: column[None], given)
