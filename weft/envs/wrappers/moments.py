"""A running mean and variance, over all environments of all replicas, that every replica agrees on.

It has two parts. What is known (count, mean, variance) has no batch axis and stays as it is for a whole iteration. Each
environment gathers for itself, in sums of how far its values are from the known mean. `merge` puts the sums of all rows
and replicas together with what is known, by the formula of Chan, Golub & LeVeque (1983), and starts new ones. As the
sums are of distances and not of values, a large mean costs no digits of a small variance, even in 32 bits.

>>> values = jnp.array([29999.0, 30000.0, 30001.0]),
>>> moments = Moments.start(values, mean=(jnp.float32(29998.0),)).add(values, where=jnp.ones(3, bool))
>>> known = moments.merge().known
>>> float(known.count), float(known.mean[0]), round(float(known.variance[0]), 6)
(3.0, 30000.0, 0.666667)
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from weft.envs.rows import spread
from weft.fragments import all_sum

Arrays = tuple[jax.Array, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Known:
    """How many values were seen, and the mean and variance of each entry of each array."""

    count: Float[Array, ""]
    mean: Arrays
    variance: Arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gathered:
    """Per environment, since the last merge: how many values, the sums of their distances, and of those squared."""

    count: Float[Array, " B"]
    total: Arrays
    squares: Arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moments:
    """What is known of some arrays [B, ...], and what was gathered since."""

    known: Known
    gathered: Gathered

    @classmethod
    def start(cls, values: Arrays, *, mean: Arrays) -> "Moments":
        """Nothing seen of arrays like `values`: a variance of one, and a mean to start from that is not counted."""
        known = Known(jnp.zeros((), jnp.float32), mean, tuple(jnp.ones_like(each) for each in mean))
        return cls.knowing(known, values)

    @classmethod
    def knowing(cls, known: Known, values: Arrays) -> "Moments":
        """Something known of arrays like `values`, and nothing gathered."""
        zeros = tuple(jnp.zeros_like(value) for value in values)
        return cls(known, Gathered(jnp.zeros(len(values[0]), jnp.float32), zeros, zeros))

    def add(self, values: Arrays, *, where: Bool[Array, " B"]) -> "Moments":
        """Count the values of the rows where `where` holds."""
        weight, gathered = where.astype(jnp.float32), self.gathered
        away = tuple(jnp.where(spread(where, v), v - m, 0.0) for v, m in zip(values, self.known.mean, strict=True))
        total = tuple(t + d for t, d in zip(gathered.total, away, strict=True))
        squares = tuple(s + d * d for s, d in zip(gathered.squares, away, strict=True))
        return Moments(self.known, Gathered(gathered.count + weight, total, squares))

    def merge(self) -> "Moments":
        """Everything that was gathered, on all replicas, made known."""
        gathered = all_sum(jax.tree.map(lambda rows: rows.sum(axis=0), self.gathered))
        pairs = zip(self.known.mean, self.known.variance, gathered.total, gathered.squares, strict=True)
        merged = [_merged(self.known.count, gathered.count, *pair) for pair in pairs]
        known = Known(self.known.count + gathered.count, tuple(m for m, _ in merged), tuple(v for _, v in merged))
        return Moments(known, jax.tree.map(jnp.zeros_like, self.gathered))


def _merged(seen: Any, new: Any, mean: Any, variance: Any, total: Any, squares: Any) -> tuple[jax.Array, jax.Array]:
    """The mean and variance of `seen` values and of `new` ones, of which the distances from that mean are given."""
    share = new / jnp.maximum(seen + new, 1.0)
    gap = total / jnp.maximum(new, 1.0)
    spread_of_new = jnp.maximum(squares / jnp.maximum(new, 1.0) - gap * gap, 0.0)
    # Weighted, not as a difference times the share: so the first values replace what was only assumed, to the last bit.
    return mean + share * gap, (1.0 - share) * variance + share * spread_of_new + share * (1.0 - share) * gap * gap
