"""A running mean and variance over all environments of all replicas, equal on every replica.

The state has two parts. The moments (count, mean, variance) have no batch axis and are constant during an iteration.
Each environment accumulates sums of the deviations of its values from that mean. `merge` adds the sums of all rows and
replicas to the moments, by the formula of Chan, Golub & LeVeque (1983), and resets them. Sums of deviations, instead of
values, keep the precision of a small variance around a large mean, even with 32-bit floats.

>>> values = jnp.array([29999.0, 30000.0, 30001.0]),
>>> running = RunningMoments.init(values, mean=(jnp.float32(29998.0),)).add(values, where=jnp.ones(3, bool))
>>> moments = running.merge().moments
>>> float(moments.count), float(moments.mean[0]), round(float(moments.variance[0]), 6)
(3.0, 30000.0, 0.666667)
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from weft.envs.rows import add_axes
from weft.fragments import all_sum

Arrays = tuple[jax.Array, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moments:
    """The number of values, and the mean and variance of each entry of each array."""

    count: Float[Array, ""]
    mean: Arrays
    variance: Arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviationSums:
    """Per environment, since the last merge: the number of values, and sums of deviations and squared deviations."""

    count: Float[Array, " B"]
    total: Arrays
    squares: Arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RunningMoments:
    """The moments of some arrays [B, ...] up to the last merge, and the sums since."""

    moments: Moments
    sums: DeviationSums

    @classmethod
    def init(cls, values: Arrays, *, mean: Arrays) -> "RunningMoments":
        """Returns moments without data for arrays like `values`: data replaces `mean` and a variance of one."""
        moments = Moments(jnp.zeros((), jnp.float32), mean, tuple(jnp.ones_like(each) for each in mean))
        return cls.from_moments(moments, values)

    @classmethod
    def from_moments(cls, moments: Moments, values: Arrays) -> "RunningMoments":
        """Returns known moments for arrays like `values`, with no data since."""
        zeros = tuple(jnp.zeros_like(value) for value in values)
        return cls(moments, DeviationSums(jnp.zeros(len(values[0]), jnp.float32), zeros, zeros))

    def add(self, values: Arrays, *, where: Bool[Array, " B"]) -> "RunningMoments":
        """Adds the values of the rows where `where` is true."""
        weight, sums = where.astype(jnp.float32), self.sums
        deviations = tuple(
            jnp.where(add_axes(where, v), v - m, 0.0) for v, m in zip(values, self.moments.mean, strict=True)
        )
        total = tuple(t + d for t, d in zip(sums.total, deviations, strict=True))
        squares = tuple(s + d * d for s, d in zip(sums.squares, deviations, strict=True))
        return RunningMoments(self.moments, DeviationSums(sums.count + weight, total, squares))

    def merge(self) -> "RunningMoments":
        """Merges the sums of all rows and replicas into the moments, and resets the sums."""
        sums = all_sum(jax.tree.map(lambda rows: rows.sum(axis=0), self.sums))
        arrays = zip(self.moments.mean, self.moments.variance, sums.total, sums.squares, strict=True)
        merged = [_merge(self.moments.count, sums.count, *each) for each in arrays]
        moments = Moments(self.moments.count + sums.count, tuple(m for m, _ in merged), tuple(v for _, v in merged))
        return RunningMoments(moments, jax.tree.map(jnp.zeros_like, self.sums))


def _merge(
    count: Any, new_count: Any, mean: Any, variance: Any, total: Any, squares: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the mean and variance of `count` old and `new_count` new values together.

    `total` and `squares` are sums of the deviations of the new values from the old mean, and of their squares.
    """
    share = new_count / jnp.maximum(count + new_count, 1.0)
    gap = total / jnp.maximum(new_count, 1.0)
    new_variance = jnp.maximum(squares / jnp.maximum(new_count, 1.0) - gap * gap, 0.0)
    # A weighted sum, so that with `share` one the first data replace the assumed variance exactly.
    return mean + share * gap, (1.0 - share) * variance + share * new_variance + share * (1.0 - share) * gap * gap
