"""weft's table of arrays, with as many rows as transitions come at once: see `compiled`."""

from typing import Any

import jax
import jax.numpy as jnp
from compiled import ITEMS, Functions, cases
from replay_worker import transitions

from weft.replay.device import DeviceReplay
from weft.replay.interface import TableSpec


def made(batch: int, prioritised: bool) -> tuple[Functions, Any, Any]:
    table = DeviceReplay(TableSpec(capacity=ITEMS, rows=batch, sampler="prioritised:0.6" if prioritised else "uniform"))
    given = jax.tree.map(jnp.asarray, transitions(batch))
    functions = Functions(
        insert=lambda state, steps: table.insert(state, jnp.arange(batch), steps, None),
        sample=lambda state, key: table.sample(state, key, (batch,))[1],
        keys=lambda drawn: drawn.key,
        update=table.update,
    )
    return functions, table.init(given, jax.random.key(0)), jax.tree.map(lambda column: column[None], given)


CASES = cases(made)
