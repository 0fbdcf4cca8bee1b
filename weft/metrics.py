"""Metrics are (total, count) pairs, so that merging them over time and over replicas is addition.

>>> import jax.numpy as jnp
>>> loss = Mean.of(jnp.array([1.0, 2.0, 3.0]))
>>> float(loss.total), float(loss.count)
(6.0, 3.0)
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mean:
    """A running mean: the sum of what was seen and how much of it there was."""

    total: jax.Array
    count: jax.Array

    @classmethod
    def of(cls, values: jax.Array, where: jax.Array | None = None) -> "Mean":
        """The mean over all elements of `values`, or those where `where` holds."""
        values = jnp.asarray(values, jnp.float32)
        mask = jnp.ones_like(values) if where is None else where.astype(jnp.float32)
        return cls(jnp.sum(values * mask), jnp.sum(mask))
