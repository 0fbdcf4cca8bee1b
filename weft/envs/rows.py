"""Selection between two batches, row by row.

The episodes of a batch end at different times. The initial state of the next episode is therefore computed for all
rows, and selected for the rows that ended.

>>> old, new = {"time": jnp.array([7, 8, 9])}, {"time": jnp.zeros(3, int)}
>>> select_rows(jnp.array([True, False, False]), new, old)["time"].tolist()
[0, 8, 9]
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

T = TypeVar("T")


def select_rows(rows: Bool[Array, " B"], new: T, old: T) -> T:
    """Returns the rows of `new` where `rows` is true, else those of `old`. Both are pytrees of arrays [B, ...]."""
    return jax.tree.map(lambda a, b: jnp.where(add_axes(rows, b), a, b), new, old)


def add_axes(rows: jax.Array, like: jax.Array) -> jax.Array:
    """Reshapes [B] to [B, 1, ...] with as many axes as `like`, so that the two broadcast row by row."""
    return rows.reshape(*rows.shape, *[1] * (like.ndim - rows.ndim))
