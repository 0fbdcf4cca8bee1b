"""Cases for weft's table on the device, with one row per transition of a batch (see `compiled`)."""

from typing import Any

import jax
import jax.numpy as jnp
from compiled import ITEMS, Functions, make_cases
from replay_worker import transitions

from weft.replay.device import DeviceReplay
from weft.replay.interface import TableSpec


def make_table(batch: int, prioritised: bool) -> tuple[Functions, Any, Any]:
    table = DeviceReplay(TableSpec(capacity=ITEMS, rows=batch, sampler="prioritised:0.6" if prioritised else "uniform"))
    steps = jax.tree.map(jnp.asarray, transitions(batch))
    functions = Functions(
        insert=lambda state, batch_steps: table.insert(state, jnp.arange(batch), batch_steps, None),
        sample=lambda state, key: table.sample(state, key, (batch,))[1],
        keys=lambda sample: sample.key,
        update=table.update,
    )
    return functions, table.init(steps, jax.random.key(0)), jax.tree.map(lambda column: column[None], steps)


CASES = make_cases(make_table)
