"""flashbax, measured: see `compiled`, and `replay_worker`."""

from typing import Any

import flashbax
import jax
import jax.numpy as jnp
from compiled import ITEMS, Functions, cases
from replay_worker import obey, transitions


def made(batch: int, prioritised: bool) -> tuple[Functions, Any, Any]:
    make = flashbax.make_prioritised_item_buffer if prioritised else flashbax.make_item_buffer
    buffer = make(ITEMS, 1, batch, add_batches=True)
    given = jax.tree.map(jnp.asarray, transitions(batch))
    functions = Functions(
        buffer.add, buffer.sample, lambda drawn: drawn.indices, getattr(buffer, "set_priorities", None)
    )
    return functions, buffer.init(jax.tree.map(lambda column: column[0], given)), given


if __name__ == "__main__":
    obey(cases(made))
