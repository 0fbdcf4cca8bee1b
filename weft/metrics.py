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
    """A mean as the sum of its values and their number."""

    total: jax.Array
    count: jax.Array

    @classmethod
    def of(cls, values: jax.Array, where: jax.Array | None = None) -> "Mean":
        """The mean over all elements of `values`, or over those where `where` is true."""
        values = jnp.asarray(values, jnp.float32)
        mask = jnp.ones_like(values) if where is None else where.astype(jnp.float32)
        return cls(jnp.sum(values * mask), jnp.sum(mask))
