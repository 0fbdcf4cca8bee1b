"""Tables of arrays in compiled programs, measured alike: the state is donated, and every call is waited for.

Who has such a table gives functions of its state: `made(batch, prioritised)` is the functions, an empty state and a
batch to insert.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from replay_worker import Repeated

ITEMS = 1_000_000


class Functions(NamedTuple):
    """What a table does, as functions of its state."""

    insert: Callable[[Any, Any], Any]
    sample: Callable[[Any, jax.Array], Any]
    keys: Callable[[Any], jax.Array]
    """Of a sample, that by which its items are updated."""
    update: Callable[[Any, jax.Array, jax.Array], Any] | None = None


Made = Callable[[int, bool], tuple[Functions, Any, Any]]


def cases(made: Made) -> dict[str, Any]:
    """What can be measured of such a table, by name."""

    def insert(batch: int, *, prioritised: bool = False) -> Repeated:
        functions, state, given = made(batch, prioritised)
        return changing(functions.insert, state, given, count=batch)

    def sample(batch: int, *, prioritised: bool = False) -> Repeated:
        functions, state = full(batch, prioritised)
        draw, key = jax.jit(functions.sample), jax.random.key(0)

        def repeat() -> int:
            nonlocal key
            key, key_draw = jax.random.split(key)
            jax.block_until_ready(draw(state, key_draw))
            return batch

        return repeat

    def update(batch: int) -> Repeated:
        functions, state = full(batch, True)
        key = jax.random.key(0)
        keys = functions.keys(jax.jit(functions.sample)(state, key))
        assert functions.update is not None
        return changing(functions.update, state, keys, jax.random.uniform(key, (batch,)), count=batch)

    def full(batch: int, prioritised: bool) -> tuple[Functions, Any]:
        functions, state, given = made(batch, prioritised)
        add = jax.jit(functions.insert, donate_argnums=0)
        for _ in range(ITEMS // batch + 1):
            state = add(state, given)
        return functions, state

    return {"insert": insert, "sample": sample, "update": update}


def changing(function: Callable[..., Any], state: Any, *given: Any, count: int) -> Repeated:
    """What changes the state, again and again."""
    change = jax.jit(function, donate_argnums=0)

    def repeat() -> int:
        nonlocal state
        state = jax.block_until_ready(change(state, *given))
        return count

    return repeat
