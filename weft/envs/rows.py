"""Choosing between two batches row by row.

Environments of a batch end at different times, so whatever starts anew is computed for all of them and then chosen for
those that need it.

>>> new, old = jnp.zeros((3, 2)), {"place": jnp.ones((3, 2)), "time": jnp.arange(3)}
>>> select(jnp.array([True, False, False]), {"place": new, "time": new[:, 0].astype(int)}, old)["time"].tolist()
[0, 1, 2]
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

T = TypeVar("T")


def select(rows: Bool[Array, " B"], new: T, old: T) -> T:
    """The rows of `new` where `rows` holds, of `old` elsewhere; two trees of arrays [B, ...]."""
    return jax.tree.map(lambda a, b: jnp.where(spread(rows, b), a, b), new, old)


def spread(rows: jax.Array, like: jax.Array) -> jax.Array:
    """[B] with as many axes as an array [B, ...], so that the two meet row by row."""
    return rows.reshape(*rows.shape, *[1] * (like.ndim - rows.ndim))
