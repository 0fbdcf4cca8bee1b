"""Cases for tables on the device: every function is compiled, its state is donated, and every call is waited for.

A library provides `make_table(batch, prioritised)`, which returns the table's functions, an empty state, and a batch to
insert.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from replay_worker import Operation

ITEMS = 1_000_000


class Functions(NamedTuple):
    """The operations of a table, as functions of its state."""

    insert: Callable[[Any, Any], Any]
    sample: Callable[[Any, jax.Array], Any]
    keys: Callable[[Any], jax.Array]
    """The keys of a sample's items, for `update`."""
    update: Callable[[Any, jax.Array, jax.Array], Any] | None = None


MakeTable = Callable[[int, bool], tuple[Functions, Any, Any]]


def make_cases(make_table: MakeTable) -> dict[str, Any]:
    """Returns the cases by name."""

    def insert(batch: int, *, prioritised: bool = False) -> Operation:
        functions, state, steps = make_table(batch, prioritised)
        return repeat_update(functions.insert, state, steps, count=batch)

    def sample(batch: int, *, prioritised: bool = False) -> Operation:
        functions, state = fill_table(batch, prioritised)
        draw, key = jax.jit(functions.sample), jax.random.key(0)

        def repeat() -> int:
            nonlocal key
            key, key_draw = jax.random.split(key)
            jax.block_until_ready(draw(state, key_draw))
            return batch

        return repeat

    def update(batch: int) -> Operation:
        functions, state = fill_table(batch, True)
        key = jax.random.key(0)
        keys = functions.keys(jax.jit(functions.sample)(state, key))
        assert functions.update is not None
        return repeat_update(functions.update, state, keys, jax.random.uniform(key, (batch,)), count=batch)

    def fill_table(batch: int, prioritised: bool) -> tuple[Functions, Any]:
        functions, state, steps = make_table(batch, prioritised)
        add = jax.jit(functions.insert, donate_argnums=0)
        for _ in range(ITEMS // batch + 1):
            state = add(state, steps)
        return functions, state

    return {"insert": insert, "sample": sample, "update": update}


def repeat_update(function: Callable[..., Any], state: Any, *arguments: Any, count: int) -> Operation:
    """Returns an operation that replaces the state by the function's result."""
    compiled = jax.jit(function, donate_argnums=0)

    def repeat() -> int:
        nonlocal state
        state = jax.block_until_ready(compiled(state, *arguments))
        return count

    return repeat
