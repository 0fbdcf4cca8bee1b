"""Measures flashbax (see `compiled` and `replay_worker`)."""

from typing import Any

import flashbax
import jax
import jax.numpy as jnp
from compiled import ITEMS, Functions, make_cases
from replay_worker import serve_requests, transitions


def make_table(batch: int, prioritised: bool) -> tuple[Functions, Any, Any]:
    make = flashbax.make_prioritised_item_buffer if prioritised else flashbax.make_item_buffer
    buffer = make(ITEMS, 1, batch, add_batches=True)
    steps = jax.tree.map(jnp.asarray, transitions(batch))
    functions = Functions(
        buffer.add, buffer.sample, lambda sample: sample.indices, getattr(buffer, "set_priorities", None)
    )
    return functions, buffer.init(jax.tree.map(lambda column: column[0], steps)), steps


if __name__ == "__main__":
    serve_requests(make_cases(make_table))
